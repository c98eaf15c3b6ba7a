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
WHY = {
    "read_past_end": "read beyond the end of the buffer",
    "read_allowed": "read beyond the end of the buffer, no further than the bundle allows",
    "write_past_end": "write beyond the end of the buffer",
    "unmapped": "access where no buffer is",
    "freed": "access to memory that was given back",
    "read_unwritten": "read of bytes that nobody has written",
    "unordered_write": "two waves write the same place, and no wait or flag orders them",
    "unordered_same_value": "two waves write the same value to one place without order",
    "unordered_read": "read of another wave's store that nobody has waited for before the flag or barrier",
    "register_early": "register used before the load that writes it has been waited for",
    "lds_early": "LDS touched while another wave's copy or write to it is in flight",
    "lds_bounds": "LDS access beyond the block's allocation",
    "lds_unordered": "two waves use one LDS word without a barrier between",
    "stale_read": "global bytes read while another wave's store to them is in flight",
    "barrier_dma": "barrier crossed while a copy to LDS is in flight",
    "flag_early": "flag stored while data stores of the same block are in flight",
    "misaligned": "misaligned scalar load, atomic or copy to LDS",
    "barrier_missed": "barrier passed although some waves of the block had ended",
    "write_readonly": "write to kernel arguments or a read-only buffer",
    "lds_unwritten": "read of LDS that nobody has written",
    "buffer_descriptor": "buffer descriptor with a stride, a swizzle, a lane number added, or no data format",
    "undefined_operand": "operand for which the result is not known",
    "findings_lost": "more findings than are kept: the rest, faults or not, is not known",
}
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
    return f"{WHY[f.kind]}: {where}, {f.kernel} at {f.pc:#x} on rank {f.rank}{other}, {f.count} times"
