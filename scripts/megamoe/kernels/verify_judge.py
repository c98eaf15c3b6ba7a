"""Whether the GPUs' outputs are the kernels' arithmetic: bit-equal, or apart by no more than the hardware may be.

What may differ on gfx950 from our execution: v_exp_f32 and v_rcp_f32 are approximations (one unit in the last place of
float32), and a matrix instruction may round its running sum. Both are about 2^-23 of a value. They show in two ways:
* a bf16 output next to a rounding tie moves by one place: at most 2^-8 of its value;
* a value of a2 next to a tie of its fp8 rounding moves by one fp8 place (1/8 at most), about one in 2^19 of the values;
  the outputs of its token then move by 1/8 of one among inter * topk terms.
Were every output one place off, the relative L2 distance would be 2^-8: that is the bound. Faults are far beyond it: a
stale row, a lost tile or mis-paired weights give 0.05 to 1 (kernels_on_cpu, lazy memory: measured 0.12 to 0.98).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megamoe.envelope import Finding

REL_L2_BOUND = 2.0**-8
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far outputs are from the answer. places: histogram of distances in bf16 places (0, 1, 2, 3, more)."""

    values: int
    places: tuple[int, int, int, int, int]
    rel_l2: float
    worst_place: int
    non_finite: int

    @property
    def exact(self) -> bool:
        return self.places[0] == self.values


def _float(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _ordered(bits: Array) -> Array:
    """bf16 bits as integers in the order of their values, so that neighbours differ by 1 (and +0 equals -0)."""
    signed = bits.astype(np.int64)
    return np.where(signed & 0x8000, 0x8000 - signed, signed)


def distance(got: Array, want: Array) -> Distance:
    """Compares bf16 bit patterns [n, H].

    Raises:
        ValueError: the shapes differ.
    """
    if got.shape != want.shape:
        raise ValueError(f"{got.shape} against {want.shape}")
    apart = np.abs(_ordered(got) - _ordered(want))
    counts = [int((apart == n).sum()) for n in range(4)]
    a, b = _float(got), _float(want)
    finite = np.isfinite(a) & np.isfinite(b)  # an answer that is not finite could be compared with nothing
    error = np.subtract(a, b, where=finite, out=np.zeros_like(a))
    rel = float(np.linalg.norm(error) / max(float(np.linalg.norm(np.where(finite, b, 0.0))), 1e-30))
    places = (counts[0], counts[1], counts[2], counts[3], int(apart.size - sum(counts)))
    return Distance(int(apart.size), places, rel, int(apart.max(initial=0)), int((~finite).sum()))


def judge_case(
    name: str, got: list[list[Array]], want: list[list[Array]], hashes: list[list[str]], order: list[int]
) -> tuple[list[Finding], dict[str, Any]]:
    """One case: every forward's outputs against the answer, and every repetition against its first run.

    got, want: per distinct forward and rank. hashes: per run and rank, in the order of `order`.
    """
    findings = []
    rows = []
    for n, (gs, ws) in enumerate(zip(got, want, strict=True)):
        for r, (g, w) in enumerate(zip(gs, ws, strict=True)):
            if g.shape != w.shape:
                findings.append(
                    Finding(
                        "kernel_wrong",
                        "error",
                        f"{name}, input {n}, rank {r}: an output of {g.shape}, where {w.shape} is right",
                        "the kernel wrote other rows than it was asked for; it is counted as an output of zeros",
                        "do not serve; send this JSON in, with driver and firmware versions",
                    )
                )
            rows.append(distance(g if g.shape == w.shape else np.zeros_like(w), w))
    places = [sum(r.places[n] for r in rows) for n in range(5)]
    worst = max(rows, key=lambda r: (r.non_finite, r.rel_l2))
    at = rows.index(worst)
    forward, rank = divmod(at, len(got[0]))
    where = f"{name}, input {forward}, rank {rank}"
    if worst.non_finite or worst.rel_l2 > REL_L2_BOUND:
        findings.append(
            Finding(
                "kernel_wrong",
                "error",
                f"{where}: relative L2 distance {worst.rel_l2:.3g} (bound {REL_L2_BOUND:.3g}), "
                f"{worst.values - worst.places[0]} of {worst.values} values differ, {worst.non_finite} are not finite",
                "rounding of the last place cannot reach that far: rows, tiles, weights or flags are wrong",
                "do not serve; send this JSON in, with driver and firmware versions",
            )
        )
    elif places[0] != sum(places):
        findings.append(
            Finding(
                "kernel_last_place",
                "info",
                f"{name}: {sum(places) - places[0]} of {sum(places)} values differ, by {worst.rel_l2:.3g} in relative "
                f"L2 at most (bound {REL_L2_BOUND:.3g}); distances of 1, 2, 3, more places: {places[1:]}",
                "the hardware's exp2, reciprocal and matrix sums may round otherwise than our execution",
                "nothing to do; the figures are of use to us",
            )
        )
    first: dict[int, list[str]] = {}
    unsteady = []
    for run, (which, found) in enumerate(zip(order, hashes, strict=True)):
        if first.setdefault(which, found) != found:
            unsteady.append((run, which))
    if unsteady:
        findings.append(
            Finding(
                "kernel_unsteady",
                "error",
                f"{name}: {len(unsteady)} of {len(order)} runs differ from the first run of the same input "
                f"(run {unsteady[0][0]}, input {unsteady[0][1]} first)",
                "the same input must give the same bits: a race, or memory that a former call left behind",
                "do not serve; send this JSON in",
            )
        )
    data = {
        "case": name,
        "runs": len(order),
        "inputs": len(got),
        "ranks": len(got[0]),
        "bit_equal": places[0] == sum(places),
        "places": places,
        "worst_rel_l2": worst.rel_l2,
        "worst_place": max(r.worst_place for r in rows),
        "non_finite": sum(r.non_finite for r in rows),
        "unsteady_runs": len(unsteady),
    }
    return findings, data
