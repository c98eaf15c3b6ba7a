"""What MegaMoE v1 needs and what it cannot do, as pure arithmetic: bytes to the byte, 32-bit bounds, launch epochs.

No torch, no I/O: `megamoe plan` and the entrypoint import this in milliseconds. Symbols as in FlyDSL: W = ep_size,
T = mtpr (tokens per rank), H hidden, I inter, E experts, K topk, R = W*T, u = rows of a stage-1 tile.

Source: FlyDSL 8acf56d kernels/mega_moe and kernels/comm; the heap formulas equal a log of every allocation of the real
constructor, the bounds are the types and packings of the code they name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megamoe_atom.problem import Exit, Problem, Reason

INT32_MAX = 2**31 - 1
UINT32_END = 2**32
GIB = 2**30
HEAP_ALIGNMENT = 256
HEAP_SLACK_BYTES = 64 * 2**20
MORI_SYNC_BYTES = 1024
"""What mori itself takes from a static heap when it starts (120d2de src/shmem/init.cpp, MORI_INTERNAL_SYNC_SIZE)."""
COMPACT_FROM_BYTES = 3_000_000_000
LAUNCHES_PER_INSTANCE = 2**31
"""Stage-1 waits for `epoch > seen` in signed 32 bits: launch number 2**31 never returns (executed on a CPU)."""


@dataclass(frozen=True, slots=True)
class MoeGeometry:
    """One MoE layer under expert parallelism. mtpr is tokens per rank, the same on every rank."""

    hidden: int
    inter: int
    experts: int
    topk: int
    ep_size: int = 8
    mtpr: int = 8192
    quant: str = "a8w4"

    def __post_init__(self) -> None:
        bad = [
            f"{n}={v}"
            for n, v in (
                ("hidden", self.hidden),
                ("inter", self.inter),
                ("experts", self.experts),
                ("topk", self.topk),
                ("ep_size", self.ep_size),
                ("mtpr", self.mtpr),
            )
            if v < 1
        ]
        if self.quant not in ("a8w4", "a4w4"):
            bad.append(f"quant={self.quant!r}")
        if not bad and self.experts % self.ep_size:
            bad.append(f"experts={self.experts} over ep_size={self.ep_size}")
        if bad:
            raise Problem(
                "geometry",
                exit_code=Exit.REFUSED,
                what=f"not a MegaMoE geometry: {', '.join(bad)}",
                why="sizes are positive, quant is a8w4 or a4w4, and every rank owns the same number of experts",
                fix="compare with the model's config.json and the number of GPUs",
            )

    @property
    def local_experts(self) -> int:
        return self.experts // self.ep_size

    @property
    def received(self) -> int:
        """R: tokens that one rank may receive when every rank sends all of its own."""
        return self.ep_size * self.mtpr

    @property
    def row_bytes(self) -> int:
        """Bytes of a quantised activation row."""
        return self.hidden if self.quant == "a8w4" else self.hidden // 2

    def at(self, mtpr: int) -> MoeGeometry:
        return replace(self, mtpr=mtpr)


V4_PRO = MoeGeometry(7168, 3072, 384, 6)
V4_FLASH = MoeGeometry(4096, 2048, 256, 6)
R1 = MoeGeometry(7168, 2048, 256, 8)

# Rows of FlyDSL's stage-1 tune table (W = 8): token bucket -> tile_m. A T between buckets takes the next one up.
_TUNED_U: dict[tuple[int, int, int, int, str], dict[int, int]] = {
    (7168, 3072, 384, 6, "a8w4"): dict.fromkeys((1, 4, 8, 16, 32, 64, 128), 32)
    | dict.fromkeys((256, 512, 1024, 2048, 4096, 8192, 16384, 32768), 64),
    (4096, 2048, 256, 6, "a8w4"): dict.fromkeys((1, 4, 8, 16, 32, 64, 256), 32)
    | dict.fromkeys((128, 512, 1024, 2048, 4096, 8192, 16384, 32768), 64),
    (7168, 2048, 256, 8, "a4w4"): dict.fromkeys((1, 4, 8, 16, 32, 64), 32)
    | dict.fromkeys((128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768), 64),
}
_DEFAULT_U = 64


def stage1_tile(g: MoeGeometry) -> int:
    """u: token rows of a stage-1 tile, from upstream's tune table; 64 for a shape or a W that it does not hold."""
    table = _TUNED_U.get((g.hidden, g.inter, g.experts, g.topk, g.quant)) if g.ep_size == 8 else None
    if table is None:
        return _DEFAULT_U
    fitting = [bucket for bucket in table if bucket >= g.mtpr]
    return table[min(fitting)] if fitting else table[max(table)]


def is_compact(g: MoeGeometry) -> bool:
    """Whether the count-first layout is used (else fixed slots per expert). Upstream's rule; no argument changes it."""
    largest = g.local_experts * g.received * max(g.row_bytes, 2 * g.inter)
    return largest >= COMPACT_FROM_BYTES or g.local_experts > 64


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def sorted_rows(g: MoeGeometry) -> int:
    """nvm: rows of the expert-major buffers, with padding of every expert to whole tiles."""
    u = stage1_tile(g)
    if is_compact(g):
        return g.received * g.topk + g.local_experts * u
    return g.local_experts * _up(g.received, u) + 256


def megamoe_heap_bytes(g: MoeGeometry) -> int:
    """Symmetric heap of one MegaMoE instance, every allocation rounded to 256 bytes. Never freed by upstream."""
    w, t, k, r, h = g.ep_size, g.mtpr, g.topk, g.received, g.hidden
    epr, nvm, scales = g.local_experts, sorted_rows(g), h // 32
    sizes = [4 * w, 4 * epr, 4 * epr, nvm * g.row_bytes, 4 * nvm * -(-scales // 4), 4 * nvm, 4 * nvm, 4 * nvm, 4 * w]
    if is_compact(g):
        sizes += [4 * epr, 4 * epr, 4 * w, 4 * w, 4 * w, 4 * w * g.experts]
    sizes += [
        r * g.row_bytes,
        4 * r * k,
        4 * r * k,
        r * scales,
        4,
        4 * w,
        4 * r,
        2 * h * max(r, t * k),
        4 * r * k,
        2 * t * h,
        4 * t * k,
        8 * w,
    ]
    return sum(_up(size, HEAP_ALIGNMENT) for size in sizes)


def megamoe_hbm_bytes(g: MoeGeometry) -> int:
    """Ordinary device memory of one instance (a2, its scales, gemm2's placeholder, sort tables), without weights."""
    w, t, k, r, h, i = g.ep_size, g.mtpr, g.topk, g.received, g.hidden, g.inter
    u, nvm, compact = stage1_tile(g), sorted_rows(g), is_compact(g)
    blocks = -(-nvm // u)
    a2 = r * k * i // (1 if g.quant == "a8w4" else 2)
    a2_scales = _up(blocks * max(32, u), 256) * _up(i // 32, 8) + i
    tables = 8 * nvm + 4 * (nvm // 32 + 8) + 4 * r * k + 4 * t * k + 8 * blocks + 4 * r
    addresses = 8 * w * (10 + 8 + (6 if compact else 0)) + 8 * (43 if compact else 26)
    counters = (12 * g.experts if compact else 0) + _scalar_bytes(g, compact)
    return a2 + a2_scales + 2 * r * h + tables + addresses + counters


def _scalar_bytes(g: MoeGeometry, compact: bool) -> int:
    """Counters and flags: two arrays of W int32 and, counted in the constructors, 86 bytes (74 when fixed-slot)."""
    return 8 * g.ep_size + (86 if compact else 74)


def weight_bytes_per_layer(g: MoeGeometry) -> int:
    """w13, w2 and their scales of one rank and layer, as MegaMoE keeps them (pads of scales not counted)."""
    per_expert = g.inter * g.hidden + g.inter * g.hidden // 16 + g.hidden * g.inter // 2 + g.hidden * g.inter // 32
    return g.local_experts * per_expert


def mori_op_bytes(g: MoeGeometry, max_num_batched_tokens: int) -> int:
    """Symmetric heap of ATOM's own dispatch/combine operator, which shares the heap when it is built."""
    m, k, h = max_num_batched_tokens, g.topk, g.hidden
    rm, scales = g.ep_size * m, h // 128
    return rm * (2 * h + 8 * k + 4 + 4 * scales) + rm * 2 * h + m * 2 * h + 12 * rm * k + 8 * rm * scales + 8 * rm * k


def heap_to_render(g: MoeGeometry, *, atom_mori_ops: int = 0, max_num_batched_tokens: int | None = None) -> int:
    """MORI_SHMEM_HEAP_SIZE in bytes for a launch: need and 64 MiB of slack, rounded up to a whole GiB.

    Args:
        atom_mori_ops: how many of its own operators ATOM builds: 0 with this adapter, 1 without it, 3 with TBO.
        max_num_batched_tokens: their size; the mtpr when not given.
    """
    if atom_mori_ops < 0:
        raise Problem(
            "mori_ops",
            exit_code=Exit.REFUSED,
            what=f"atom_mori_ops={atom_mori_ops}",
            why="a number of operators is not negative",
            fix="pass 0, 1 or 3",
        )
    tokens = g.mtpr if max_num_batched_tokens is None else max_num_batched_tokens
    need = megamoe_heap_bytes(g) + atom_mori_ops * mori_op_bytes(g, tokens) + HEAP_SLACK_BYTES
    return _up(need, GIB)


def heap_reasons(
    g: MoeGeometry, heap_bytes: int, *, atom_mori_ops: int = 0, taken_bytes: int = 0
) -> list[Reason]:
    """A reason when a static heap of that size cannot hold the launch. taken_bytes: of instances of other sizes."""
    need = megamoe_heap_bytes(g) + atom_mori_ops * mori_op_bytes(g, g.mtpr) + MORI_SYNC_BYTES + taken_bytes
    if heap_bytes >= need:
        return []
    fits = max(heap_to_render(g, atom_mori_ops=atom_mori_ops), _up(need + HEAP_SLACK_BYTES, GIB))
    return [
        Reason(
            "heap_too_small",
            f"MORI_SHMEM_HEAP_SIZE is {heap_bytes} bytes, MegaMoE at mtpr={g.mtpr} needs {need}",
            "the symmetric heap is allocated once, before the first layer, and cannot grow",
            f"set MORI_SHMEM_HEAP_SIZE={fits // GIB}G",
        )
    ]


# ---- 32-bit and packing bounds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """One of the kernels' arithmetic limits: `value(g)` must stay below `end`."""

    name: str
    what: str
    value: Callable[[MoeGeometry], int]
    end: int
    effect: str
    grows_with_mtpr: bool = True


def _a2_numbers(g: MoeGeometry) -> int:
    return g.received * g.topk * g.inter // (1 if g.quant == "a8w4" else 2)


BOUNDS: tuple[Bound, ...] = (
    Bound("L1", "elements of the flattened a2", _a2_numbers, 2**31, "every rank fails at its first stage-2 call"),
    Bound(
        "L2",
        "bytes of the received rows",
        lambda g: sorted_rows(g) * g.row_bytes,
        UINT32_END,
        "rows beyond the wrapped size read as 0, silently",
    ),
    Bound(
        "L3",
        "bytes of gemm2's input",
        lambda g: g.received * g.topk * g.inter,
        UINT32_END,
        "rows beyond the wrapped size read as 0, silently",
    ),
    Bound(
        "L4",
        "source token number (24 bits, one value is a sentinel)",
        lambda g: g.received,
        2**24,
        "tokens alias others, silently",
    ),
    Bound("L5", "slot number (8 bits, the kernels accept 64)", lambda g: g.topk, 65, "the constructor raises", False),
    Bound(
        "L6",
        "offset of gemm2's peer store",
        lambda g: g.mtpr * g.topk * 2 * g.hidden,
        UINT32_END,
        "results land in other tokens' slots, silently",
    ),
    Bound(
        "L7", "index of the combine weight", lambda g: g.received * g.topk, 2**30, "weights of other tokens, silently"
    ),
    Bound(
        "L8",
        "bytes of the received scales",
        lambda g: sorted_rows(g) * g.hidden // 32,
        UINT32_END,
        "scales of other rows, silently",
    ),
    Bound(
        "L9",
        "bytes of w13 passed as one dimension",
        lambda g: g.local_experts * g.inter * g.hidden,
        2**31,
        "the launch's argument packing fails",
        False,
    ),
    Bound(
        "L10",
        "row number of the fixed-slot layout",
        lambda g: 0 if is_compact(g) else g.local_experts * _up(g.received, stage1_tile(g)),
        2**31,
        "rows wrap, silently",
    ),
)
"""L11, the launch epoch, is not a matter of geometry: see epoch_hours."""


def bound_reasons(g: MoeGeometry) -> list[Reason]:
    """Every bound of L1 to L10 that this geometry breaks; empty when it may run."""
    reasons = []
    for bound in BOUNDS:
        value = bound.value(g)
        if value >= bound.end:
            fix = (
                f"lower --max-num-batched-tokens (the mtpr) from {g.mtpr}; the largest legal value is "
                f"{largest_legal(g) or 'none'}"
                if bound.grows_with_mtpr
                else "use more ranks, or another model"
            )
            reasons.append(
                Reason(
                    f"bound_{bound.name}", f"{bound.what} is {value}, the limit is {bound.end - 1}", bound.effect, fix
                )
            )
    return reasons


def mtpr_reasons(mtpr: int) -> list[Reason]:
    """A reason when mtpr is not a positive power of two."""
    if mtpr > 0 and mtpr & (mtpr - 1) == 0:
        return []
    return [
        Reason(
            "mtpr",
            f"mtpr={mtpr} is not a positive power of two",
            "the kernels take a token's rank and row apart by shift and mask",
            "use --max-num-batched-tokens 8192 (DeepSeek-V4-Pro), 4096 or 2048",
        )
    ]


def largest_legal(g: MoeGeometry) -> int:
    """Largest power of two that every bound allows as mtpr of this geometry; 0 when none is."""
    best, mtpr = 0, 1
    while mtpr <= 2**24:
        at = g.at(mtpr)
        if all(b.value(at) < b.end for b in BOUNDS):
            best = mtpr
        mtpr *= 2
    return best


def largest_legal_mtpr(*, hidden: int, inter: int, experts: int, topk: int, world: int, quant: str = "a8w4") -> int:
    """largest_legal by plain numbers. V4-Pro at 8 ranks: 8192; V4-Flash: 16384."""
    return largest_legal(MoeGeometry(hidden, inter, experts, topk, world, 1, quant))


def smallest_compact(g: MoeGeometry) -> int:
    """Smallest power of two mtpr with the compact layout (fixed-slot has a publish race in the pinned kernels)."""
    mtpr = 1
    while not is_compact(g.at(mtpr)):
        mtpr *= 2
    return mtpr


def epoch_hours(layers: int, forwards_per_second: float) -> float:
    """L11: hours until the launch epoch of one shared instance is used up and stage-1 hangs.

    Args:
        layers: MoE layers that share the instance, each one launch per forward. forwards_per_second: steps of one rank.
    """
    if layers < 1 or not forwards_per_second > 0:
        raise Problem(
            "epoch_rate",
            exit_code=Exit.REFUSED,
            what=f"layers={layers}, forwards_per_second={forwards_per_second}",
            why="the time to 2^31 launches follows from a positive rate",
            fix="pass a measured rate",
        )
    return LAUNCHES_PER_INSTANCE / (layers * forwards_per_second) / 3600
