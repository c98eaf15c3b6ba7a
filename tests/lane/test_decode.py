"""Our decoder against LLVM's text, every known opcode and form; what is not known is refused, and so is a torn file."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from assemble import Parts, code_object, listing
from kernel_lane import elf, machine
from kernel_lane.decode import decode, decode_one
from kernel_lane.isa import BY_NAME
from kernel_lane.machine.lower import lower
from kernel_lane.text import text
from megamoe_atom.problem import Exit, Problem

ENCODINGS = listing(Path(__file__).with_name("encodings.txt"))
CODE = b"".join(c for c, _ in listing(Path(__file__).with_name("own_kernel.txt")))
END = bytes.fromhex("000081bf")


def plain(words: str) -> str:
    """LLVM's text without what only tells the encoding, numbers in decimal."""
    words = re.sub(r"^(\w+?)_(e32|e64|sdwa|dpp)\b", r"\1", words)
    return re.sub(r"\b0x[0-9a-f]+", lambda m: str(int(m[0], 16)), words)


@pytest.mark.parametrize(("code", "words"), ENCODINGS, ids=[w for _, w in ENCODINGS])
def test_an_instruction_reads_as_llvm_writes_it(code: bytes, words: str) -> None:
    i = decode_one(code, 0, 0)
    assert i.size == len(code)
    assert plain(text(i)) == plain(words)


def test_every_known_opcode_is_among_the_encodings() -> None:
    seen = {decode_one(code, 0, 0).opcode.name for code, _ in ENCODINGS}
    assert set(BY_NAME) == seen


UNKNOWN = {
    "an opcode of SOP2 that is not listed": 0x9A000000, "scalar operand 125": 0x8000007D, "clamp": 0xD101_8001,
    "v_cvt_f64_f32": 0x7E002102,
    "gds": 0xD86D0000, "scratch": 0xDC504000, "an idxen buffer load": 0xE0502000, "an image instruction": 0xF0000000,
    "s_trap": 0xBF920002, "an scalar load with a register offset": 0xC0004000,
}  # fmt: skip


@pytest.mark.parametrize("word", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_refused_with_its_bits(word: int) -> None:
    with pytest.raises(Problem) as caught:
        decode(struct.pack("<II", word, 0) + END, 0x100)
    assert caught.value.code == "unknown_instruction" and caught.value.exit_code == Exit.REFUSED
    assert f"{word:08X}" in str(caught.value) and "0x100" in str(caught.value)


@pytest.mark.parametrize("bits", range(0, 1 << 20, 4093))
def test_any_bits_decode_or_are_refused(bits: int) -> None:
    """No pattern ends in another error; the spread covers every encoding's first bits."""
    word = bits * 2654435761 & 0xFFFFFFFF
    try:
        decode(struct.pack("<IIII", word, word ^ 0x5A5A5A5A, 0, 0) + END)
    except Problem as problem:
        assert problem.code in ("unknown_instruction", "branch_target")


def test_a_branch_into_the_middle_of_an_instruction_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        decode(bytes.fromhex("010082bf") + struct.pack("<II", 0x7E0202FF, 7) + END)
    assert caught.value.code == "branch_target"


def test_a_code_object_gives_its_kernel_and_code() -> None:
    parsed = elf.read(code_object(Parts(CODE, lds=1024)))
    kernel = parsed.kernel("ours")
    assert parsed.code(kernel) == CODE and parsed.version == 6 and parsed.undefined == ()
    assert (kernel.lds, kernel.kernarg_size, kernel.wavefront, kernel.user_sgprs) == (1024, 48, 64, 2)
    assert kernel.group_id == (True, False, False)


@pytest.mark.parametrize(("change", "code"), [
    ({"machine": 62}, "wrong_arch"), ({"flags": 0x4C}, "wrong_arch"), ({"osabi": 0}, "wrong_arch"), ({"abi": 2},
    "code_object_version"),
    ({"metadata": {".cluster_dims": 2}}, "metadata_unknown"), ({"metadata": {".args": [{".offset": 0, ".size": 8,
    ".value_kind": "hidden_x"}]}},
     "metadata_unknown"),
])  # fmt: skip
def test_a_code_object_of_another_kind_is_refused_by_name(change: dict[str, object], code: str) -> None:
    with pytest.raises(Problem) as caught:
        elf.read(code_object(Parts(CODE, **change)))  # type: ignore[arg-type]
    assert caught.value.code == code and caught.value.exit_code == Exit.REFUSED


@pytest.mark.parametrize(("change", "code"), [
    ({"undefined": ("__ockl_get_num_groups",)}, "undefined_symbol"), ({"scratch": 16}, "scratch"), ({"user_sgprs": 6},
    "start_state"),
    ({"metadata": {".wavefront_size": 32}}, "wavefront"),
    ({"descriptor": {"properties": 0xA}}, "start_state"), ({"descriptor": {"properties": 0}}, "start_state"),
    ({"descriptor": {"preload": 2}}, "start_state"), ({"descriptor": {"rsrc2": 0x485}}, "start_state"),
    ({"descriptor": {"rsrc1": 0xAF10C1}}, "start_state"), ({"descriptor": {"rsrc1": 0xA300C1}}, "start_state"),
    ({"descriptor": {"rsrc1": 0x2F00C1}}, "start_state"), ({"descriptor": {"rsrc1": 0x4AF00C1}}, "start_state"),
    ({"descriptor": {"rsrc3": 0x10003}}, "start_state"), ({"vgprs": 8}, "registers"),
    ({"descriptor": {"rsrc1": 0xAF0001}}, "registers"),
])  # fmt: skip
def test_a_kernel_that_the_machine_cannot_start_is_refused_by_name(change: dict[str, object], code: str) -> None:
    with pytest.raises(Problem) as caught:
        machine.prepare(code_object(Parts(CODE, **change)), "ours")  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8, 0.95, 0.999])
def test_a_truncated_code_object_is_refused(share: float) -> None:
    whole = code_object(Parts(CODE))
    with pytest.raises(Problem) as caught:
        elf.read(whole[: int(len(whole) * share)])
    assert caught.value.code in ("elf_truncated", "not_elf", "metadata")


@pytest.mark.parametrize(("at", "value", "code"), [(40, 1 << 63, "elf_truncated"), (40, 1 << 40, "elf_truncated")],
                         ids=["beyond what a file can hold", "beyond the file"])  # fmt: skip
def test_a_section_table_that_is_nowhere_is_refused(at: int, value: int, code: str) -> None:
    data = bytearray(code_object(Parts(CODE)))
    struct.pack_into("<Q", data, at, value)
    with pytest.raises(Problem) as caught:
        elf.read(bytes(data))
    assert caught.value.code == code


def test_a_descriptor_that_no_section_holds_is_refused() -> None:
    """Found by spoiling bytes at random: it ended in a traceback, as StopIteration does in a generator."""
    data = code_object(Parts(CODE))
    where = struct.pack("<QQ", 0x800, 64)  # the value and size of the symbol ours.kd
    assert data.count(where) == 1
    with pytest.raises(Problem) as caught:
        elf.read(data.replace(where, struct.pack("<QQ", 0x7FFFFF, 64)))
    assert caught.value.code == "metadata" and "no section holds" in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_a_code_object_with_flipped_bytes_is_read_or_refused(seed: int) -> None:
    import numpy as np

    rng = np.random.default_rng(seed)
    data = bytearray(code_object(Parts(CODE)))
    for at in rng.integers(0, len(data), 3):
        data[at] ^= int(rng.integers(1, 256))
    try:
        parsed = elf.read(bytes(data))
        decode(parsed.code(parsed.kernels[0]), parsed.kernels[0].entry)
    except Problem as problem:
        assert problem.exit_code in (Exit.REFUSED, Exit.CHECK_FAILED)


def test_a_kernel_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(Problem) as caught:
        elf.read(code_object(Parts(CODE))).kernel("theirs")
    assert caught.value.code == "no_kernel" and "ours" in str(caught.value)


# Every pattern is a known one of encodings.txt with one field changed to what gfx950 does not define, or no source
# that we have does.
UNDEFINED = {
    "a carry in a vector register": ("D1000001 04120702", "comes from scalar registers"),
    "a lane's number in a vector register": ("D2890001 00020702", "a lane's number is scalar"),
    "a lane read from a scalar register": ("D2890001 00000602", "one side is a vector register"),
    "a wide shift by 5": ("D2080002 04190B04", "a constant from 0 to 4"),
    "a wide shift by a register": ("D2080002 04180704", "a constant from 0 to 4"),
    "a pair from an odd vector register": ("D2080003 04190504", "from an odd one"),
    "four from the last pair of vector registers": ("E05C1000 8001FE01", "4 vector registers from 254"),
    "a pair from an odd scalar register": ("BE850103", "2 scalar registers from 3"),
    "four from the last pair of scalar registers": ("C00A1900 00000000", "4 scalar registers from 100"),
    "an eight-word load to a pair's place": ("C00E0080 00000000", "8 scalar registers from 2"),
    "a literal behind a buffer access": ("E0501000 FF010001", "a literal does not exist"),
    "a literal behind SDWA": ("320202F9 068606FF", "a literal does not exist"),
    "a sum that starts from scalar registers": ("D3AC0000 00022B14 D3AD0800 80121904", "a sum starts from"),
    "a modifier of a scale": ("D3AC2000 00022B14 D3AD0800 84421904", "scales must be"),
    "the high half of a constant": ("D3B14002 18010104", "a constant's high half"),
    "a packed move of a constant's high half": ("D3B35002 18010104", "a constant's high half"),
    "a literal into an AGPR": ("D3D94001 180000FF", "a literal does not exist"),
    "an AGPR move from a scalar register": ("7E02A402", "must be a vector register"),
    "a 64-bit move through DPP": ("7E0470FA FF015004", "DPP is not known for this opcode"),
    "a fused multiply-add through SDWA": ("760202F9 06860602", "SDWA is not known"),
    "op_sel on a source of a conversion": ("D2A20801 00020702", "op_sel is not known"),
    "neg on the exponent of v_ldexp_f32": ("D2880001 40020702", "neg or abs on integers"),
}


@pytest.mark.parametrize(("bits", "why"), UNDEFINED.values(), ids=UNDEFINED)
def test_what_gfx950_does_not_define_is_refused(bits: str, why: str) -> None:
    with pytest.raises(Problem) as caught:
        decode_one(b"".join(struct.pack("<I", int(w, 16)) for w in bits.split()) + bytes(8), 0, 0)
    assert caught.value.code == "unknown_instruction" and why in str(caught.value)


@pytest.mark.parametrize(("bits", "why"), [
    ("E05D1010 80010001", "also moves the place in LDS"),
    ("D1260001 0001E502", "a float constant as a 16-bit integer"),
])  # fmt: skip
def test_what_is_read_but_not_known_is_not_executed(bits: str, why: str) -> None:
    """The linter may read it; the machine refuses before anything runs."""
    i = decode_one(b"".join(struct.pack("<I", int(w, 16)) for w in bits.split()), 0, 0)
    with pytest.raises(Problem) as caught:
        lower([i])
    assert caught.value.code == "unknown_instruction" and why in str(caught.value)
