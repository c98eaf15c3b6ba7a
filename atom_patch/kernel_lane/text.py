"""Instructions as llvm-objdump writes them: for messages, and to compare our decoder with LLVM's word for word."""

from __future__ import annotations

from kernel_lane.decode import AGPR, FLOATS, LITERAL, VGPR, Instruction

_NAMES = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 253: "src_scc"}
_PAIRS = {106: "vcc", 126: "exec"}
_UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
_SELECT = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")


def _register(letter: str, n: int, words: int) -> str:
    return f"{letter}{n}" if words == 1 else f"{letter}[{n}:{n + words - 1}]"


def operand(code: int, words: int = 1, literal: int = 0) -> str:
    if code >= AGPR:
        return _register("a", code - AGPR, words)
    if code >= VGPR:
        return _register("v", code - VGPR, words)
    if code < 102:
        return _register("s", code, words)
    if words == 2 and code in _PAIRS:
        return _PAIRS[code]
    if code in _NAMES:
        return _NAMES[code]
    if 128 <= code <= 192:
        return str(code - 128)
    if 193 <= code <= 208:
        return str(192 - code)
    if code in FLOATS:
        return f"{FLOATS[code]}"
    assert code == LITERAL
    return f"{literal:#x}"


def text(i: Instruction) -> str:
    """One line, as `llvm-objdump --mcpu=gfx950 -d` prints it (without address and encoding)."""
    op = i.opcode
    if op.kind == "flow":
        return _flow(i)
    if op.memory is not None:
        return _memory(i)
    name, parts, tail = i.name, [], ""
    if i.dst >= 0 and (op.writes or op.encoding == "SOPK"):
        parts.append(operand(i.dst, max(op.writes, 1)))
    if i.sdst >= 0:
        parts.append(operand(i.sdst, 2))
    widths = (*op.reads, 2) if "in" in op.carry else op.reads
    if op.name.startswith("v_mfma_scale"):
        widths = (4 if i.formats[0] == 4 else 8, 4 if i.formats[1] == 4 else 8, 4, 1, 1)
    sources = [operand(code, words, i.literal) for code, words in zip(i.src, widths, strict=False)]
    if op.name == "v_fmamk_f32":
        sources = [sources[0], sources[2], sources[1]]
    for n, s in enumerate(sources):
        s = f"|{s}|" if i.absolute >> n & 1 else s
        sources[n] = f"-{s}" if i.neg >> n & 1 else s
    if i.sdwa:
        sources = [f"sext({s})" if (i.sdwa.sext0, i.sdwa.sext1, False)[n] else s for n, s in enumerate(sources)]
    parts += sources
    if op.encoding == "SOPK":
        parts.append(f"{i.imm & 0xFFFF:#x}")
    if op.name == "v_bitop3_b32":
        tail += f" bitop3:{i.imm:#x}"
    tail += _selectors(i)
    if i.dpp:
        tail += _dpp(i)
    if i.sdwa:
        if op.encoding != "VOPC":
            tail += f" dst_sel:{_SELECT[i.sdwa.dst]} dst_unused:{_UNUSED[i.sdwa.unused]}"
        tail += f" src0_sel:{_SELECT[i.sdwa.src0]}" + (f" src1_sel:{_SELECT[i.sdwa.src1]}" if len(op.reads) > 1 else "")
    if name.endswith("_clamp"):
        name, tail = name.removesuffix("_clamp"), tail + " clamp"
    return f"{name} {', '.join(parts)}{tail}"


def _selectors(i: Instruction) -> str:
    op, out = i.opcode, ""
    if op.name.startswith("v_mfma_scale"):
        low, high = (f"[{v & 1},{v >> 1 & 1},0]" for v in (i.opsel, i.opsel_hi))
        out += f" op_sel:{low}" if i.opsel else ""
        out += f" op_sel_hi:{high}"
        out += f" cbsz:{i.formats[0]}" if i.formats[0] else ""
        return out + (f" blgp:{i.formats[1]}" if i.formats[1] else "")
    if op.encoding == "VOP3P" and op.opsel:
        n = len(op.reads)
        out += f" op_sel:[{','.join(str(i.opsel >> k & 1) for k in range(n))}]" if i.opsel else ""
        full = (1 << n) - 1
        out += (
            f" op_sel_hi:[{','.join(str(i.opsel_hi >> k & 1) for k in range(n))}]" if i.opsel_hi & full != full else ""
        )
    elif i.opsel:
        n = len(op.reads)
        last = [i.opsel >> 3 & 1] if op.name != "v_cvt_scalef32_pk_fp4_f32" else [i.opsel >> 2 & 1, i.opsel >> 3 & 1]
        out += f" op_sel:[{','.join(str(b) for b in [*[i.opsel >> k & 1 for k in range(min(n, 2))], *last])}]"
    return out


def _dpp(i: Instruction) -> str:
    assert i.dpp is not None
    c = i.dpp.control
    if c < 0x100:
        what = f"quad_perm:[{','.join(str(c >> 2 * k & 3) for k in range(4))}]"
    elif c in (0x140, 0x141):
        what = ("row_mirror", "row_half_mirror")[c & 1]
    elif c in (0x142, 0x143):
        what = f"row_bcast:{15 if c == 0x142 else 31}"
    else:
        what = {0x10: "row_shl", 0x11: "row_shr", 0x12: "row_ror", 0x15: "row_newbcast"}[c >> 4] + f":{c & 15}"
    return f" {what} row_mask:{i.dpp.row_mask:#x} bank_mask:{i.dpp.bank_mask:#x}" + (
        " bound_ctrl:1" if i.dpp.bound_ctrl else ""
    )


def _flow(i: Instruction) -> str:
    if i.name == "s_waitcnt":
        parts = [
            f"{n}({v})"
            for n, v, none in zip(("vmcnt", "expcnt", "lgkmcnt"), i.wait, (63, 7, 15), strict=True)
            if v != none
        ]
        if not parts:  # LLVM spells out a wait for nothing
            parts = [f"{n}({v})" for n, v in zip(("vmcnt", "expcnt", "lgkmcnt"), i.wait, strict=True)]
        return f"s_waitcnt {' '.join(parts)}"
    if i.name in ("s_endpgm", "s_barrier"):
        return i.name
    return f"{i.name} {i.imm}"


def _memory(i: Instruction) -> str:
    op = i.opcode
    assert op.memory is not None
    action, size, count = op.memory
    words, tail = max(1, size // 4), ""
    order = ("sc0", "nt", "sc1", "lds")
    if op.encoding == "SMEM":
        return f"{i.name} {operand(i.dst, words)}, {operand(i.src[0], 2)}, {i.offset:#x}"
    if op.encoding == "MUBUF":
        parts = [] if action == "cache" or "lds" in i.flags else [operand(i.src[1], words)]
        if action != "cache":
            parts += [operand(i.src[0]) if i.src[0] >= 0 else "off", operand(i.src[2], 4), operand(i.src[3])]
        tail += " offen" if "offen" in i.flags else ""
        tail += f" offset:{i.offset}" if i.offset else ""
    elif op.encoding == "FLAT":
        address = operand(i.src[0], 1 if i.src[2] >= 0 else 2)
        parts = [operand(i.dst, words)] if i.dst >= 0 else []
        parts.append(address)
        parts += [operand(i.src[1], words)] if i.src[1] >= 0 else []
        if "flat" not in i.flags:
            parts.append(operand(i.src[2], 2) if i.src[2] >= 0 else "off")
        tail += f" offset:{i.offset}" if i.offset else ""
    else:
        parts = [operand(i.dst, words * (2 if count > 1 else 1))] if i.dst >= 0 else []
        parts.append(operand(i.src[0]))
        parts += [operand(code, words) for code in i.src[1:] if code >= 0]
        if action == "lds_swizzle":
            swap, keep = i.imm >> 10, i.imm & 0x3FF
            plain = keep == 31 and swap.bit_count() == 1
            tail += f" offset:swizzle(SWAP,{swap})" if plain else f" offset:{i.imm:#x}"
        elif count > 1:
            tail += (f" offset0:{i.offset}" if i.offset else "") + (f" offset1:{i.offset1}" if i.offset1 else "")
        else:
            tail += f" offset:{i.offset}" if i.offset else ""
    return f"{i.name} {', '.join(parts)}{tail}".rstrip() + "".join(f" {f}" for f in order if f in i.flags)
