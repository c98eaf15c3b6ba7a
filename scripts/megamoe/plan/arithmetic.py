"""The one place where the plan asks megamoe_atom.limits; no formula of tokens or bytes is written here.

Every function returns None where the numbers are no MegaMoE geometry (experts that do not divide, for example): the
rules that name that fault speak for it.
"""

from __future__ import annotations

from megamoe_atom import limits
from megamoe_atom.problem import Problem

from megamoe.deploy.profiles import Profile


def geometry(profile: Profile, ep_size: int, mtpr: int) -> limits.MoeGeometry | None:
    try:
        return limits.MoeGeometry(
            profile.hidden, profile.inter, profile.experts, profile.topk, ep_size, mtpr, profile.quant
        )
    except Problem:
        return None


def largest_legal(profile: Profile, ep_size: int) -> int | None:
    """Largest tokens per rank that the kernels' 32-bit arithmetic allows; 0 when none is."""
    shape = geometry(profile, ep_size, 1)
    return limits.largest_legal(shape) if shape is not None else None


def heap_and_buffers(profile: Profile, ep_size: int, tokens: int, *, mega: bool) -> tuple[int | None, int | None]:
    """(symmetric heap needed, ordinary device memory) of one rank in bytes.

    With the fused path the adapter builds no mori operator; without it ATOM builds one from the same heap. mori takes
    a little of the heap itself when it starts; the adapter's own check at start counts it, too.
    """
    shape = geometry(profile, ep_size, tokens)
    if shape is None:
        return None, None
    if not mega:
        return limits.mori_op_bytes(shape, tokens) + limits.MORI_SYNC_BYTES, None
    return limits.megamoe_heap_bytes(shape) + limits.MORI_SYNC_BYTES, limits.megamoe_hbm_bytes(shape)


def heap_to_ask_for(profile: Profile, ep_size: int, tokens: int, *, mega: bool) -> int | None:
    """MORI_SHMEM_HEAP_SIZE in bytes: need and slack, rounded up to a whole GiB."""
    shape = geometry(profile, ep_size, tokens)
    if shape is None:
        return None
    if mega:
        return limits.heap_to_render(shape)
    need: int = limits.mori_op_bytes(shape, tokens) + limits.HEAP_SLACK_BYTES
    return -(-need // limits.GIB) * limits.GIB


def expert_bytes_per_rank(profile: Profile, ep_size: int) -> int | None:
    """Routed experts' weights and scales of one rank over all layers; None when the layer count is unknown."""
    shape = geometry(profile, ep_size, 1)
    if shape is None or profile.layers is None:
        return None
    return limits.weight_bytes_per_layer(shape) * profile.layers
