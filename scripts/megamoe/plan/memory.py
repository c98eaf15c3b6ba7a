"""Memory of one GPU: weights, symmetric heap, MegaMoE's buffers, and what is left for KV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megamoe.deploy.sizes import GIB, human, mori_bytes
from megamoe.plan import arithmetic
from megamoe.plan.effective import tokens_per_rank
from megamoe.plan.rule import Context, Hit, refuse, warn

MORI_DEFAULT_HEAP = 4 * GIB  # static heap; ROCm/mori include/mori/shmem/internal.hpp at the pinned commit


@dataclass(frozen=True, slots=True)
class Need:
    """What the fused path takes on one GPU, in bytes. None: the geometry or layout is not legal, so there is none."""

    heap: int | None  # symmetric heap, before rounding
    buffers: int | None  # ordinary GPU memory


def need(c: Context) -> Need:
    """Heap and buffers of this plan from megamoe_atom.limits; ATOM's own mori operator shares the heap."""
    if not c.on_gpu or c.ep_size <= 1 or c.profile.experts % c.ep_size:
        return Need(None, None)
    return Need(*arithmetic.heap_and_buffers(c.profile, c.ep_size, tokens_per_rank(c.args), mega=c.mega))


def heap_to_ask_for(c: Context) -> int | None:
    """Heap to ask for: need and slack, rounded up to a whole GiB."""
    if not c.on_gpu or c.ep_size <= 1:
        return None
    return arithmetic.heap_to_ask_for(c.profile, c.ep_size, tokens_per_rank(c.args), mega=c.mega)


def heap_bytes(c: Context) -> int:
    """Size of the static heap that mori allocates in full at start; 0 when nothing initialises mori."""
    if not c.on_gpu or c.ep_size <= 1:
        return 0
    text = c.env.get("MORI_SHMEM_HEAP_SIZE")
    given = mori_bytes(text) if text is not None else MORI_DEFAULT_HEAP
    return given if given is not None else 0


def weights_bytes(c: Context) -> tuple[int | None, int | None]:
    """(routed experts, everything else) on one GPU; None where the profile does not know the model's size.

    Experts are spread over all ranks in either layout. The rest is a copy per rank under DP attention, else split.
    """
    ranks = max(1, c.layout.ranks)
    mine = arithmetic.expert_bytes_per_rank(c.profile, ranks)
    total = arithmetic.expert_bytes_per_rank(c.profile, 1)
    if mine is None or total is None or c.profile.checkpoint_bytes is None:
        return mine, None
    rest = c.profile.checkpoint_bytes - total
    return mine, rest if c.args.enable_dp_attention else rest // ranks


def reserve_bytes(c: Context) -> int:
    """What the engine takes outside its share, by the only measurement on record (profile: memory)."""
    return c.profile.outside_kv_bytes_per_seq * (c.args.max_num_seqs or 0)


def budget(c: Context) -> dict[str, Any]:
    """The table that the plan shows, in bytes; what is not known is null and said."""
    if not c.on_gpu:
        return {"rows": [_row("GPU memory", None, "engine reference runs on the CPU")]}
    vram = int(c.deploy.gpu.vram_gib * GIB)
    share = int(vram * c.args.gpu_memory_utilization)
    experts, rest = weights_bytes(c)
    wanted = need(c)
    heap, ask = heap_bytes(c), heap_to_ask_for(c)
    known = [x for x in (experts, rest, wanted.buffers) if x is not None]
    kv = share - sum(known)
    rows = [
        _row("GPU memory", vram, "gpu.vram_gib"),
        _row("engine's share", share, f"gpu_memory_utilization {c.args.gpu_memory_utilization}"),
        _row("  routed experts", experts, "fp4 and scales"),
        _row("  other weights", rest, "one copy per rank" if c.args.enable_dp_attention else "split over ranks"),
        _row("  MegaMoE buffers", wanted.buffers, "one set for all layers"),
        _row(
            "  left for KV and activations",
            kv if experts is not None else None,
            "upper bound: activation peak not measured",
        ),
        _row("symmetric heap", heap, "outside the share; allocated in full at start"),
        _row("  of which needed", wanted.heap, f"ask for {human(ask)}" if ask else ""),
        _row("outside both", reserve_bytes(c), f"max_num_seqs {c.args.max_num_seqs}, by ROCm/ATOM issue 1164"),
        _row("unassigned", vram - share - heap - reserve_bytes(c), ""),
    ]
    return {
        "rows": rows,
        "vram_bytes": vram,
        "engine_share_bytes": share,
        "expert_bytes": experts,
        "other_weight_bytes": rest,
        "megamoe_buffer_bytes": wanted.buffers,
        "kv_and_activation_bytes": kv if experts is not None else None,
        "heap_bytes": heap,
        "heap_needed_bytes": wanted.heap,
        "heap_recommended_bytes": ask,
        "reserve_bytes": reserve_bytes(c),
    }


def limits(c: Context) -> dict[str, Any]:
    """Token limits of this geometry and layout."""
    out: dict[str, Any] = {
        "max_num_batched_tokens": tokens_per_rank(c.args),
        "validated": c.profile.validated_mbt,
        "ranks": c.layout.ranks,
        "ep_size": c.ep_size,
        "experts_per_rank": c.profile.experts // max(1, c.ep_size),
    }
    if c.mega:
        out["largest_legal"] = arithmetic.largest_legal(c.profile, max(1, c.ep_size))
    return out


def _row(what: str, count: int | None, note: str) -> dict[str, Any]:
    return {"what": what, "bytes": count, "text": "unknown" if count is None else human(count), "note": note}


def heap(c: Context) -> Iterator[Hit]:
    """The heap must be given with the fused path, hold what is needed, and not waste what KV could use."""
    if not c.on_gpu:
        return
    text = c.env.get("MORI_SHMEM_HEAP_SIZE")
    wanted = need(c).heap
    offer = heap_to_ask_for(c)
    advice = (
        f'set env.MORI_SHMEM_HEAP_SIZE: "{offer}" ({human(offer)})'
        if offer
        else ("set env.MORI_SHMEM_HEAP_SIZE after the other reasons are settled")
    )
    if text is None and c.mega:
        yield refuse(
            "heap_not_given",
            "env.MORI_SHMEM_HEAP_SIZE is not set with args.moe_backend: mega",
            f"mori's default is {human(MORI_DEFAULT_HEAP)}"
            + (f", this plan needs {human(wanted)}" if wanted else "")
            + "; its own messages name three different defaults",
            advice,
            "env.MORI_SHMEM_HEAP_SIZE",
            "args.moe_backend",
        )
    given = mori_bytes(text) if text is not None else None
    keys = ("env.MORI_SHMEM_HEAP_SIZE", "args.max_num_batched_tokens", "model.profile", "args.tensor_parallel")
    have = given if text is not None else (None if c.mega else MORI_DEFAULT_HEAP)
    if have is not None and wanted is not None and have < wanted:
        yield refuse(
            "heap_too_small",
            f"the symmetric heap is {human(have)} ({have} bytes), this plan needs {human(wanted)}",
            "'Out of static heap memory' at the first forward, after the whole model was loaded",
            advice,
            *keys,
        )
    elif given is not None and offer is not None and given > 4 * offer and given >= 32 * GIB:
        yield warn(
            "heap_wasteful",
            f"the symmetric heap is {human(given)}, this plan needs {human(wanted or 0)}",
            "it is allocated in full at start, and lowers the room for KV one to one",
            advice,
            *keys,
        )


def fits(c: Context) -> Iterator[Hit]:
    """share + heap + reserve must fit the card: the heap is outside the engine's share (ROCm/ATOM model_runner.py)."""
    if not c.on_gpu or c.deploy.gpu.vram_gib < 1:  # rules_parallel refuses such a card
        return
    vram = int(c.deploy.gpu.vram_gib * GIB)
    share, heap_size, reserve = int(vram * c.args.gpu_memory_utilization), heap_bytes(c), reserve_bytes(c)
    keys = (
        "args.gpu_memory_utilization",
        "gpu.vram_gib",
        "env.MORI_SHMEM_HEAP_SIZE",
        "args.max_num_seqs",
        "args.tensor_parallel",
        "args.enable_expert_parallel",
    )
    if share + heap_size + reserve > vram:
        best = max(0.0, (vram - heap_size - reserve) / vram)
        fix = (
            f"set args.gpu_memory_utilization: {int(best * 100) / 100:.2f}"
            if best >= 0.05
            else "lower env.MORI_SHMEM_HEAP_SIZE: it alone does not fit"
        )
        yield refuse(
            "memory_over_card",
            f"{human(share)} (gpu_memory_utilization {c.args.gpu_memory_utilization}) + "
            f"{human(heap_size)} heap + {human(reserve)} outside both = {human(share + heap_size + reserve)} "
            f"on a card of {human(vram)}",
            "the heap is outside the engine's share, which at the pinned ATOM is "
            "sized without looking at it: out of memory after the load",
            fix,
            *keys,
        )
    experts, rest = weights_bytes(c)
    buffers = need(c).buffers or 0
    if experts is not None:
        total = experts + (rest or 0) + buffers
        if total >= share:
            yield refuse(
                "weights_over_share",
                f"weights and buffers take {human(total)} of the engine's {human(share)}",
                "nothing is left for KV: the engine stops after the load",
                "raise args.gpu_memory_utilization, use more ranks, or GPUs with more memory",
                *keys,
                "model.profile",
                "args.enable_dp_attention",
                "args.max_num_batched_tokens",
            )


RULES = (heap, fits)
