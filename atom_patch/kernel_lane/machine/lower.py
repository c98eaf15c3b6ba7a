"""Decoded instructions -> the core's records; what a record cannot say is refused here, before anything runs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from megamoe_atom.problem import Exit, Problem

from kernel_lane.decode import EXEC, FLOATS, LITERAL, VGPR, Instruction, operands
from kernel_lane.isa import OPCODES
from kernel_lane.machine.layout import Ins
from kernel_lane.text import text

_INDEX = {o.name: n for n, o in enumerate(OPCODES)}
_FLAGS = {"sc0": 1, "sc1": 2, "nt": 4, "lds": 8, "offen": 16, "flat": 32}
_SIGNED = 64
_ATOMICS = {
    n: k for k, n in enumerate(("add", "umax", "umin", "smax", "smin", "and", "or", "swap", "add_f32", "pk_add_bf16"))
}
_LDS = {"lds_read": 0, "lds_read_signed": 0, "lds_write": 1, "lds_atomic:add": 2, "lds_atomic_rtn:add": 2,
"lds_atomic:umax": 3,
        "lds_atomic_rtn:umax": 3}  # fmt: skip
_WAVE_WIDE = ("v_mfma", "v_permlane", "ds_bpermute", "ds_swizzle")
_FORMS = {"dpp": 1, "sdwa": 2}


def _refuse(i: Instruction, why: str) -> Problem:
    return Problem(
        "unknown_instruction",
        what=f"{text(i)} at {i.pc:#x}: {why}",
        why="the lane executes only what it knows exactly",
        fix="add the case to kernel_lane with its test",
        exit_code=Exit.REFUSED,
    )


def lower(code: Sequence[Instruction]) -> ctypes.Array[Ins]:
    """The core's records of a kernel, in code order; branch targets become indices."""
    at = {i.pc: n for n, i in enumerate(code)}
    out = (Ins * len(code))()
    for n, i in enumerate(code):
        _one(out[n], i, at)
    return out


def _one(r: Ins, i: Instruction, at: dict[int, int]) -> None:
    op = i.opcode
    r.function = _INDEX[op.name]
    r.pc = i.pc
    r.target = at.get(i.target, -1)
    sources = list(i.src)
    for k in range(5):
        r.s[k] = sources[k] if k < len(sources) else -1
    r.d, r.sd = i.dst, i.sdst
    r.flags = sum(_FLAGS[f] for f in i.flags if f in _FLAGS)
    r.literal, r.imm = i.literal & 0xFFFFFFFF, i.imm & 0xFFFFFFFF
    r.offset, r.offset1 = i.offset, i.offset1
    r.form = _FORMS.get(i.form, 0)
    r.neg, r.abs, r.opsel, r.opsel_hi = i.neg, i.absolute, i.opsel, i.opsel_hi
    r.fmt_a, r.fmt_b = i.formats
    if i.dpp:
        r.dpp, r.row_mask, r.bank_mask, r.bound = i.dpp.control, i.dpp.row_mask, i.dpp.bank_mask, i.dpp.bound_ctrl
    if i.sdwa:
        r.sel_d, r.unused, r.sel0, r.sel1 = i.sdwa.dst, i.sdwa.unused, i.sdwa.src0, i.sdwa.src1
        r.sext = i.sdwa.sext0 | i.sdwa.sext1 << 1
    if op.memory is not None:
        _memory(r, i)
    elif op.kind in ("scalar", "lane"):
        _wide_constants(i)
    _uses(r, i)


def _wide_constants(i: Instruction) -> None:
    for code, words in zip(i.src, i.opcode.reads, strict=False):
        if code in FLOATS and i.opcode.kind == "lane" and re.search(r"_[uib]16$", i.opcode.name):
            raise _refuse(i, "a float constant as a 16-bit integer")
        if words == 2 and code in FLOATS:
            raise _refuse(i, "a float constant as a 64-bit integer")
        if words == 2 and code == LITERAL and i.literal >> 31 and ".i64" in i.opcode.meaning:
            raise _refuse(i, "a negative literal as a signed 64-bit integer")


def _memory(r: Ins, i: Instruction) -> None:
    op = i.opcode
    assert op.memory is not None
    action, size, count = op.memory
    r.words = size
    if "lds" in i.flags and i.offset:
        raise _refuse(i, "whether an offset also moves the place in LDS is not known")
    if re.match(r"(global|buffer|flat)_load_s(byte|short)", op.name) or action == "lds_read_signed":
        r.flags |= _SIGNED
    if op.encoding == "SMEM":
        r.words = size // 4
    elif action == "cache":
        r.imm = int(op.name == "buffer_wbl2")
    elif action.startswith("atomic"):
        r.imm = _ATOMICS[action.split(":")[1]]
    elif action in _LDS:
        r.imm = _LDS[action]
        r.s[3] = int(count > 1)
        if count > 1:
            scale = size * (64 if count == 64 else 1)
            r.offset, r.offset1 = i.offset * scale, i.offset1 * scale


def _uses(r: Ins, i: Instruction) -> None:
    """Every register the instruction touches, for the check of loads that have not landed."""
    op = i.opcode
    # A destination that is also read (v_fmac, partial writes) counts as read.
    also_read = op.memory is None and (
        bool(re.search(r"D\.\w+(?! =[^=])", op.meaning)) or (i.sdwa is not None and i.sdwa.unused == 2)
    )
    uses = [(code, words, written and not (also_read and code == i.dst)) for code, words, written in operands(i)]
    kept = [u for u in uses if u[0] >= 0 and (u[0] < 128 or u[0] >= VGPR) and not EXEC <= u[0] < 128]
    for k in range(8):
        r.use[k] = kept[k][0] if k < len(kept) else -1
        r.use_words[k] = kept[k][1] if k < len(kept) else 0
    mask = sum(1 << k for k, u in enumerate(kept) if u[2])
    assert len(kept) <= 6
    if op.memory is not None and i.dst >= 0 and op.encoding in ("MUBUF", "FLAT"):
        mask |= 0x40
    if op.memory is not None and i.dst >= 0 and op.encoding == "DS":
        mask |= 0x80
    r.use_write = mask
    r.whole = op.name.startswith(_WAVE_WIDE)
