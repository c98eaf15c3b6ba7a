"""Small programs of ours on the machine: schedules, late completion, and every planted fault seen with its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from bench import V, instruction, program
from kernel_lane import machine
from kernel_lane.decode import Instruction
from kernel_lane.judge import FAULTS, MEANINGS
from kernel_lane.machine import Buffer, Outcome, Start, Sync
from kernel_lane.machine.schedule import Schedule
from megamoe_atom.problem import Problem

END = instruction("s_endpgm", form="")
BARRIER = instruction("s_barrier", form="")
WAIT = instruction("s_waitcnt", form="", imm=0)
WAIT_VM = instruction("s_waitcnt", form="", imm=0x0F70)
RELEASE = [instruction("buffer_wbl2", form="", flags=frozenset({"sc1"})), WAIT_VM]
SYSTEM = frozenset({"sc0", "sc1"})


def pointers() -> list[Instruction]:
    """s[4:5] = data, s[6:7] = flag, s[8:9] = out; v1 = 4 * lane; v2 = 0."""
    return [
        instruction("s_load_dwordx2", form="", src=(0,), dst=4, offset=0),
        instruction("s_load_dwordx4", form="", src=(0,), dst=8, offset=8),
        WAIT,
        instruction("s_mov_b64", form="", src=(8,), dst=6),
        instruction("s_mov_b64", form="", src=(10,), dst=8),
        instruction("v_lshlrev_b32", src=(130, V), dst=V + 1),
        instruction("v_mov_b32", src=(128,), dst=V + 2),
    ]


def store(value: int, pointer: int, address: int = V + 1, **more: object) -> Instruction:
    return instruction("global_store_dword", form="", src=(address, value, pointer), **more)


def load(to: int, pointer: int, address: int = V + 1, flags: frozenset[str] = frozenset()) -> Instruction:
    return instruction("global_load_dword", form="", src=(address, -1, pointer), dst=to, flags=flags)


def publisher(*, wait: bool) -> list[Instruction]:
    """Writes 1000 + lane to data, then 1 to the flag; without the wait nothing orders the two."""
    return [
        *pointers(),
        instruction("v_add_u32", src=(255, V), dst=V + 3, literal=1000),
        store(V + 3, 4),
        *(RELEASE if wait else []),
        instruction("v_mov_b32", src=(129,), dst=V + 4),
        store(V + 4, 6, V + 2, flags=SYSTEM),
        END,
    ]


def consumer() -> list[Instruction]:
    """Polls the flag, then copies data to out."""
    start = len(pointers())
    return [
        *pointers(),
        load(V + 5, 6, V + 2, SYSTEM),
        WAIT,
        instruction("v_readfirstlane_b32", src=(V + 5,), dst=20),
        instruction("s_cmp_eq_u32", form="", src=(20, 128)),
        instruction("s_cbranch_scc1", form="", target=start),
        load(V + 6, 4),
        WAIT,
        store(V + 6, 8),
        END,
    ]


class Bufs:
    def __init__(self) -> None:
        self.data = Buffer("data", np.zeros(1024, np.uint8), written=np.zeros(1024, np.uint8))
        self.flag = Buffer("flag", np.zeros(4, np.uint8))
        self.out = Buffer("out", np.zeros(1024, np.uint8))

    @property
    def all(self) -> list[Buffer]:
        return [self.data, self.flag, self.out]

    @property
    def kernarg(self) -> bytes:
        return b"".join(b.address.to_bytes(8, "little") for b in self.all).ljust(64, b"\0")

    @property
    def copied(self) -> bool:
        return self.out.data.view(np.uint32)[:64].tolist() == [1000 + n for n in range(64)]


def run(
    *codes: machine.Code,
    schedule: str = "order",
    bufs: Bufs | None = None,
    threads: int = 64,
    grid: int = 1,
    **more: object,
) -> tuple[Outcome, Bufs]:
    bufs = bufs or Bufs()
    starts = [
        Start(c, (grid, 1, 1), (threads, 1, 1), bufs.kernarg, rank, name=f"k{rank}") for rank, c in enumerate(codes)
    ]
    options = Schedule.parse(schedule)
    options = dataclasses.replace(options, **{"limit": 200_000} | more)  # type: ignore[arg-type]
    sync = None
    if options.needs_sync:
        sync = Sync()
        fresh = Bufs()
        again = [dataclasses.replace(s, kernarg=fresh.kernarg) for s in starts]
        machine.run(again, fresh.all, Schedule(limit=200_000), sync=sync, discover=True)
    return machine.run(starts, bufs.all, options, sync=sync), bufs


def kinds(outcome: Outcome) -> set[str]:
    return {f.kind for f in outcome.findings}


GOOD, HASTY, READER = program(publisher(wait=True)), program(publisher(wait=False)), program(consumer())


@pytest.mark.parametrize("schedule", ["order", "random@1", "random@2", "frozen", "late@1", "late@2", "scatter@3",
"flag@1", "stall@1", "slow@5",
                                      "late:fifo+@1", "late:any@4", "late:dma-last@1"])  # fmt: skip
def test_a_right_publish_is_right_under_every_schedule(schedule: str) -> None:
    outcome, bufs = run(GOOD, READER, schedule=schedule)
    assert outcome.stop == "" and bufs.copied
    assert not kinds(outcome) & {"register_early", "stale_read", "flag_early"}


def test_a_publish_without_a_wait_is_wrong_when_stores_come_late() -> None:
    wrong = 0
    for seed in range(20):
        outcome, bufs = run(HASTY, READER, schedule=f"flag@{seed}")
        assert "flag_early" in kinds(outcome)
        wrong += not bufs.copied
    assert wrong


def test_the_race_is_seen_even_when_the_run_in_order_is_right() -> None:
    outcome, bufs = run(HASTY, READER, check_races=True)
    assert bufs.copied
    finding = next(f for f in outcome.findings if f.kind == "unordered_read")
    assert (finding.buffer, finding.kernel) == ("data", "k1")
    assert "unordered_read" not in kinds(run(GOOD, READER, check_races=True)[0])


def test_a_publisher_frozen_after_its_flag_shows_what_it_had_not_written() -> None:
    early = [*pointers(), instruction("v_mov_b32", src=(129,), dst=V + 4), store(V + 4, 6, V + 2, flags=SYSTEM),
             instruction("v_add_u32", src=(255, V), dst=V + 3, literal=1000), store(V + 3, 4), END]  # fmt: skip
    assert not run(program(early), READER, schedule="frozen")[1].copied
    assert run(GOOD, READER, schedule="frozen")[1].copied


LATE = ("late", "late:any", "scatter", "flag", "stall", "slow")


def own_number(pointer: int) -> list[Instruction]:
    """Each work-item stores 1000 + its number at its place."""
    return [instruction("v_add_u32", src=(255, V), dst=V + 3, literal=1000), store(V + 3, pointer)]


def other_wave(to: int) -> list[Instruction]:
    """`to` = the address of the same lane of the block's other wave."""
    return [instruction("v_xor_b32", src=(255, V + 1), dst=to, literal=256)]


@pytest.mark.parametrize("schedule", LATE)
def test_a_barrier_orders_a_blocks_stores_before_its_own_later_reads(schedule: str) -> None:
    """One CU keeps the order of its waves' accesses to the same bytes: no wait is needed among themselves."""
    body = [*pointers(), *own_number(4), BARRIER, *other_wave(V + 9), load(V + 6, 4, V + 9), WAIT, store(V + 6, 8), END]
    for seed in range(5):
        outcome, bufs = run(program(body), schedule=f"{schedule}@{seed}", threads=128)
        assert bufs.out.data.view(np.uint32)[:128].tolist() == [1000 + (n ^ 64) for n in range(128)]
        assert "stale_read" not in kinds(outcome)
    assert "unordered_read" not in kinds(run(program(body), threads=128, check_races=True)[0])
    unordered = [*body[:9], *body[10:]]
    assert "unordered_read" in kinds(run(program(unordered), threads=128, check_races=True)[0]), "without the barrier"


def test_a_scalar_load_is_not_in_that_order() -> None:
    """Scalar loads go through another cache: the stores must have been waited for, also within a block."""
    read = [instruction("s_load_dword", form="", src=(4,), dst=20, offset=256), WAIT]
    body = [*pointers(), *own_number(4), BARRIER, *read, END]
    found = [f for f in run(program(body), threads=128, check_races=True)[0].findings if f.kind == "unordered_read"]
    assert [(f.buffer, f.offset) for f in found] == [("data", 256)]
    waited = [*pointers(), *own_number(4), WAIT_VM, BARRIER, *read, END]
    assert "unordered_read" not in kinds(run(program(waited), threads=128, check_races=True)[0])


@pytest.mark.parametrize("schedule", LATE)
def test_a_barrier_orders_a_blocks_reads_before_its_own_later_stores(schedule: str) -> None:
    body = [*pointers(), *other_wave(V + 9), load(V + 6, 4, V + 9), BARRIER, *own_number(4), WAIT, store(V + 6, 8), END]
    for seed in range(5):
        _, bufs = run(program(body), schedule=f"{schedule}@{seed}", threads=128)
        assert not bufs.out.data.any(), "the old content, since the loads came first"
        assert bufs.data.data.view(np.uint32)[:128].tolist() == [1000 + n for n in range(128)]


def test_another_block_does_not_see_that_order() -> None:
    """The second wave's stores are announced by the first, behind a barrier: nobody has waited for them."""
    announce = [instruction("v_readfirstlane_b32", src=(V,), dst=20),
                instruction("s_cmp_eq_u32", form="", src=(20, 128)), WAIT_VM,
                instruction("v_mov_b32", src=(129,), dst=V + 4), store(V + 4, 6, V + 2, flags=SYSTEM)]  # fmt: skip
    body = [*pointers(), *own_number(4), BARRIER, *announce, END]
    body.insert(-3, instruction("s_cbranch_scc0", form="", target=len(body)))
    reader = [instruction("global_load_dword", form="", src=(V + 1, -1, 4), dst=V + 6, offset=256)
              if i == load(V + 6, 4) else i for i in consumer()]  # fmt: skip

    def both(schedule: str, **more: object) -> tuple[Outcome, bool]:
        bufs = Bufs()
        starts = [Start(program(c), (1, 1, 1), (threads, 1, 1), bufs.kernarg, rank, name=f"k{rank}")
                  for rank, (c, threads) in enumerate(((body, 128), (reader, 64)))]  # fmt: skip
        options = dataclasses.replace(Schedule.parse(schedule), limit=200_000, **more)  # type: ignore[arg-type]
        sync, fresh = Sync(), Bufs()
        again = [dataclasses.replace(s, kernarg=fresh.kernarg) for s in starts]
        machine.run(again, fresh.all, Schedule(limit=200_000), sync=sync, discover=True)
        outcome = machine.run(starts, bufs.all, options, sync=sync)
        return outcome, bufs.out.data.view(np.uint32)[:64].tolist() == [1064 + n for n in range(64)]

    outcome, right = both("order", check_races=True)
    assert right and [(f.kind, f.buffer) for f in outcome.findings] == [("unordered_read", "data")]
    assert not all(both(f"slow@{seed}")[1] for seed in range(20))


def test_a_register_used_before_its_load_is_waited_for_is_named() -> None:
    body = [
        *pointers(),
        load(V + 6, 4),
        instruction("v_add_u32", src=(129, V + 6), dst=V + 7),
        WAIT,
        store(V + 7, 8),
        END,
    ]
    outcome, _ = run(program(body), schedule="late")
    finding = next(f for f in outcome.findings if f.kind == "register_early")
    assert (finding.pc, finding.other_pc, finding.offset) == (4 * 8, 4 * 7, V + 6)


def test_a_scalar_used_before_its_load_is_waited_for_is_named() -> None:
    body = [
        instruction("s_load_dword", form="", src=(0,), dst=4, offset=0),
        instruction("s_add_u32", form="", src=(4, 128), dst=5),
        WAIT,
        END,
    ]
    assert "register_early" in kinds(run(program(body), schedule="late")[0])


def lds_exchange(*, wait: bool, barrier: bool, dma: bool = False) -> machine.Code:
    """Each wave fills its part of LDS, and reads the other wave's."""
    body = [*pointers(), instruction("v_xor_b32", src=(255, V + 1), dst=V + 9, literal=256)]
    if dma:
        body += [instruction("s_mov_b64", form="", src=(4,), dst=12), instruction("s_mov_b32", form="", src=(193,),
        dst=14),
                 instruction("s_mov_b32", form="", src=(255,), dst=15, literal=0x27000),
                 instruction("v_readfirstlane_b32", src=(V + 1,), dst=124),
                 instruction("buffer_load_dword", form="", src=(V + 1, -1, 12, 128), flags=frozenset({"offen",
                 "lds"}))]  # fmt: skip
    else:
        body += [instruction("ds_write_b32", form="", src=(V + 1, V, -1))]
    body += [WAIT] if wait else []
    body += [BARRIER] if barrier else []
    body += [instruction("ds_read_b32", form="", src=(V + 9, -1, -1), dst=V + 6), WAIT, store(V + 6, 8), END]
    return program(body, lds=1024)


@pytest.mark.parametrize("dma", [False, True], ids=["ds_write", "LDS-DMA"])
def test_lds_touched_while_another_wave_fills_it_is_seen(dma: bool) -> None:
    good, _ = run(lds_exchange(wait=True, barrier=True, dma=dma), schedule="late@1", threads=128)
    assert not kinds(good) & {"lds_early", "barrier_dma"}
    hits = [
        kinds(run(lds_exchange(wait=False, barrier=True, dma=dma), schedule=f"late@{s}", threads=128)[0])
        for s in range(5)
    ]
    assert any("lds_early" in h for h in hits)
    assert any("barrier_dma" in h for h in hits) == dma


def test_two_waves_using_one_lds_word_without_a_barrier_are_seen() -> None:
    assert "lds_unordered" in kinds(run(lds_exchange(wait=True, barrier=False), threads=128, check_lds=True)[0])
    assert "lds_unordered" not in kinds(run(lds_exchange(wait=True, barrier=True), threads=128, check_lds=True)[0])


@pytest.mark.parametrize("same", [True, False], ids=["same value", "another value"])
def test_waves_that_write_one_lds_word_without_a_barrier_are_seen_where_the_values_differ(same: bool) -> None:
    value = 129 if same else V  # the constant 1, or the work-item's number
    body = [*pointers(), instruction("v_mov_b32", src=(value,), dst=V + 4),
            instruction("v_mov_b32", src=(128,), dst=V + 5),
            instruction("ds_write_b32", form="", src=(V + 5, V + 4, -1)), WAIT, END]  # fmt: skip
    assert ("lds_unordered" in kinds(run(program(body, lds=1024), threads=128, check_lds=True)[0])) is not same


def test_two_waves_writing_one_place_without_order_are_seen() -> None:
    body = [*pointers(), instruction("v_and_b32", src=(191, V), dst=V + 10), instruction("v_lshlrev_b32", src=(130,
    V + 10), dst=V + 10),
            store(V, 8, V + 10), END]  # fmt: skip
    assert "unordered_write" in kinds(run(program(body), threads=128, check_races=True)[0])
    assert "unordered_write" not in kinds(run(program(body), threads=64, check_races=True)[0])


def test_the_same_value_written_twice_without_order_is_told_apart() -> None:
    body = [*pointers(), instruction("v_mov_b32", src=(133,), dst=V + 10), store(V + 10, 8, V + 2), END]
    assert kinds(run(program(body), threads=128, check_races=True)[0]) == {"unordered_same_value"}


def test_a_read_of_what_nobody_has_written_is_named() -> None:
    body = [*pointers(), load(V + 6, 4), WAIT, store(V + 6, 8), END]
    outcome, _ = run(program(body), check_unwritten=True)
    assert [(f.kind, f.buffer) for f in outcome.findings] == [("read_unwritten", "data")]


@pytest.mark.parametrize(
    ("offset", "allowed", "kind"),
    [
        (1024 - 4 * 63, 0, "read_past_end"),
        (1024 - 4 * 63, 3, "read_past_end"),
        (1024 - 4 * 63, 4, "read_allowed"),
        (1024, 255, "read_past_end"),
        (1024, 256, "read_allowed"),
        (4095, 256, "unmapped"),
    ],
)
def test_a_read_past_the_end_stops_the_run_unless_the_buffer_allows_it(offset: int, allowed: int, kind: str) -> None:
    body = [
        *pointers(),
        instruction("global_load_dword", form="", src=(V + 1, -1, 4), dst=V + 6, offset=offset),
        WAIT,
        END,
    ]
    bufs = Bufs()
    bufs.data.read_past = allowed
    outcome, _ = run(program(body), bufs=bufs)
    assert outcome.stop == ("" if kind == "read_allowed" else "fault")
    assert kind in kinds(outcome) and (kind in FAULTS) is (kind != "read_allowed")


def test_a_write_past_the_end_stops_the_run_and_names_the_buffer() -> None:
    body = [*pointers(), store(V, 8, offset=1024 - 8), END]
    outcome, _ = run(program(body))
    finding = outcome.findings[-1]
    assert outcome.stop == "fault" and finding.kind == "write_past_end" and finding.buffer == "out"


def test_what_no_register_was_given_depends_on_the_poison() -> None:
    """Scalar registers, M0, VCC and SCC hold nothing to rely on; s[0:1], the group's number and EXEC do."""
    body = [
        *pointers(),
        instruction("s_mov_b32", form="", src=(40,), dst=41),
        instruction("v_mov_b32", src=(41,), dst=V + 3),
        store(V + 3, 8),
        END,
    ]
    for read in (40, 124, 106, 107):
        body[len(pointers())] = instruction("s_mov_b32", form="", src=(read,), dst=41)
        for poison in (0xA5, 0xFF, 0x00):
            _, bufs = run(program(body), poison=poison)
            assert set(bufs.out.data[:256].tolist()) == {poison}, read
    body[len(pointers())] = instruction("s_cselect_b32", form="", src=(129, 128), dst=41)
    seen = {int(run(program(body), poison=p)[1].out.data.view(np.uint32)[0]) for p in (0xFF, 0x00)}
    assert seen == {0, 1}
    body[len(pointers())] = instruction("s_mov_b32", form="", src=(2,), dst=41)
    _, bufs = run(program(body), poison=0xA5)
    assert set(bufs.out.data[:256].tolist()) == {0}, "s2 is the group's number"


@pytest.mark.parametrize(
    ("kind", "given"),
    [("global_buffer", True), ("hidden_block_count_x", True), ("hidden_dynamic_lds_size", False), ("", False)],
    ids=["an argument", "a hidden one that is filled", "a hidden one that is not", "padding"],
)  # fmt: skip
def test_a_kernel_argument_that_nobody_gives_is_poison_and_a_read_of_it_is_named(kind: str, given: bool) -> None:
    """A read of what HIP would fill and the lane does not gave 0, which may be right or wrong."""
    body = [*pointers(), instruction("s_load_dword", form="", src=(0,), dst=20, offset=24), WAIT,
            instruction("v_mov_b32", src=(20,), dst=V + 3), store(V + 3, 8), END]  # fmt: skip
    code = program(body)
    arguments = [a for a in code.kernel.arguments if a.offset != 24]
    arguments += [dataclasses.replace(code.kernel.arguments[3], kind=kind)] if kind else []
    code = dataclasses.replace(code, kernel=dataclasses.replace(code.kernel, arguments=tuple(arguments)))
    outcome, bufs = run(code, check_unwritten=True, poison=0xFF)
    assert {(f.kind, f.buffer) for f in outcome.findings} == (set() if given else {("read_unwritten", "kernarg")})
    assert set(bufs.out.data[:256].tolist()) == ({0} if given else {0xFF})


ODD = instruction("v_add_u32", src=(129, V + 1), dst=V + 1)  # addresses one byte further
MISALIGNED = {
    "a global atomic": ([ODD, instruction("global_atomic_add", form="", src=(V + 1, V, 8))], {}),
    "an LDS atomic": ([ODD, instruction("ds_add_u32", form="", src=(V + 1, V, -1))], {"lds": 1024}),
    "a copy to LDS": ([
        instruction("s_mov_b64", form="", src=(4,), dst=12), instruction("s_mov_b32", form="", src=(193,), dst=14),
        instruction("s_mov_b32", form="", src=(255,), dst=15, literal=0x27000),
        instruction("s_mov_b32", form="", src=(130,), dst=124),
        instruction("buffer_load_dword", form="", src=(V + 1, -1, 12, 128), flags=frozenset({"offen", "lds"}))],
        {"lds": 1024}),
    "a scalar load": ([instruction("s_load_dword", form="", src=(4,), dst=20, offset=2)], {}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "facts"), MISALIGNED.values(), ids=MISALIGNED)
@pytest.mark.parametrize("schedule", ["order", "late@1"])
def test_what_must_be_aligned_and_is_not_stops_the_run(
    body: list[Instruction], facts: dict[str, int], schedule: str
) -> None:
    outcome, _ = run(program([*pointers(), *body, WAIT, END], **facts), schedule=schedule)
    assert outcome.stop == "fault" and kinds(outcome) == {"misaligned"}


def test_a_wide_atomic_must_be_aligned_to_its_own_width() -> None:
    wide = [instruction("v_lshlrev_b32", src=(131, V), dst=V + 1), instruction("v_mov_b32", src=(128,), dst=V + 3),
            instruction("v_mov_b32", src=(128,), dst=V + 4)]  # fmt: skip
    for offset, stop in ((0, ""), (4, "fault")):
        add = instruction("global_atomic_add_x2", form="", src=(V + 1, V + 3, 8), offset=offset)
        outcome, _ = run(program([*pointers(), *wide, add, WAIT, END]))
        assert outcome.stop == stop


# words 1 (its upper half) and 3 of a buffer descriptor
DESCRIPTORS = {
    "as FlyDSL makes it": (0, 0x27000, True),
    "a stride": (4, 0x27000, False),
    "a swizzle": (0x8000, 0x27000, False),
    "the lane's number added": (0, 0x27000 | 1 << 23, False),
    "no data format": (0, 0x7000, False),
    "another type": (0, 0x27000 | 1 << 30, False),
}


@pytest.mark.parametrize(("high", "word3", "sound"), DESCRIPTORS.values(), ids=DESCRIPTORS)
def test_a_buffer_descriptor_that_would_change_the_addressing_stops_the_run(
    high: int, word3: int, sound: bool
) -> None:
    body = [
        *pointers(),
        instruction("s_mov_b32", form="", src=(8,), dst=12),
        instruction("s_or_b32", form="", src=(9, 255), dst=13, literal=high << 16),
        instruction("s_mov_b32", form="", src=(193,), dst=14),
        instruction("s_mov_b32", form="", src=(255,), dst=15, literal=word3),
        instruction("buffer_store_dword", form="", src=(V + 1, V, 12, 128), flags=frozenset({"offen"})),
        END,
    ]
    outcome, bufs = run(program(body))
    assert (outcome.stop == "") is sound and kinds(outcome) == (set() if sound else {"buffer_descriptor"})
    assert (bufs.out.data.view(np.uint32)[:64].tolist() == list(range(64))) is sound


@pytest.mark.parametrize(("lanes", "stop"), [(193, "fault"), (129, "")], ids=["an active lane", "an inactive lane"])
def test_a_scale_that_is_no_number_stops_the_run(lanes: int, stop: str) -> None:
    """Lane 0 has the scale 1.0, all others infinity."""
    body = [
        instruction("v_cmp_eq_u32", src=(128, V), sdst=20),
        instruction("v_mov_b32", src=(255,), dst=V + 1, literal=0x7F800000),
        instruction("v_cndmask_b32", src=(V + 1, 242, 20), dst=V + 2),
        instruction("s_mov_b64", form="", src=(lanes,), dst=126),
        instruction("v_cvt_scalef32_pk_fp4_f32", src=(V, V, V + 2), dst=V + 3),
        END,
    ]
    outcome, _ = run(program(body))
    assert outcome.stop == stop and kinds(outcome) == ({"undefined_operand"} if stop else set())


def test_a_race_is_seen_after_more_than_a_million_stores_of_one_wave() -> None:
    """Store numbers once wrapped at 2^20, and every later race of the wave was taken for ordered."""
    start = len(pointers()) + 2
    many = [
        *pointers(),
        instruction("s_mov_b64", form="", src=(129,), dst=126),
        instruction("s_mov_b32", form="", src=(255,), dst=20, literal=(1 << 20) + 8),
        store(V, 8, V + 2),
        instruction("s_sub_u32", form="", src=(20, 129), dst=20),
        instruction("s_cmp_eq_u32", form="", src=(20, 128)),
        instruction("s_cbranch_scc0", form="", target=start),
        *RELEASE,
        instruction("s_mov_b64", form="", src=(193,), dst=126),
        *publisher(wait=False)[len(pointers()) :],
    ]
    outcome, _ = run(program(many), READER, check_races=True, limit=30_000_000)
    assert outcome.stop == "" and ("unordered_read", "data") in {(f.kind, f.buffer) for f in outcome.findings}


def test_findings_beyond_those_that_are_kept_fail_the_run() -> None:
    """More different early reads than fit: the rest is not known, so nothing may be called right."""
    body = [*pointers(), load(V + 6, 4)]
    body += [instruction("v_add_u32", src=(129, V + 6), dst=V + 7)] * 1100
    found = kinds(run(program([*body, WAIT, END]), schedule="late")[0])
    assert found == {"register_early", "findings_lost"} and "findings_lost" in FAULTS


def test_lds_that_nobody_has_written_is_named_word_by_word() -> None:
    body = [*pointers(), instruction("ds_write_b8", form="", src=(V + 1, V, -1)), WAIT,
            instruction("ds_read_b32", form="", src=(V + 1, -1, -1), dst=V + 6), WAIT,
            instruction("ds_read_b32", form="", src=(V + 1, -1, -1), dst=V + 7, offset=256), WAIT, END]  # fmt: skip
    outcome, _ = run(program(body, lds=1024), check_lds=True)
    assert [(f.kind, f.offset, f.buffer) for f in outcome.findings] == [("lds_unwritten", 256, "LDS")]


def test_memory_that_was_given_back_may_not_be_touched() -> None:
    bufs = Bufs()
    bufs.data.freed = True
    outcome, _ = run(program([*pointers(), load(V + 6, 4), WAIT, END]), bufs=bufs)
    assert outcome.stop == "fault" and kinds(outcome) == {"freed"}


def test_a_barrier_that_some_waves_never_reach_is_seen() -> None:
    body = [*pointers(), instruction("v_readfirstlane_b32", src=(V,), dst=20), instruction("s_cmp_eq_u32", form="",
    src=(20, 128)),
            instruction("s_cbranch_scc1", form="", target=len(pointers()) + 4), BARRIER, END]  # fmt: skip
    assert "barrier_missed" in kinds(run(program(body), threads=128)[0])


def test_a_wait_that_nobody_ends_stops_at_the_limit() -> None:
    outcome, _ = run(READER)
    assert outcome.stop == "limit" and outcome.steps >= 200_000


def test_lds_beyond_the_block_is_named() -> None:
    body = [*pointers(), instruction("ds_read_b32", form="", src=(V + 1, -1, -1), dst=V + 6, offset=1000), WAIT, END]
    assert "lds_bounds" in kinds(run(program(body, lds=1024))[0])


def test_more_blocks_than_may_be_resident_run_one_after_another() -> None:
    body = [*pointers(), instruction("v_mov_b32", src=(129,), dst=V + 4),
            instruction("s_mov_b64", form="", src=(129,), dst=126), instruction("global_atomic_add", form="",
            src=(V + 2, V + 4, 8)), END]  # fmt: skip
    outcome, bufs = run(program(body), grid=500, resident=7)
    assert outcome.stop == "" and int(bufs.out.data.view(np.uint32)[0]) == 500


@pytest.mark.parametrize(("change", "code"), [({"threads": 2048}, "block"), ({"grid": 0}, "grid")])
def test_a_launch_that_no_gpu_would_take_is_refused(change: dict[str, int], code: str) -> None:
    with pytest.raises(Problem) as caught:
        run(program([END]), **change)  # type: ignore[arg-type]
    assert caught.value.code == code


NO_SCHEDULES = ["", "nonsense", "order:fifo+", "late:nonsense", "random@x", "late@-1", "late@1234567890", "late@\u0663"]


@pytest.mark.parametrize("text", NO_SCHEDULES)
def test_a_schedule_that_is_none_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(Problem) as caught:
        Schedule.parse(text)
    assert caught.value.code == "schedule" and "frozen" in str(caught.value)


def test_the_same_seed_gives_the_same_run(seeds: Sequence[int] = (1, 1, 2)) -> None:
    rounds = [run(HASTY, READER, schedule=f"slow@{s}") for s in seeds]
    results = [(o.steps, [(f.kind, f.pc, f.count) for f in o.findings], b.out.data.tobytes()) for o, b in rounds]
    assert results[0] == results[1]


def test_every_kind_of_finding_says_what_why_and_what_to_do() -> None:
    assert set(MEANINGS) == {*machine.KINDS, "findings_lost"} and set(MEANINGS) >= FAULTS
    assert all(len({m.what, m.why, m.fix}) == 3 and m.fix for m in MEANINGS.values())
