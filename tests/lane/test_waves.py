"""Opcodes that see the whole wave: lane exchange, DPP, SDWA, packed pairs, matrix products; and all of memory."""

from __future__ import annotations

from pathlib import Path

import definitions as d
import numpy as np
import pytest
from bench import A, Bench, V, instruction, program
from kernel_lane import machine
from kernel_lane.decode import Dpp, Instruction, Sdwa
from kernel_lane.isa import OPCODES
from kernel_lane.machine import Buffer, Start

LANES = np.arange(64)
ALL = (1 << 64) - 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_wave_and_memory_opcode_is_named_in_this_file() -> None:
    text = Path(__file__).read_text() + (Path(__file__).parent / "test_opcodes.py").read_text()
    names = [o.name for o in OPCODES if o.kind in ("wave", "memory")]
    assert [n for n in names if n not in text and not n.startswith(_FAMILIES)] == []


# Families whose members come from lists in this file: every size by its suffix.
_FAMILIES = ("buffer_load_", "buffer_store_", "global_load_", "global_store_", "global_atomic_", "ds_read",
"ds_write", "s_load_dword",
             "v_permlane")  # fmt: skip


def test_readfirstlane_takes_the_first_active_lane_and_readlane_any(bench: Bench) -> None:
    bench.set_row(V + 1, LANES + 100)
    bench.exec = 0b1111000
    bench.step(instruction("v_readfirstlane_b32", src=(V + 1,), dst=5))
    assert bench.s[5] == 103
    bench.exec = 0
    bench.step(instruction("v_readfirstlane_b32", src=(V + 1,), dst=5))
    assert bench.s[5] == 100
    bench.s[6] = 64 + 41
    bench.step(instruction("v_readlane_b32", src=(V + 1, 6), dst=7))
    assert bench.s[7] == 141
    bench.s[8] = 77
    bench.step(instruction("v_writelane_b32", src=(8, 6), dst=V + 1))
    assert bench.get_row(V + 1) == [77 if n == 41 else n + 100 for n in range(64)]


@pytest.mark.parametrize("width", [16, 32])
def test_permlane_swap_exchanges_odd_rows_of_the_first_with_even_rows_of_the_second(bench: Bench, width: int) -> None:
    bench.set_row(V + 1, LANES)
    bench.set_row(V + 2, LANES + 100)
    bench.exec = 5  # ignored
    bench.step(instruction(f"v_permlane{width}_swap_b32", src=(V + 2,), dst=V + 1))
    first, second = bench.get_row(V + 1), bench.get_row(V + 2)
    for lane in range(64):
        if lane // width % 2:
            assert first[lane] == 100 + lane - width
        else:
            assert first[lane] == lane
            assert second[lane] == lane + width
        if lane // width % 2:
            assert second[lane] == 100 + lane


_DPP = {
    0x0B1: lambda n: n ^ 1, 0x101: lambda n: n + 1 if n % 16 < 15 else None, 0x111: lambda n: n - 1 if n % 16 else None,
    0x118: lambda n: n - 8 if n % 16 >= 8 else None, 0x123: lambda n: n // 16 * 16 + (n - 3) % 16,
    0x140: lambda n: n // 16 * 16 + 15 - n % 16,
    0x141: lambda n: n // 8 * 8 + 7 - n % 8, 0x142: lambda n: n // 16 * 16 - 1 if n >= 16 else None,
    0x143: lambda n: 31 if n >= 32 else None, 0x155: lambda n: n // 16 * 16 + 5,
}  # fmt: skip


@pytest.mark.parametrize("control", _DPP, ids=hex)
@pytest.mark.parametrize("bound", [False, True], ids=["kept", "zero"])
def test_dpp_moves_lanes_as_its_control_says(bench: Bench, control: int, bound: bool) -> None:
    rng = np.random.default_rng(control)
    execute = int(rng.integers(0, 1 << 64, dtype=np.uint64))
    row_mask, bank_mask = (0xF, 0xF) if control % 2 else (0xA, 0x7)
    bench.set_row(V + 1, LANES + 500)
    bench.set_row(V + 2, LANES * 1000)
    bench.set_row(V + 3, [9] * 64)
    bench.exec = execute
    bench.step(
        instruction(
            "v_add_u32", form="dpp", src=(V + 1, V + 2), dst=V + 3, dpp=Dpp(control, row_mask, bank_mask, bound)
        )
    )
    have = bench.get_row(V + 3)
    for lane in range(64):
        source = _DPP[control](lane)
        usable = source is not None and execute >> source & 1
        want = (source + 500 if usable else 0) + lane * 1000
        written = (
            execute >> lane & 1 and row_mask >> lane // 16 & 1 and bank_mask >> lane % 16 // 4 & 1 and (usable or bound)
        )
        assert have[lane] == (want if written else 9), lane


@pytest.mark.parametrize("unused", [0, 1, 2], ids=["pad", "sext", "preserve"])
@pytest.mark.parametrize("select", range(7))
def test_sdwa_selects_extends_and_places(bench: Bench, unused: int, select: int) -> None:
    rng = np.random.default_rng(select)
    a, b, old = (rng.integers(0, 1 << 32, 64, dtype=np.uint64) for _ in range(3))
    for code, row in ((V + 1, a), (V + 2, b), (V + 3, old)):
        bench.set_row(code, row)
    bench.exec = ALL
    bench.step(
        instruction(
            "v_add_u32",
            form="sdwa",
            src=(V + 1, V + 2),
            dst=V + 3,
            sdwa=Sdwa(select, unused, select, 6 - select, sext0=True),
        )
    )

    def part(x: int, s: int, *, extend: bool) -> int:
        if s == 6:
            return x
        size, at = (8, 8 * s) if s < 4 else (16, 16 * (s - 4))
        field = x >> at & (1 << size) - 1
        return d.signed(field, size) & d.M32 if extend else field

    for lane in range(64):
        total = (part(int(a[lane]), select, extend=True) + part(int(b[lane]), 6 - select, extend=False)) & d.M32
        if select == 6:
            want = total
        else:
            size, at = (8, 8 * select) if select < 4 else (16, 16 * (select - 4))
            field = total & (1 << size) - 1
            if unused == 2:
                want = int(old[lane]) & ~((1 << size) - 1 << at) | field << at
            elif unused == 1:
                want = (d.signed(field, size) << at) & d.M32
            else:
                want = field << at
        assert bench.get_row(V + 3)[lane] == want


@pytest.mark.parametrize("name", ["v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32", "v_pk_mov_b32"])
@pytest.mark.parametrize("selectors", [(0, 7), (7, 0), (2, 5), (1, 1)])
def test_packed_halves_take_the_registers_that_their_selectors_name(
    bench: Bench, name: str, selectors: tuple[int, int]
) -> None:
    rng = np.random.default_rng(len(name))
    count = 3 if "fma" in name else 2
    operands = [[rng.integers(0x3E000000, 0x42000000, 64, dtype=np.uint64) for _ in range(2)] for _ in range(count)]
    for n, (low, high) in enumerate(operands):
        bench.set_row(V + 4 * n, low)
        bench.set_row(V + 4 * n + 1, high)
    bench.exec = ALL
    bench.step(
        instruction(
            name,
            form="",
            src=tuple(V + 4 * n for n in range(count)),
            dst=V + 20,
            opsel=selectors[0],
            opsel_hi=selectors[1],
        )
    )
    run = {"v_pk_fma_f32": d.FMA, "v_pk_mul_f32": d.MUL, "v_pk_add_f32": d.ADD}
    for half in (0, 1):
        chosen = selectors[0] if name == "v_pk_mov_b32" else selectors[half]  # op_sel_hi means nothing to the move
        picked = [operands[n][chosen >> n & 1] for n in range(count)]
        for lane in range(64):
            row = [int(p[lane]) for p in picked]
            want = row[half] if name == "v_pk_mov_b32" else run[name](*row)
            assert bench.get_row(V + 20 + half)[lane] == want


def fp8_number(code: int) -> float:
    e, m = code >> 3 & 15, code & 7
    size = float("nan") if code & 127 == 127 else (8 + m) / 8 * 2.0 ** (e - 7) if e else m / 8 * 2.0**-6
    return -size if code & 128 else size


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("formats", [(0, 4), (4, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("byte", range(4))
def test_the_scaled_matrix_product_v_mfma_scale_f32_16x16x128_f8f6f4(
    bench: Bench, formats: tuple[int, int], byte: int
) -> None:
    """Fills the registers from two matrices by the layout's words, and multiplies the matrices in numpy."""
    rng = np.random.default_rng(byte + formats[0])
    numbers, scales = [], []
    for side, form in enumerate(formats):
        codes = rng.integers(0, 16 if form else 256, (16, 128))
        codes[codes & 127 == 127] = 3 if not form else codes[codes & 127 == 127]
        value = np.vectorize(lambda c, f=form: (-1.0 if c & 8 else 1.0) * FP4[c & 7] if f else fp8_number(c))(codes)
        exponents = rng.integers(110, 135, (16, 4))
        for lane in range(64):
            row, q = lane % 16, lane // 16
            if form:
                for k in range(32):
                    register = V + 20 * side + k // 8
                    old = int(bench.v[register - V, lane]) if k % 8 else 0
                    bench.v[register - V, lane] = old | int(codes[row, 32 * q + k]) << 4 * (k % 8)
            else:
                for k in range(32):
                    column = 16 * q + k if k < 16 else 64 + 16 * q + k - 16
                    register = V + 20 * side + k // 4
                    old = int(bench.v[register - V, lane]) if k % 4 else 0
                    bench.v[register - V, lane] = old | int(codes[row, column]) << 8 * (k % 4)
            bench.v[50 + side, lane] = int(exponents[row, q]) << 8 * byte
        numbers.append(value * np.repeat(2.0 ** (exponents - 127.0), 32, axis=1))
        scales.append(exponents)
    c = rng.integers(-4, 4, (16, 16)).astype(np.float32)
    for lane in range(64):
        for r in range(4):
            bench.v[60 + r, lane] = d.float_bits(float(c[4 * (lane // 16) + r, lane % 16]))
    bench.exec = 1  # ignored
    bench.step(instruction("v_mfma_scale_f32_16x16x128_f8f6f4", form="", src=(V, V + 20, V + 60, V + 50, V + 51),
    dst=A + 8,
                           opsel=(byte & 1) * 3, opsel_hi=(byte >> 1) * 3, formats=formats))  # fmt: skip
    want = (numbers[0] @ numbers[1].T + c).astype(np.float32)
    have = np.array(
        [[d.to_float(int(bench.v[256 + 8 + r % 4, 16 * (r // 4) + n])) for n in range(16)] for r in range(16)],
        np.float32,
    )
    assert np.array_equal(have, want)


# ---- memory
# ------------------------------------------------------------------------------------------------------------
END = instruction("s_endpgm", form="")
WAIT = instruction("s_waitcnt", form="", imm=0)


def load_address(register: int, at: int) -> list[Instruction]:
    """v[register:register+1] = pointer at kernarg + at, plus 16 bytes per lane; s[10:11] keeps the pointer."""
    return [
        instruction("s_load_dwordx2", form="", src=(0,), dst=10, offset=at),
        WAIT,
        instruction("v_lshlrev_b32", src=(132, V), dst=V + 200),
        instruction("v_mov_b32", src=(11,), dst=V + register + 1),
        instruction("v_add_co_u32", src=(10, V + 200), dst=V + register, sdst=20),
        instruction("v_addc_co_u32", src=(128, V + register + 1, 20), dst=V + register + 1, sdst=20),
    ]


def execute(body: list[Instruction], *buffers: Buffer, lds: int = 0, threads: int = 64) -> machine.Outcome:
    kernarg = b"".join(b.address.to_bytes(8, "little") for b in buffers).ljust(64, b"\0")
    code = program([*body, WAIT, END], lds=lds)
    return machine.run([Start(code, (1, 1, 1), (threads, 1, 1), kernarg)], buffers)


def spread(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


SIZES = {
    "ubyte": 1,
    "sbyte": 1,
    "ushort": 2,
    "sshort": 2,
    "byte": 1,
    "short": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}


@pytest.mark.parametrize("kind", ["ubyte", "sbyte", "ushort", "sshort", "dword", "dwordx2", "dwordx3", "dwordx4"])
@pytest.mark.parametrize("route", ["global", "flat", "buffer", "global with scalar base"])
def test_a_load_brings_its_bytes_and_extends_them(kind: str, route: str) -> None:
    size, source, out = SIZES[kind], Buffer("in", spread(1040)), Buffer("out", np.zeros(1024, np.uint8))
    words = max(1, size // 4)
    body = load_address(2, 0)
    if route == "buffer":
        body += [instruction("s_mov_b32", form="", src=(193,), dst=12), instruction("s_mov_b32", form="", src=(255,),
        dst=13, literal=0x27000),
                 instruction(f"buffer_load_{kind}", form="", src=(V + 200, V + 30, 10 - 2, 128), dst=V + 30, offset=12,
                             flags=frozenset({"offen"}))]  # fmt: skip
        # the descriptor must start at a multiple of four: s[8:11] = base, records, word 3
        body = [*body[:-3], instruction("s_mov_b64", form="", src=(10,), dst=8), instruction("s_mov_b32", form="",
        src=(193,), dst=10),
                instruction("s_mov_b32", form="", src=(255,), dst=11, literal=0x27000), body[-1]]  # fmt: skip
    elif route == "global with scalar base":
        body += [instruction(f"global_load_{kind}", form="", src=(V + 200, -1, 10), dst=V + 30, offset=12)]
    else:
        flags = frozenset({"flat"}) if route == "flat" else frozenset()
        body += [instruction(f"global_load_{kind}", form="", src=(V + 2, -1, -1), dst=V + 30, offset=12, flags=flags)]
    body += [WAIT, *load_address(4, 8)]
    body += [instruction(f"global_store_dword{'' if words == 1 else f'x{words}'}", form="", src=(V + 4, V + 30, -1))]
    outcome = execute(body, source, out)
    assert outcome.stop == "" and outcome.findings == []
    for lane in range(64):
        raw = source.data[16 * lane + 12 : 16 * lane + 12 + size].tobytes()
        value = int.from_bytes(raw, "little", signed=kind.startswith("s"))
        want = (value & d.M32).to_bytes(4, "little") if size < 4 else raw
        assert out.data[16 * lane : 16 * lane + len(want)].tobytes() == want


@pytest.mark.parametrize("kind", ["byte", "short", "dword", "dwordx2", "dwordx3", "dwordx4"])
def test_a_store_writes_its_bytes_and_no_others(kind: str) -> None:
    size, out = SIZES[kind], Buffer("out", np.full(1024, 0xEE, np.uint8))
    body = load_address(2, 0)
    body += [instruction("v_mul_u32_u24", src=(V, 255), dst=V + 30 + n, literal=0x10307 + n) for n in range(4)]
    body += [instruction(f"global_store_{kind}", form="", src=(V + 2, V + 30, -1), offset=0)]
    assert execute(body, out).findings == []
    for lane in range(64):
        words = b"".join((lane * (0x10307 + n)).to_bytes(4, "little") for n in range(4))
        assert out.data[16 * lane : 16 * lane + 16].tobytes() == words[:size] + b"\xee" * (16 - size)


@pytest.mark.parametrize("name", list(d.ATOMIC))
@pytest.mark.parametrize("returns", [False, True], ids=["plain", "returning"])
def test_an_atomic_changes_memory_and_returns_the_old_value(name: str, returns: bool) -> None:
    size = 8 if name.endswith("_x2") else 4
    floats = name in ("add_f32", "pk_add_bf16")
    rng = np.random.default_rng(len(name))
    draw = (lambda: rng.integers(0x3F803F80, 0x40004000, 256, dtype=np.uint32)) if floats else (
        lambda: rng.integers(0, 1 << 32, 256, dtype=np.uint32))  # fmt: skip
    memory, operand = Buffer("memory", draw().view(np.uint8).copy()), Buffer("operand", draw().view(np.uint8).copy())
    out, before = Buffer("out", np.zeros(1024, np.uint8)), memory.data.copy()
    wide = "x2" if size == 8 else ""
    flags = frozenset({"sc0"}) if returns else frozenset()
    body = [*load_address(2, 0), *load_address(4, 8), instruction(f"global_load_dword{wide}", form="", src=(V + 4, -1,
    -1), dst=V + 30), WAIT,
            instruction(f"global_atomic_{name}", form="", src=(V + 2, V + 30, -1), dst=V + 32 if returns else -1,
            flags=flags), WAIT,
            *load_address(6, 16)]  # fmt: skip
    if returns:
        body += [instruction(f"global_store_dword{wide}", form="", src=(V + 6, V + 32, -1))]
    assert execute(body, memory, operand, out).stop == ""
    for lane in range(64):
        place = slice(16 * lane, 16 * lane + size)
        old, x = (int.from_bytes(a[place].tobytes(), "little") for a in (before, operand.data))
        assert int.from_bytes(memory.data[place].tobytes(), "little") == d.ATOMIC[name](old, x)
        assert int.from_bytes(out.data[place].tobytes(), "little") == (old if returns else 0)


def test_scalar_loads_of_every_width_bring_consecutive_words() -> None:
    source, out = Buffer("in", spread(128)), Buffer("out", np.zeros(1024, np.uint8))
    for words in (1, 2, 4, 8, 16):
        body = [*load_address(2, 8), instruction("s_load_dwordx2", form="", src=(0,), dst=10, offset=0), WAIT,
                instruction(f"s_load_dword{'' if words == 1 else f'x{words}'}", form="", src=(10,), dst=40, offset=8),
                WAIT]  # fmt: skip
        body += [instruction("v_mov_b32", src=(40 + n,), dst=V + 30) for n in [words - 1]]
        body += [instruction("global_store_dword", form="", src=(V + 2, V + 30, -1))]
        execute(body, source, out)
        assert out.data[:4].tobytes() == source.data[8 + 4 * words - 4 : 8 + 4 * words].tobytes()


LDS_WIDTHS = [("b8", "u8", 1), ("b16", "u16", 2), ("b8", "i8", 1), ("b16", "i16", 2), ("b32", "b32", 4), ("b64",
"b64", 8), ("b96", "b96", 12),
              ("b128", "b128", 16)]  # fmt: skip


@pytest.mark.parametrize(("write", "read", "size"), LDS_WIDTHS)
def test_what_is_written_to_lds_is_read_back(write: str, read: str, size: int) -> None:
    out = Buffer("out", np.zeros(1024, np.uint8))
    words = max(1, size // 4)
    body = load_address(2, 0)
    body += [instruction("v_mul_u32_u24", src=(V, 255), dst=V + 30 + n, literal=0x8193 + 77 * n) for n in range(4)]
    body += [instruction(f"ds_write_{write}", form="", src=(V + 200, V + 30, -1), offset=32), WAIT,
             instruction(f"ds_read_{read}", form="", src=(V + 200, -1, -1), dst=V + 40, offset=32), WAIT,
             instruction(f"global_store_dword{'' if words == 1 else f'x{words}'}", form="", src=(V + 2, V + 40,
             -1))]  # fmt: skip
    assert execute(body, out, lds=2048).findings == []
    for lane in range(64):
        raw = b"".join((lane * (0x8193 + 77 * n)).to_bytes(4, "little") for n in range(4))[:size]
        want = (int.from_bytes(raw, "little", signed=read[0] == "i") & d.M32).to_bytes(4, "little") if size < 4 else raw
        assert out.data[16 * lane : 16 * lane + len(want)].tobytes() == want


@pytest.mark.parametrize(
    ("suffix", "size", "stride"), [("2_b32", 4, 1), ("2_b64", 8, 1), ("2st64_b32", 4, 64), ("2st64_b64", 8, 64)]
)
def test_two_offset_lds_accesses_count_in_elements(suffix: str, size: int, stride: int) -> None:
    """ds_write2, ds_read2 and their st64 forms: offset0 and offset1 in units of the element (times 64)."""
    out = Buffer("out", np.zeros(2048, np.uint8))
    words = size // 4
    body = load_address(2, 0)
    body += [instruction("v_mul_u32_u24", src=(V, 255), dst=V + 30 + n, literal=0x8193 + 77 * n) for n in range(4)]
    body += [instruction("v_lshlrev_b32", src=(130 + words, V), dst=V + 201)]
    body += [instruction(f"ds_write{suffix}", form="", src=(V + 201, V + 30, V + 32), offset=1,
    offset1=70 if stride == 1 else 9), WAIT,
             instruction(f"ds_read{suffix}", form="", src=(V + 201, -1, -1), dst=V + 40, offset=1,
             offset1=70 if stride == 1 else 9), WAIT,
             instruction(f"ds_read_b{8 * size}", form="", src=(V + 201, -1, -1), dst=V + 44, offset=size * stride),
             WAIT,
             instruction(f"global_store_dwordx{2 * words}" if words == 2 else "global_store_dwordx2", form="",
             src=(V + 2, V + 40, -1))]  # fmt: skip
    assert execute(body, out, lds=16384).stop == ""
    for lane in range(64):
        rows = [(lane * (0x8193 + 77 * n)).to_bytes(4, "little") for n in range(4)]
        second = rows[2] + (rows[3] if words == 2 else b"")
        have = out.data[16 * lane : 16 * lane + 2 * size].tobytes()
        assert have[size:] == second
        if stride == 64:
            assert have[:size] == b"".join(rows[:words])


@pytest.mark.parametrize(("name", "operate"), [("ds_add_u32", lambda a, b: a + b), ("ds_max_u32", max),
("ds_add_rtn_u32", lambda a, b: a + b),
                                               ("ds_max_rtn_u32", max)])  # fmt: skip
def test_lds_atomics_meet_lane_after_lane(name: str, operate) -> None:  # type: ignore[no-untyped-def]
    out = Buffer("out", np.zeros(1024, np.uint8))
    body = [*load_address(2, 0), instruction("v_mov_b32", src=(128,), dst=V + 50), instruction("v_mov_b32", src=(135,
    ), dst=V + 51),
            instruction("ds_write_b32", form="", src=(V + 50, V + 51, -1)), WAIT,
            instruction(name, form="", src=(V + 50, V, -1), dst=V + 52 if "rtn" in name else -1), WAIT,
            instruction("ds_read_b32", form="", src=(V + 50, -1, -1), dst=V + 53), WAIT,
            instruction("global_store_dwordx2", form="", src=(V + 2, V + 52, -1))]  # fmt: skip
    execute(body, out, lds=1024)
    total = 7
    for lane in range(64):
        if "rtn" in name:
            assert int.from_bytes(out.data[16 * lane : 16 * lane + 4].tobytes(), "little") == total
        total = operate(total, lane)
    assert int.from_bytes(out.data[4:8].tobytes(), "little") == total


def test_ds_swizzle_b32_and_ds_bpermute_b32_fetch_from_other_lanes(bench: Bench) -> None:
    out = Buffer("out", np.zeros(1024, np.uint8))
    body = [*load_address(2, 0), instruction("v_add_u32", src=(255, V), dst=V + 30, literal=1000),
            instruction("ds_swizzle_b32", form="", src=(V + 30, -1, -1), dst=V + 40, imm=0x041F),
            instruction("v_mul_u32_u24", src=(255, V), dst=V + 31, literal=12),
            instruction("ds_bpermute_b32", form="", src=(V + 31, V + 30, -1), dst=V + 41), WAIT,
            instruction("global_store_dwordx2", form="", src=(V + 2, V + 40, -1))]  # fmt: skip
    execute(body, out)
    have = out.data.view(np.uint32).reshape(64, 4)
    assert have[:, 0].tolist() == [1000 + (n ^ 1) for n in range(64)]
    assert have[:, 1].tolist() == [1000 + 3 * n % 64 for n in range(64)]


def test_a_buffer_load_to_lds_lands_at_m0_plus_lane_even_above_64_kib() -> None:
    source, out = Buffer("in", spread(1024)), Buffer("out", np.zeros(1024, np.uint8))
    body = [*load_address(2, 8), instruction("s_load_dwordx2", form="", src=(0,), dst=8, offset=0), WAIT,
            instruction("s_mov_b32", form="", src=(193,), dst=10), instruction("s_mov_b32", form="", src=(255,),
            dst=11, literal=0x27000),
            instruction("s_mov_b32", form="", src=(255,), dst=124, literal=100_000 // 16 * 16),
            instruction("buffer_load_dwordx4", form="", src=(V + 200, -1, 8, 128), flags=frozenset({"offen", "lds"})),
            WAIT,
            instruction("v_add_u32", src=(124, V + 200), dst=V + 60),
            instruction("ds_read_b128", form="", src=(V + 60, -1, -1), dst=V + 40), WAIT,
            instruction("global_store_dwordx4", form="", src=(V + 2, V + 40, -1))]  # fmt: skip
    outcome = execute(body, source, out, lds=120_000)
    assert outcome.stop == ""
    assert out.data.tobytes() == source.data.tobytes()


def test_a_buffer_descriptor_bounds_its_reads_to_zero_and_drops_writes() -> None:
    source, out = Buffer("in", spread(1024)), Buffer("out", np.zeros(1024, np.uint8))
    body = [*load_address(2, 8), instruction("s_load_dwordx2", form="", src=(0,), dst=8, offset=0), WAIT,
            instruction("s_mov_b32", form="", src=(255,), dst=10, literal=100), instruction("s_mov_b32", form="",
            src=(255,), dst=11, literal=0x27000),
            instruction("buffer_load_dwordx2", form="", src=(V + 200, V + 40, 8, 128), dst=V + 40,
            flags=frozenset({"offen"})), WAIT,
            instruction("buffer_store_dword", form="", src=(V + 200, V + 41, 8, 128), flags=frozenset({"offen"})),
            instruction("global_store_dwordx2", form="", src=(V + 2, V + 40, -1))]  # fmt: skip
    before = source.data.copy()
    execute(body, source, out)
    for lane in range(64):
        for word in range(2):
            at = 16 * lane + 4 * word
            want = before[at : at + 4].tobytes() if at + 4 <= 100 else bytes(4)
            assert out.data[at : at + 4].tobytes() == want
    assert source.data[100:].tobytes() == before[100:].tobytes()


def test_buffer_wbl2_and_buffer_inv_change_no_data() -> None:
    out = Buffer("out", spread(1024))
    before = out.data.copy()
    body = [
        instruction("buffer_wbl2", form="", flags=frozenset({"sc1"})),
        instruction("buffer_inv", form="", flags=frozenset({"sc1"})),
    ]
    assert execute(body, out).stop == ""
    assert np.array_equal(out.data, before)
