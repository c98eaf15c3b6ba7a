"""Compares what an executor found with what the bundle expects, and says which findings of the machine matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernel_lane.bundle import Bundle
from kernel_lane.execute import expectations
from kernel_lane.machine import Finding

# Findings that are a fault of the kernel whatever the output says. The others are notes: reads whose value nothing
# uses (padding rows, masked lanes) look the same as reads that matter, and only the output can tell.
FAULTS = {
    "read_past_end", "write_past_end", "unmapped", "freed", "misaligned", "write_readonly", "register_early",
    "barrier_missed", "lds_bounds", "unordered_write", "buffer_descriptor", "undefined_operand", "findings_lost",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of finding says, why that matters on a GPU, and what to do."""

    what: str
    why: str
    fix: str = "compare with the kernel's source"


_RACE = "which of the two comes first is luck: a GPU gives one result today and another tomorrow"
_UNUSED = "it gives whatever was there; where that is used, the output depends on it"
_OUTSIDE = "what lies there is another buffer's, or no page: a wrong value or a memory fault"
_WAIT_LDS = "wait for the copy to LDS (vmcnt) before the barrier"
MEANINGS = {
    "read_past_end": Meaning("read beyond the end of the buffer", _OUTSIDE),
    "read_allowed": Meaning(
        "read beyond the end of the buffer, no further than the bundle allows",
        "the bytes are nobody's and hold poison, another in each seed: an output that used them would change",
    ),
    "write_past_end": Meaning("write beyond the end of the buffer", _OUTSIDE),
    "unmapped": Meaning("access where no buffer is", "a GPU stops the process with a memory fault, or worse, does not"),
    "freed": Meaning("access to memory that was given back", "by then it may be another tensor's"),
    "read_unwritten": Meaning("read of bytes that nobody has written", _UNUSED),
    "unordered_write": Meaning(
        "two waves write the same place, and no wait or flag orders them", _RACE,
        "order the writers by a barrier, a flag or distinct places",
    ),
    "unordered_same_value": Meaning(
        "two waves write the same value to one place without order", "harmless as long as the values stay the same"
    ),
    "unordered_read": Meaning(
        "read of another wave's store that nobody has waited for before the flag or barrier", _RACE,
        "the writer must wait for its stores (s_waitcnt vmcnt(0)) before the barrier or flag that announces them",
    ),
    "register_early": Meaning(
        "register used before the load that writes it has been waited for",
        "it holds the old value when memory is slow",
        "a compiler fault: report it with the code object",
    ),
    "lds_early": Meaning(
        "LDS touched while another wave's copy or write to it is in flight",
        "old and new bytes mix when memory is slow",
        "wait for the copy to LDS (vmcnt) before the barrier that lets other waves read it",
    ),
    "lds_bounds": Meaning(
        "LDS access beyond the block's allocation",
        "it gives 0 or another block's bytes; a write there is lost or hits them",
    ),
    "lds_unordered": Meaning("two waves use one LDS word without a barrier between", _RACE),
    "stale_read": Meaning("global bytes read while another block's store to them is in flight", _RACE),
    "barrier_dma": Meaning("barrier crossed while a copy to LDS is in flight", "others read behind it", _WAIT_LDS),
    "flag_early": Meaning(
        "flag stored while data stores of the same block are in flight", "a quick reader takes the flag and old data",
        "drain the stores of every wave of the block before the flag is stored",
    ),
    "misaligned": Meaning("misaligned scalar load, atomic or copy to LDS", "a GPU drops the low bits of the address"),
    "barrier_missed": Meaning(
        "barrier passed although some waves of the block had ended", "whether a GPU passes it, too, no source says"
    ),
    "write_readonly": Meaning("write to kernel arguments or a read-only buffer", "the next launch reads the change"),
    "lds_unwritten": Meaning("read of LDS that nobody has written", _UNUSED),
    "buffer_descriptor": Meaning(
        "buffer descriptor with a stride, a swizzle, a lane number added, or no data format",
        "the addresses would not be those that the lane computes",
    ),
    "undefined_operand": Meaning("operand for which the result is not known", "any result here would be a guess"),
    "findings_lost": Meaning("more findings than are kept", "the rest, faults or not, is unknown", "mend these first"),
}  # fmt: skip
_PAST = {"read_past_end", "read_allowed", "write_past_end"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One expect entry that does not hold: counts in bf16 values when the size allows, else in bytes."""

    name: str
    differing: int
    total: int
    first: int
    relative: float


def compare(bundle: Bundle, results: Mapping[str, NDArray[np.uint8]]) -> list[Difference]:
    """Every expect entry, bit for bit. A missing result counts as wholly different."""
    out = []
    for entry in expectations(bundle):
        want = np.frombuffer(bundle.bytes_of(entry["file"]), np.uint8)
        have = results.get(entry["name"])
        if have is None or have.size != want.size:
            out.append(Difference(entry["name"], want.size, want.size, 0, float("inf")))
            continue
        if np.array_equal(have, want):
            continue
        if entry.get("dtype") == "bfloat16":
            a, b = _bf16(have), _bf16(want)
            wrong = np.nonzero(have.view(np.uint16) != want.view(np.uint16))[0]
            norm = float(np.linalg.norm(b)) or 1.0
            relative = float(np.linalg.norm(np.nan_to_num(a - b, nan=np.inf))) / norm
            out.append(Difference(entry["name"], wrong.size, want.size // 2, int(wrong[0]), relative))
        else:
            wrong = np.nonzero(have != want)[0]
            out.append(Difference(entry["name"], wrong.size, want.size, int(wrong[0]), float("nan")))
    return out


def _bf16(raw: NDArray[np.uint8]) -> NDArray[np.float64]:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def place(f: Finding) -> str:
    """A finding in one line: what, where, by whom."""
    if f.kind in _PAST:
        where = f"{f.buffer}, {f.offset} bytes past it"
    else:
        where = f"{f.buffer} + {f.offset}" if f.buffer else f"{f.offset:#x}"
    other = f", other side {f.other_kernel} at {f.other_pc:#x} on rank {f.other_rank}" if f.other_pc else ""
    return f"{MEANINGS[f.kind].what}: {where}, {f.kernel} at {f.pc:#x} on rank {f.rank}{other}, {f.count} times"
