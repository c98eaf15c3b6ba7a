"""Machine code -> instructions. Whatever is not wholly understood is refused with its address and its bits.

Operand codes, one number space: 0..101 SGPR, 106/107 VCC, 124 M0, 126/127 EXEC, 128..208 small integers, 240..248
floats,
253 SCC, 255 the literal dword, 256 + n VGPR n, 512 + n AGPR n. A register operand of several words names its first.
Source of the bit layouts: AMD "CDNA3 ISA" chapter "Microcode formats" and LLVM 22 (llvm-mc --mcpu=gfx950, bit by bit).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import unpack_from

from megamoe_atom.problem import Exit, Problem

from kernel_lane.isa import BY_NAME, BY_NUMBER
from kernel_lane.isa.opcode import Opcode

LITERAL, SDWA, DPP = 255, 249, 250
VGPR, AGPR = 256, 512
VCC, M0, EXEC = 106, 124, 126
CLAMPED = 1024  # added to the VOP3 number of an opcode that is clamped (isa/vector.py)
FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0, 248: 0.15915494}
_SCALARS = {*range(102), 106, 107, 124, 126, 127, *range(128, 209), *FLOATS, 253, LITERAL}
# op_sel bits that mean something in the VOP3 form: which byte or half of the destination is written.
_OPSEL = {"v_cvt_scalef32_pk_fp4_f32": 12, "v_cvt_pk_fp8_f32": 8}
_DPP_CONTROLS = {*range(0x100), *range(0x101, 0x110), *range(0x111, 0x120), *range(0x121, 0x130), 0x140, 0x141, 0x142,
0x143,
                 *range(0x150, 0x160)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sdwa:
    """Sub-dword selections: 0..3 byte, 4/5 word, 6 dword; `unused` 0 pad, 1 sign-extend, 2 preserve."""

    dst: int = 6
    unused: int = 0
    src0: int = 6
    src1: int = 6
    sext0: bool = False
    sext1: bool = False


@dataclass(frozen=True, slots=True)
class Dpp:
    """Lane permutation of source 0: control, row and bank masks, and whether invalid lanes read 0 and are written."""

    control: int
    row_mask: int
    bank_mask: int
    bound_ctrl: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One decoded instruction at byte address `pc`.

    Attributes:
        src, dst, sdst: operand codes; dst and sdst are -1 when absent. For memory: src = (address, data, scalar base).
        offset: memory offset in bytes (for two-offset DS: both, as raw bytes); target: pc of a branch.
        imm: SOPK's K, the wait counts, the truth table, ds_swizzle's pattern.
        neg, absolute, opsel, opsel_hi: modifier bits, source 0 lowest.
        flags: "sc0", "sc1", "nt", "lds", "offen", "idxen", "flat".
    """

    pc: int
    size: int
    opcode: Opcode
    form: str
    src: tuple[int, ...] = ()
    dst: int = -1
    sdst: int = -1
    literal: int = 0
    imm: int = 0
    offset: int = 0
    offset1: int = 0
    target: int = -1
    neg: int = 0
    absolute: int = 0
    opsel: int = 0
    opsel_hi: int = 0
    formats: tuple[int, int] = (0, 0)
    flags: frozenset[str] = frozenset()
    sdwa: Sdwa | None = None
    dpp: Dpp | None = None
    words: tuple[int, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        return self.opcode.name.replace("global_", "flat_", 1) if "flat" in self.flags else self.opcode.name

    @property
    def wait(self) -> tuple[int, int, int]:
        """(vmcnt, expcnt, lgkmcnt) of s_waitcnt; 63, 7 and 15 wait for nothing."""
        return (self.imm & 15) | (self.imm >> 14 & 3) << 4, self.imm >> 4 & 7, self.imm >> 8 & 15


class _Reader:
    """The dwords of one instruction, and the refusal that names them."""

    def __init__(self, code: bytes, at: int, pc: int) -> None:
        self._code, self._at, self.pc, self.used = code, at, pc, 0
        self.words: list[int] = []

    def word(self) -> int:
        if self._at + self.used + 4 > len(self._code):
            raise self.refuse("the code ends inside it")
        (value,) = unpack_from("<I", self._code, self._at + self.used)
        self.used += 4
        self.words.append(value)
        return int(value)

    def refuse(self, why: str) -> Problem:
        bits = " ".join(f"{w:08X}" for w in self.words)
        return Problem(
            "unknown_instruction",
            what=f"instruction at {self.pc:#x} ({bits}): {why}",
            why="the lane executes only what it knows exactly; a guess would make its proofs worthless",
            fix="compare llvm-objdump --mcpu=gfx950 -d; "
            "if the instruction is right, add it to kernel_lane/isa with its test",
            exit_code=Exit.REFUSED,
        )

    def opcode(self, encoding: str, number: int) -> Opcode:
        found = BY_NUMBER.get((encoding, number))
        if found is None:
            raise self.refuse(f"opcode {number} of encoding {encoding} is not known")
        return found

    def scalar(self, code: int) -> int:
        if code not in _SCALARS:
            raise self.refuse(f"scalar operand {code} is not known")
        return code

    def source(self, code: int) -> int:
        return code if code >= VGPR else self.scalar(code)

    def no_literal(self, code: int) -> int:
        """A scalar operand of an encoding that a literal dword cannot follow."""
        self.need(code != LITERAL, "a literal does not exist here")
        return self.scalar(code)

    def vector(self, code: int) -> int:
        self.need(code >= VGPR, f"operand {code} must be a vector register")
        return code

    def need(self, condition: bool, why: str) -> None:
        if not condition:
            raise self.refuse(why)


def decode(code: bytes, base: int = 0) -> list[Instruction]:
    """All instructions of a piece of machine code that starts at address `base`.

    Padding after the last s_endpgm (s_nop, s_code_end) is decoded as far as it consists of known instructions.
    Raises:
        Problem: unknown_instruction (exit 2), branch_target (a branch into the middle of an instruction).
    """
    out: list[Instruction] = []
    at = 0
    while at < len(code):
        if out and out[-1].opcode.name == "s_endpgm" and _padding(code, at):
            break
        instruction = decode_one(code, at, base + at)
        out.append(instruction)
        at += instruction.size
    starts = {i.pc for i in out}
    for i in out:
        if i.target >= 0 and i.target not in starts:
            raise Problem(
                "branch_target",
                what=f"{i.name} at {i.pc:#x} jumps to {i.target:#x}, where no instruction starts",
                why="the code was cut or misread",
                fix="read the whole kernel from its symbol's start to its end",
                exit_code=Exit.REFUSED,
            )
    return out


def _padding(code: bytes, at: int) -> bool:
    """Whether only s_code_end, s_nop or zero words follow: what the linker puts behind a kernel."""
    return all(unpack_from("<I", code, n)[0] in (0xBF9F0000, 0xBF800000, 0) for n in range(at, len(code) - 3, 4))


def decode_one(code: bytes, at: int, pc: int) -> Instruction:
    r = _Reader(code, at, pc)
    w = r.word()
    if w >> 23 == 0b101111101:
        return _sop1(r, w)
    if w >> 23 == 0b101111110:
        op = r.opcode("SOPC", w >> 16 & 127)
        src = (r.scalar(w & 255), r.scalar(w >> 8 & 255))
        return _finish(r, op, "", src=src)
    if w >> 23 == 0b101111111:
        op = r.opcode("SOPP", w >> 16 & 127)
        offset = (w & 0xFFFF) - ((w & 0x8000) << 1)
        target = pc + 4 + 4 * offset if op.meaning.startswith("branch") else -1
        return _finish(r, op, "", imm=w & 0xFFFF, target=target)
    if w >> 28 == 0b1011:
        op = r.opcode("SOPK", w >> 23 & 31)
        return _finish(r, op, "", dst=r.scalar(w >> 16 & 127), imm=(w & 0xFFFF) - ((w & 0x8000) << 1))
    if w >> 30 == 0b10:
        op = r.opcode("SOP2", w >> 23 & 127)
        return _finish(r, op, "", src=(r.scalar(w & 255), r.scalar(w >> 8 & 255)), dst=r.scalar(w >> 16 & 127))
    if w >> 26 == 0b110000:
        return _smem(r, w)
    if w >> 26 == 0b111000:
        return _mubuf(r, w)
    if w >> 26 == 0b110110:
        return _ds(r, w)
    if w >> 26 == 0b110111:
        return _flat(r, w)
    if w >> 23 == 0b110100111:
        return _vop3p(r, w)
    if w >> 26 == 0b110100:
        return _vop3(r, w)
    if w >> 31 == 0:
        return _vop(r, w)
    raise r.refuse("no known encoding starts with these bits")


def _finish(r: _Reader, op: Opcode, form: str, **fields: object) -> Instruction:
    src = fields.get("src", ())
    if LITERAL in src and "literal" not in fields:  # type: ignore[operator]
        fields["literal"] = r.word()
    found = Instruction(r.pc, r.used, op, form, words=tuple(r.words), **fields)  # type: ignore[arg-type]
    for code, words, _ in operands(found):
        _check_registers(r, code, words)
    return found


def operands(i: Instruction) -> list[tuple[int, int, bool]]:
    """Every operand of an instruction as (code, 32-bit words, whether it is written); absent ones are left out."""
    op = i.opcode
    if op.memory is None:
        widths = (*op.reads, 2) if "in" in op.carry else op.reads
        if op.name.startswith("v_mfma_scale"):
            widths = (4 if i.formats[0] == 4 else 8, 4 if i.formats[1] == 4 else 8, 4, 1, 1)
        # An SOPK comparison names the register that it reads where others name their destination.
        found = [(code, words, False) for code, words in zip(i.src, widths, strict=False)]
        found += [(i.dst, max(op.writes, 1), op.writes > 0), (i.sdst, 2, True)]
    else:
        action, size, count = op.memory
        words = max(1, size // 4)
        if op.encoding == "SMEM":
            found = [(i.src[0], 2, False), (i.dst, words, True)]
        elif op.encoding == "MUBUF":
            given = (i.src[0], i.src[2], i.src[3]) if action != "cache" else ()
            found = [(code, n, False) for code, n in zip(given, (1, 4, 1), strict=False)]
            found += [(i.src[1], words, False)] if action == "store" else [(i.dst, words, True)]
        elif op.encoding == "FLAT":
            found = [(i.src[0], 1 if i.src[2] >= 0 else 2, False), (i.src[2], 2, False), (i.src[1], words, False)]
            found += [(i.dst, words, True)]
        else:
            found = [(i.src[0], 1, False), (i.src[1], words, False), (i.src[2], words, False)]
            found += [(i.dst, words * (2 if count > 1 else 1), True)]
    return [entry for entry in found if entry[0] >= 0]


def _check_registers(r: _Reader, code: int, words: int) -> None:
    """A tuple of registers lies within its file and is aligned: SGPRs to 2 or 4, vector registers to 2 (gfx90a on)."""
    if words == 1 or 128 <= code < VGPR:
        return
    if code >= VGPR:
        r.need(code % 2 == 0, f"{words} vector registers from an odd one")
        r.need((code - VGPR) % 256 + words <= 256, f"{words} vector registers from {(code - VGPR) % 256}")
    else:
        r.need(code % min(words, 4) == 0, f"{words} scalar registers from {code}")
        r.need(code + words <= 102 or (words == 2 and code in (VCC, EXEC)), f"{words} scalar registers from {code}")


def _sop1(r: _Reader, w: int) -> Instruction:
    op = r.opcode("SOP1", w >> 8 & 255)
    return _finish(r, op, "", src=(r.scalar(w & 255),), dst=r.scalar(w >> 16 & 127))


def _smem(r: _Reader, w: int) -> Instruction:
    op = r.opcode("SMEM", w >> 18 & 255)
    v = r.word()
    r.need(w >> 17 & 1 == 1 and w >> 14 & 1 == 0, "only an immediate offset is known for scalar loads")
    r.need(w & 0x1A000 == 0 and v >> 21 == 0, "cache or reserved bits are set")
    offset = (v & 0x1FFFFF) - ((v & 0x100000) << 1)
    return _finish(r, op, "", src=((w & 63) * 2,), dst=r.scalar(w >> 6 & 127), offset=offset)


def _vop(r: _Reader, w: int) -> Instruction:
    """VOP1, VOP2, VOPC in their short form, with a literal, DPP or SDWA dword behind where they have one."""
    src0, src1 = w & 511, VGPR + (w >> 9 & 255)
    rest: tuple[int, ...]
    if w >> 25 == 0b0111111:
        op, dst, rest = r.opcode("VOP1", w >> 9 & 255), w >> 17 & 255, ()
    elif w >> 25 == 0b0111110:
        op, dst, rest = r.opcode("VOPC", w >> 17 & 255), -1, (src1,)
    else:
        op, dst, rest = r.opcode("VOP2", w >> 25 & 63), w >> 17 & 255, (src1,)
    if not op.reads:  # v_nop and the like
        raise r.refuse("an opcode without operands")
    fields: dict[str, object] = {}
    if op.encoding == "VOPC":
        fields["sdst"] = VCC
    elif op.name == "v_readfirstlane_b32":
        fields["dst"] = r.scalar(dst)
    else:
        fields["dst"] = (AGPR if op.name == "v_accvgpr_mov_b32" else VGPR) + dst
    if op.name == "v_accvgpr_mov_b32":
        return _finish(r, op, "e32", src=(r.vector(src0) + AGPR - VGPR,), **fields)
    if op.name.startswith("v_permlane"):
        r.vector(src0)
    if "out" in op.carry and op.encoding == "VOP2":
        fields["sdst"] = VCC
    mask = (VCC,) if "in" in op.carry else ()
    if op.literal:
        literal = r.word()
        r.need(src0 != LITERAL, "two literals")
        return _finish(r, op, "e32", src=(r.source(src0), *rest, LITERAL), literal=literal, **fields)
    if src0 == SDWA:
        return _sdwa(r, op, rest, mask, fields)
    if src0 == DPP:
        v = r.word()
        r.need(v >> 17 & 3 == 0 and v >> 20 & 15 == 0, "DPP with neg, abs or reserved bits is not known")
        r.need(
            op.encoding != "VOPC" and op.kind == "lane" and max((*op.reads, op.writes)) == 1,
            "DPP is not known for this opcode",
        )
        dpp = Dpp(v >> 8 & 0x1FF, v >> 28 & 15, v >> 24 & 15, bool(v >> 19 & 1))
        r.need(dpp.control in _DPP_CONTROLS, f"DPP control {dpp.control:#x} is not known")
        return _finish(r, op, "dpp", src=(VGPR + (v & 255), *rest, *mask), dpp=dpp, **fields)
    return _finish(r, op, "e32", src=(r.source(src0), *rest, *mask), **fields)


def _sdwa(
    r: _Reader, op: Opcode, rest: tuple[int, ...], mask: tuple[int, ...], fields: dict[str, object]
) -> Instruction:
    v = r.word()
    r.need(
        op.kind == "lane" and max((*op.reads, op.writes)) == 1 and op.name != "v_fmac_f32",
        "SDWA is not known for this opcode",
    )
    r.need(not (op.float_in and v & 0x08080000), "sign extension of a float does not exist")
    r.need(v >> 20 & 3 == 0 and v >> 28 & 3 == 0, "SDWA with neg or abs is not known")
    r.need(v >> 16 & 7 < 7 and v >> 24 & 7 < 7, "SDWA selection 7 does not exist")
    first = r.no_literal(v & 255) if v >> 23 & 1 else VGPR + (v & 255)
    sources = (first, *((rest[0] - VGPR if v >> 31 else rest[0],) if rest else ()))
    if rest and v >> 31:
        r.no_literal(sources[1])
    if op.encoding == "VOPC":
        r.need(v >> 8 & 0x7F == 0 or v >> 15 & 1 == 1, "SDWA destination bits without a destination")
        fields["sdst"] = r.scalar(v >> 8 & 127) if v >> 15 & 1 else VCC
        selection = Sdwa(6, 0, v >> 16 & 7, v >> 24 & 7, bool(v >> 19 & 1), bool(v >> 27 & 1))
    else:
        r.need(v >> 13 & 7 == 0, "SDWA with clamp or omod is not known")
        r.need(v >> 8 & 7 < 7 and v >> 11 & 3 < 3, "SDWA destination selection does not exist")
        selection = Sdwa(v >> 8 & 7, v >> 11 & 3, v >> 16 & 7, v >> 24 & 7, bool(v >> 19 & 1), bool(v >> 27 & 1))
    return _finish(r, op, "sdwa", src=(*sources, *mask), sdwa=selection, **fields)


def _vop3(r: _Reader, w: int) -> Instruction:
    v = r.word()
    number = w >> 16 & 1023
    if w >> 15 & 1:
        r.need(("VOP3", number + CLAMPED) in BY_NUMBER, "clamp is not known for this opcode")
        op = r.opcode("VOP3", number + CLAMPED)
    elif number < 0x100:
        op = r.opcode("VOPC", number)
    elif number < 0x140:
        op = r.opcode("VOP2", number - 0x100)
    elif number < 0x1C0:
        op = r.opcode("VOP1", number - 0x140)
    else:
        op = r.opcode("VOP3", number)
    r.need(not op.literal, "this opcode has no VOP3 form")
    operands = [r.source(v & 511), r.source(v >> 9 & 511), r.source(v >> 18 & 511)]
    r.need(LITERAL not in operands[: len(op.reads)], "a literal in the VOP3 form does not exist on gfx950")
    count = len(op.reads) + ("in" in op.carry)
    fields: dict[str, object] = {"src": tuple(operands[:count])}
    if "in" in op.carry:
        r.need(operands[count - 1] < 128, "a carry or a choice of lanes comes from scalar registers")
    if op.name in ("v_readlane_b32", "v_writelane_b32"):
        r.need(operands[1] < VGPR, "a lane's number is scalar")
        r.need((operands[0] >= VGPR) == (op.name == "v_readlane_b32"), "one side is a vector register, one is scalar")
    if op.name == "v_lshl_add_u64":
        r.need(128 <= operands[1] <= 132, "a shift other than by a constant from 0 to 4 is not known")
    r.need(not op.name.startswith("v_permlane") and op.name != "v_accvgpr_mov_b32", "its VOP3 form is not known")
    r.need(all(o == 0 for o in (v & 511, v >> 9 & 511, v >> 18 & 511)[count:]), "an operand too many")
    absolute, neg, omod = w >> 8 & 7, v >> 29 & 7, v >> 27 & 3
    has_sdst = "out" in op.carry
    if op.encoding == "VOPC":
        fields["sdst"] = r.scalar(w & 255)
    elif op.name in ("v_readlane_b32", "v_readfirstlane_b32"):
        fields["dst"] = r.scalar(w & 255)
    else:
        fields["dst"] = VGPR + (w & 255)
    if has_sdst:
        fields["sdst"] = r.scalar(w >> 8 & 127)
        absolute = 0
    elif op.name == "v_bitop3_b32":
        # The truth table's eight bits lie where other opcodes keep their modifiers.
        fields["imm"] = neg | absolute << 3 | omod << 6
        absolute = neg = omod = 0
        r.need(w >> 11 & 15 == 0, "op_sel is not known for this opcode")
    else:
        opsel = w >> 11 & 15
        r.need(opsel & ~_OPSEL.get(op.name, 0) == 0, "op_sel is not known for this opcode")
        fields["opsel"] = opsel
    r.need(omod == 0, "an output modifier is not known")
    floats = sum(1 << n for n in range(len(op.reads)) if f"S{n}.f" in op.meaning)
    r.need((absolute | neg) & ~floats == 0, "neg or abs on integers does not exist")
    return _finish(r, op, "e64", neg=neg, absolute=absolute, **fields)


def _vop3p(r: _Reader, w: int) -> Instruction:
    number = w >> 16 & 127
    v = r.word()
    op = r.opcode("VOP3P", number)
    if op.name.startswith("v_accvgpr"):
        read = op.name == "v_accvgpr_read_b32"
        source = v & 511
        r.need(w >> 8 & 0xBF == 0 and v >> 29 == 0 and v >> 9 & 0x3FFFF == 0, "modifiers are not known here")
        r.need(not read or source >= VGPR, "an AGPR is expected")
        r.need(source != LITERAL, "a literal does not exist here")
        return _finish(
            r, op, "", src=(source + 256 if read else r.source(source),), dst=(VGPR if read else AGPR) + (w & 255)
        )
    if op.name.startswith("v_mfma_scale"):
        return _mfma(r, op, w, v)
    r.need(w >> 8 & 7 == 0 and v >> 29 == 0 and w >> 15 & 1 == 0, "neg or clamp on packed operands is not known")
    sources = tuple(r.source(code) for code in (v & 511, v >> 9 & 511, v >> 18 & 511)[: len(op.reads)])
    r.need(LITERAL not in sources, "a literal does not exist here")
    hi = (v >> 27 & 3) | (w >> 14 & 1) << 2
    # What the high half of a constant is, no source that we have says.
    chosen = w >> 11 & 7 | (0 if op.name == "v_pk_mov_b32" else hi)
    r.need(all(not chosen >> n & 1 for n, code in enumerate(sources) if 128 <= code < VGPR), "a constant's high half")
    return _finish(r, op, "", src=sources, dst=VGPR + (w & 255), opsel=w >> 11 & 7, opsel_hi=hi)


def _mfma(r: _Reader, op: Opcode, w: int, v: int) -> Instruction:
    """Two halves: the scales (this dword pair), then the product itself."""
    scales = (r.source(v & 511), r.source(v >> 9 & 511))
    opsel, opsel_hi = w >> 11 & 3, v >> 27 & 3
    r.need(all(s >= VGPR for s in scales) and w & 0xE7FF == 0, "scales must be vector registers")
    r.need(v >> 18 & 511 == 0 and v >> 29 == 0, "modifiers of a scale are not known")
    a, b = r.word(), r.word()
    r.need(a >> 16 == 0xD3AD, "a scale prefix must be followed by v_mfma_f32_16x16x128_f8f6f4")
    cbsz, blgp = a >> 8 & 7, b >> 29 & 7
    r.need(
        cbsz in (0, 4) and blgp in (0, 4),
        f"matrix formats cbsz {cbsz}, blgp {blgp}: only fp8 (0) and fp4 (4) are known",
    )
    r.need(a >> 11 & 15 == 1, "abid must be 1 in the scaled form")
    first, second, third = b & 511, b >> 9 & 511, r.source(b >> 18 & 511)
    r.need(first >= VGPR and second >= VGPR, "matrices must be vector registers")
    r.need(128 <= third != LITERAL, "a sum starts from vector registers or a constant")
    accumulate = 256 if a >> 15 & 1 else 0
    return _finish(
        r, op, "", src=(first + (256 if b >> 27 & 1 else 0), second + (256 if b >> 28 & 1 else 0),
                        third + accumulate if third >= VGPR else third, *scales),
        dst=VGPR + (a & 255) + accumulate, opsel=opsel, opsel_hi=opsel_hi, formats=(cbsz, blgp),
    )  # fmt: skip


def _memory_flags(r: _Reader, bits: dict[str, int]) -> frozenset[str]:
    return frozenset(name for name, bit in bits.items() if bit)


def _data(v: int, *, accumulate: int) -> int:
    return VGPR + v + (256 if accumulate else 0)


def _mubuf(r: _Reader, w: int) -> Instruction:
    op = r.opcode("MUBUF", w >> 18 & 127)
    v = r.word()
    bits = {"offen": w >> 12 & 1, "idxen": w >> 13 & 1, "sc0": w >> 14 & 1, "sc1": w >> 15 & 1, "lds": w >> 16 & 1,
            "nt": w >> 17 & 1}  # fmt: skip
    flags = _memory_flags(r, bits)
    r.need(w >> 25 & 1 == 0 and v >> 21 & 3 == 0, "reserved bits are set")
    r.need("idxen" not in flags, "an index register is not known")
    assert op.memory is not None
    if op.memory[0] == "cache":
        return _finish(r, op, "", flags=flags)
    r.need("lds" not in flags or (op.memory[0] == "load" and op.memory[1] in (4, 12, 16)), "this load cannot go to LDS")
    address = VGPR + (v & 255) if "offen" in flags else -1
    data = -1 if "lds" in flags else _data(v >> 8 & 255, accumulate=v >> 23 & 1)
    sources = (address, data, (v >> 16 & 31) * 4, r.no_literal(v >> 24 & 255))
    return _finish(r, op, "", src=sources, dst=data if op.memory[0] == "load" else -1, offset=w & 0xFFF, flags=flags)


def _flat(r: _Reader, w: int) -> Instruction:
    op = r.opcode("FLAT", w >> 18 & 127)
    v = r.word()
    segment = w >> 14 & 3
    r.need(segment in (0, 2), "scratch memory is not known")
    r.need(w >> 13 & 1 == 0, "a global load to LDS is not known")
    flags = _memory_flags(r, {"sc0": w >> 16 & 1, "nt": w >> 17 & 1, "sc1": w >> 25 & 1, "flat": int(segment == 0)})
    offset = (w & 0x1FFF) - ((w & 0x1000) << 1)
    r.need(segment == 2 or 0 <= offset < 4096, "a flat offset is 12 bits")
    acc = v >> 23 & 1
    scalar = v >> 16 & 127
    assert op.memory is not None
    r.need(segment == 2 or scalar in (0, 0x7F), "a flat access has no scalar base")
    base = -1 if scalar == 0x7F or segment == 0 else r.scalar(scalar)
    action = op.memory[0]
    returns = action == "load" or (action.startswith("atomic") and "sc0" in flags)
    data = -1 if action == "load" else _data(v >> 8 & 255, accumulate=acc)
    dst = _data(v >> 24 & 255, accumulate=acc) if returns else -1
    return _finish(r, op, "", src=(VGPR + (v & 255), data, base), dst=dst, offset=offset, flags=flags)


def _ds(r: _Reader, w: int) -> Instruction:
    op = r.opcode("DS", w >> 17 & 255)
    v = r.word()
    r.need(w >> 16 & 1 == 0, "GDS does not exist here")
    acc = w >> 25 & 1
    assert op.memory is not None
    action, _, count = op.memory
    first, second = _data(v >> 8 & 255, accumulate=acc), _data(v >> 16 & 255, accumulate=acc)
    dst = _data(v >> 24 & 255, accumulate=acc)
    has_result = action in ("lds_read", "lds_read_signed", "lds_swizzle", "lds_permute") or "_rtn" in action
    has_data = action in ("lds_write", "lds_permute") or action.startswith("lds_atomic")
    fields: dict[str, object] = {
        "src": (VGPR + (v & 255), first if has_data else -1, second if action == "lds_write" and count > 1 else -1),
        "dst": dst if has_result else -1,
    }
    if action == "lds_swizzle":
        pattern = w & 0xFFFF
        r.need(pattern < 0x8000, "only the bit-mask forms of ds_swizzle are known")
        return _finish(r, op, "", imm=pattern, **fields)
    if count > 1:
        return _finish(r, op, "", offset=w & 255, offset1=w >> 8 & 255, **fields)
    return _finish(r, op, "", offset=w & 0xFFFF, **fields)


__all__ = ["BY_NAME", "Dpp", "Instruction", "Sdwa", "decode", "decode_one", "operands"]
