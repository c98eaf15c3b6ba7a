"""The compiled machine: launches, memory and a schedule in; changed memory, counts and findings out."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from megamoe_atom.problem import Exit, Problem
from numpy.typing import NDArray

from kernel_lane import elf, native
from kernel_lane.bundle import need_memory
from kernel_lane.decode import Instruction, decode
from kernel_lane.isa import OPCODES
from kernel_lane.machine import emit
from kernel_lane.machine.layout import (
    Finding as FindingRecord,
)
from kernel_lane.machine.layout import (
    HostWrite,
    Ins,
    LaunchRecord,
    MachineRecord,
    Region,
    Wave,
    connect,
)
from kernel_lane.machine.lower import lower
from kernel_lane.machine.schedule import Schedule
from kernel_lane.machine.start import refusals

FLAGS = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-w"]
LIBS = ["-lm"]
KINDS = (
    "read_past_end", "write_past_end", "unmapped", "freed", "read_unwritten", "unordered_write", "unordered_same_value",
    "unordered_read", "register_early", "lds_early", "lds_bounds", "stale_read", "barrier_dma", "flag_early",
    "misaligned",
    "barrier_missed", "write_readonly", "lds_unwritten", "lds_unordered", "buffer_descriptor", "undefined_operand",
    "read_allowed",
)  # fmt: skip
STOPS = ("", "deadlock", "limit", "fault")
FREED, KERNARG, READONLY = 1, 4, 8
SYSTEM_POISON = 0xA5


@functools.cache
def library() -> ctypes.CDLL:
    """The core, compiled on first use (some ten seconds) and cached.

    Raises:
        Problem: no_compiler, compile_failed.
    """
    path = native.build("core.so", emit.source(), [*FLAGS, *LIBS])
    return connect(ctypes.CDLL(str(path)))


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel ready to run."""

    kernel: elf.Kernel
    instructions: tuple[Instruction, ...]
    records: ctypes.Array[Ins] = field(repr=False)


@functools.lru_cache(maxsize=64)
def prepare(image: bytes, kernel_name: str) -> Code:
    """Decodes one kernel of a code object, and refuses what this machine cannot start.

    Raises:
        Problem: those of elf.read and decode; undefined_symbol, wavefront, scratch, start_state, registers.
    """
    parsed = elf.read(image, name=kernel_name)
    kernel = parsed.kernel(kernel_name)

    def refuse(code: str, what: str, why: str, fix: str) -> Problem:
        return Problem(code, what=f"{kernel_name}: {what}", why=why, fix=fix, exit_code=Exit.REFUSED)

    if parsed.undefined:
        raise refuse(
            "undefined_symbol",
            f"undefined {', '.join(parsed.undefined)}",
            "a call or address in it leads nowhere; a GPU would not load it",
            "link the device libraries (a real ockl.bc) when compiling",
        )
    if kernel.wavefront != 64:
        raise refuse("wavefront", f"wavefront size {kernel.wavefront}", "gfx950 has waves of 64", "compile for gfx950")
    if kernel.scratch:
        raise refuse(
            "scratch", f"{kernel.scratch} bytes of scratch", "private memory is not modelled", "lower register use"
        )
    instructions = tuple(decode(parsed.code(kernel), kernel.entry))
    for problem in refusals(kernel, instructions):
        raise problem
    return Code(kernel, instructions, lower(instructions))


@dataclass(slots=True)
class Buffer:
    """Memory that kernels may touch: `data` is its content, uint8, and is changed in place.

    `written` (None or bool per byte as uint8) says which bytes hold defined values; reads of others are reported.
    `read_past`: bytes behind its end that may be read, as poison; a read further on stops the run.
    """

    name: str
    data: NDArray[np.uint8]
    rank: int = 0
    written: NDArray[np.uint8] | None = None
    freed: bool = False
    readonly: bool = False
    read_past: int = 0

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


@dataclass(slots=True)
class Start:
    """One launch: its place in its rank's stream is `order`."""

    code: Code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kernarg: bytes
    rank: int = 0
    dynamic_lds: int = 0
    name: str = ""
    order: int = 0


@dataclass(slots=True)
class Write:
    """A write of the host between launches: executed before launch `order` of its rank.

    `content`: bytes, or what another buffer holds then (a view of its `data`).
    """

    buffer: Buffer
    offset: int
    content: bytes | NDArray[np.uint8]
    order: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """What the machine saw, with its place: kernel, address of the instruction, buffer."""

    kind: str
    kernel: str
    pc: int
    rank: int
    buffer: str
    offset: int
    count: int
    other_kernel: str = ""
    other_pc: int = 0
    other_rank: int = 0
    detail: int = 0
    same_wave: bool = False


@dataclass(slots=True)
class Outcome:
    """`stop` is "" when everything ended, else "deadlock", "limit" or "fault"; `steps` counts wave instructions."""

    stop: str
    steps: int
    findings: list[Finding]
    stop_kernel: str = ""
    stop_pc: int = 0
    stop_rank: int = 0
    opcodes: dict[str, int] = field(default_factory=dict)


class Sync:
    """The 4-byte words through which waves synchronise: found in a run (polled or updated atomically), used in
    others."""

    def __init__(self) -> None:
        self.words: dict[str, NDArray[np.uint8]] = {}

    def of(self, buffer: Buffer) -> NDArray[np.uint8]:
        return self.words.setdefault(buffer.name, np.zeros((buffer.data.size + 3) // 4, np.uint8))


def run(
    starts: Sequence[Start],
    buffers: Sequence[Buffer],
    schedule: Schedule | None = None,
    *,
    writes: Sequence[Write] = (),
    sync: Sync | None = None,
    discover: bool = False,
    count_opcodes: bool = False,
) -> Outcome:
    """Runs launches together, each rank's own one after another, until all have ended or something stops them.

    Buffers change in place. Races and late completion need `sync` from a run with discover=True.
    """
    schedule = schedule or Schedule()
    machine, keep, regions = _machine(starts, buffers, schedule, writes, sync, discover)
    counts = (ctypes.c_uint64 * len(OPCODES))()
    if count_opcodes:
        machine.opcode_count = ctypes.cast(counts, ctypes.c_void_p)
    stop = library().machine_run(ctypes.byref(machine))
    del keep
    codes = _kernel_names(starts)
    findings = [_finding(machine.found[k], codes, regions) for k in range(machine.found_count)]
    if machine.found_lost:
        findings.append(Finding("findings_lost", codes[0], 0, 0, "", 0, machine.found_lost))
    return Outcome(
        STOPS[stop], machine.steps, findings,
        codes[machine.stop_code] if stop else "", machine.stop_pc, machine.stop_rank,
        {o.name: n for o, n in zip(OPCODES, counts, strict=True) if n},
    )  # fmt: skip


def _kernel_names(starts: Sequence[Start]) -> list[str]:
    return [s.name or s.code.kernel.name for s in starts]


def _finding(r: FindingRecord, codes: list[str], regions: list[str]) -> Finding:
    buffer = (
        regions[r.region]
        if r.region < len(regions)
        else ("LDS" if KINDS[r.kind].startswith(("lds", "barrier")) else "")
    )
    return Finding(
        KINDS[r.kind], codes[r.code], r.pc, r.rank, buffer, r.offset, r.count,
        codes[r.other_code] if r.other_code < len(codes) else "",
        r.other_pc, r.other_rank, r.detail, bool(r.same_wave),
    )  # fmt: skip


def _machine(
    starts: Sequence[Start],
    buffers: Sequence[Buffer],
    schedule: Schedule,
    writes: Sequence[Write],
    sync: Sync | None,
    discover: bool,
) -> tuple[MachineRecord, list[object], list[str]]:
    keep: list[object] = []
    records = (LaunchRecord * len(starts))()
    places: list[tuple[int, int, int, Buffer]] = []
    for n, (start, record) in enumerate(zip(starts, records, strict=True)):
        kernarg = np.frombuffer(start.kernarg, np.uint8).copy()
        given = np.zeros(kernarg.size, np.uint8)
        for first, end in start.code.kernel.defined():
            given[first:end] = 1
        kernarg[given == 0] = schedule.poison
        owner = Buffer("kernarg", kernarg, start.rank, given)
        keep.append(owner)
        places.append((owner.address, kernarg.size, KERNARG, owner))
        kernel = start.code.kernel
        threads = start.block[0] * start.block[1] * start.block[2]
        _check_launch(start, threads, schedule.resident)
        record.ins = ctypes.cast(start.code.records, ctypes.POINTER(Ins))
        record.count = len(start.code.records)
        record.grid[:] = start.grid
        record.threads, record.waves_per_block = threads, (threads + 63) // 64
        record.lds = kernel.lds + start.dynamic_lds
        record.kernarg, record.kernarg_bytes = kernarg.ctypes.data, kernarg.size
        record.rank, record.code, record.order = start.rank, n, start.order
        record.user_sgprs = kernel.user_sgprs
        record.group_id = sum(bit << k for k, bit in enumerate(kernel.group_id))
    for b in buffers:
        flags = (FREED if b.freed else 0) | (READONLY if b.readonly else 0)
        places.append((b.address, b.data.size, flags, b))
    places.sort(key=lambda p: (p[0], p[1]))
    regions = (Region * len(places))()
    names: list[str] = []
    for k, (address, size, flags, owner) in enumerate(places):
        region = regions[k]
        region.lo, region.hi, region.id, region.flags = address, address + size, k, flags
        region.top = region.hi + owner.read_past
        names.append(owner.name)
        if not size:
            continue
        if owner.written is not None and schedule.check_unwritten:
            keep.append(owner.written)
            region.written = owner.written.ctypes.data
        if flags & KERNARG:
            continue  # written by nobody while kernels run
        if schedule.check_races:
            writer = np.zeros(size, np.uint64)
            keep.append(writer)
            region.writer = writer.ctypes.data
        if sync is not None:
            words = sync.of(owner)
            keep.append(words)
            region.sync = words.ctypes.data
        if schedule.late:
            pending = np.zeros((size + 3) // 4 + 1, np.uint32)
            keep.append(pending)
            region.pending = pending.ctypes.data
    host = (HostWrite * max(1, len(writes)))()
    for record, write in zip(host, writes, strict=False):
        source = np.frombuffer(write.content, np.uint8)  # no copy: a buffer is read when the write is executed
        keep.append(source)
        record.to, record.source, record.bytes = write.buffer.address + write.offset, source.ctypes.data, source.size
        record.rank, record.order = write.buffer.rank, write.order
        if write.buffer.written is not None:
            write.buffer.written[write.offset : write.offset + source.size] = 1
    found = (FindingRecord * 1024)()
    machine = MachineRecord()
    machine.region, machine.regions = regions, len(regions)
    machine.launch, machine.launches = records, len(records)
    machine.host, machine.hosts = host, len(writes)
    machine.found, machine.found_limit = found, len(found)
    machine.waves = sum(r.grid[0] * r.grid[1] * r.grid[2] * r.waves_per_block for r in records)
    schedule.fill(machine.o, discover=discover)
    keep += [records, regions, host, found, starts]
    return machine, keep, names


def _check_launch(start: Start, threads: int, resident: int) -> None:
    if start.block[1] != 1 or start.block[2] != 1 or not 1 <= threads <= start.code.kernel.max_threads:
        raise Problem(
            "block",
            what=f"{start.code.kernel.name}: a block of {start.block} work-items",
            why=f"the lane starts one-dimensional blocks of at most {start.code.kernel.max_threads}",
            fix="launch as FlyDSL does",
            exit_code=Exit.REFUSED,
        )
    if min(start.grid) < 1:
        raise Problem(
            "grid",
            what=f"{start.code.kernel.name}: a grid of {start.grid} work-groups",
            why="an empty grid runs nothing, and peers would wait for this rank",
            fix="launch at least one work-group",
            exit_code=Exit.REFUSED,
        )
    if start.code.kernel.lds + start.dynamic_lds > 163840:
        raise Problem(
            "lds",
            what=f"{start.code.kernel.name}: {start.code.kernel.lds + start.dynamic_lds} bytes of LDS",
            why="a CU of gfx950 has 163840",
            fix="compile with smaller tiles",
            exit_code=Exit.REFUSED,
        )
    if len(start.kernarg) != start.code.kernel.kernarg_size:
        raise Problem(
            "kernarg",
            what=f"{start.code.kernel.name}: {len(start.kernarg)} bytes of kernel arguments",
            why=f"the code object's descriptor says {start.code.kernel.kernarg_size}",
            fix="launch the code object that was captured",
            exit_code=Exit.REFUSED,
        )
    # All work-groups that may run at one time are held at one time, each with its waves' registers and the LDS of a CU.
    groups = start.grid[0] * start.grid[1] * start.grid[2]
    each = (threads + 63) // 64 * ctypes.sizeof(Wave) + 163840
    need_memory(f"{start.code.kernel.name}: {groups} work-groups", min(groups, resident or groups) * each)
