"""Where memory ends, to the byte: a heap, a card and a share that just hold the plan, and one byte too little.

The bytes are worked out here a second time, from the sizes of FlyDSL's allocations at the pinned commit (kernels/
mega_moe, kernels/comm): heap figures in HEAP are of a log that the real constructor left, not of any formula.
"""

from __future__ import annotations

from typing import Any

import pytest
from megamoe.deploy.profiles import Profile, load_profile
from megamoe.deploy.sizes import GIB
from megamoe_atom.problem import Exit
from plan_support import codes, plan

HEAP = {("deepseek-v4-pro", 256): 778_070_784, ("deepseek-v4-pro", 1024): 3_106_591_488,
        ("deepseek-v4-pro", 2048): 1_137_249_280, ("deepseek-v4-pro", 8192): 4_480_715_776}  # fmt: skip
HEAP_GIB = {("deepseek-v4-flash", 1024): 1.138, ("deepseek-v4-flash", 4096): 1.196, ("deepseek-v4-flash", 8192): 2.384,
            ("deepseek-v4-flash", 16384): 4.761}  # fmt: skip
CASES = [*HEAP, *HEAP_GIB]
MORI_STARTS = 1024  # ROCm/mori src/shmem/init.cpp MORI_INTERNAL_SYNC_SIZE: taken before the first tensor
RANKS, TILE = 8, 64


def up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def geometry(name: str) -> tuple[int, int, int, int]:
    """hidden, intermediate, experts, topk."""
    return {"deepseek-v4-pro": (7168, 3072, 384, 6), "deepseek-v4-flash": (4096, 2048, 256, 6)}[name]


def rows(name: str, tokens: int) -> tuple[int, bool]:
    """Expert-major rows, and whether the layout counts first."""
    hidden, inter, experts, topk = geometry(name)
    received, mine = RANKS * tokens, experts // RANKS
    compact = mine > 64 or mine * received * max(hidden, 2 * inter) >= 3_000_000_000
    return (received * topk + mine * TILE if compact else mine * up(received, TILE) + 256), compact


def heap(name: str, tokens: int) -> int:
    """Bytes of the symmetric heap, every tensor rounded up to 256."""
    hidden, _, experts, topk = geometry(name)
    received, mine, scales = RANKS * tokens, experts // RANKS, hidden // 32
    count, compact = rows(name, tokens)
    words = [RANKS, mine, mine, count * -(-scales // 4), count, count, count, RANKS]  # of 4 bytes each
    if compact:
        words += [mine, mine, RANKS, RANKS, RANKS, RANKS * experts]
    words += [received * topk, received * topk, 1, RANKS, received, received * topk, tokens * topk]
    octets = [count * hidden, received * hidden, received * scales, 2 * hidden * max(received, tokens * topk),
              2 * tokens * hidden, 8 * RANKS]  # fmt: skip
    return sum(up(4 * w, 256) for w in words) + sum(up(b, 256) for b in octets)


def expert_bytes(name: str) -> int:
    """fp4 gate, up and down projections, a scale byte per 32 values, of one rank over V4-Pro's 61 layers."""
    hidden, inter, experts, _ = geometry(name)
    return 61 * (experts // RANKS) * (3 * hidden * inter // 2 + 3 * hidden * inter // 32)


def changes(name: str, tokens: int, heap_bytes: int, **more: Any) -> dict[str, Any]:
    return {"model__profile": name, "args__max_num_batched_tokens": tokens, "args__max_num_seqs": 64,
            "env__MORI_SHMEM_HEAP_SIZE": str(heap_bytes), **more}  # fmt: skip


@pytest.mark.parametrize(("name", "tokens"), CASES)
def test_a_heap_that_just_holds_the_plan_is_accepted_and_one_byte_less_is_refused(name: str, tokens: int) -> None:
    need = heap(name, tokens)
    if (name, tokens) in HEAP:
        assert need == HEAP[name, tokens]
    else:
        assert round(need / GIB, 3) == HEAP_GIB[name, tokens]
    need += MORI_STARTS
    exact = plan(**changes(name, tokens, need))
    assert exact.exit_code is Exit.PASS, exact.findings
    assert exact.data["memory"]["heap_needed_bytes"] == need
    short = plan(**changes(name, tokens, need - 1))
    assert codes(short) == {"heap_too_small"}


@pytest.mark.parametrize("name", ["deepseek-v4-pro", "deepseek-v4-flash"])
def test_a_card_that_just_holds_share_heap_and_reserve_is_accepted_and_one_byte_more_is_refused(name: str) -> None:
    card, share = 288 * GIB, int(288 * GIB * 0.9)
    room = card - share - load_profile(name).outside_kv_bytes_per_seq * 64
    exact = plan(**changes(name, 8192, room, args__gpu_memory_utilization=0.9))
    assert exact.exit_code is Exit.PASS, exact.findings
    assert codes(plan(**changes(name, 8192, room + 1, args__gpu_memory_utilization=0.9))) == {"memory_over_card"}


def test_a_share_that_weights_and_buffers_fill_is_refused_and_one_byte_for_kv_is_room() -> None:
    name, card = "deepseek-v4-pro", 288 * GIB
    profile: Profile = load_profile(name)
    memory = plan(**changes(name, 8192, 16 * GIB)).data["memory"]
    assert (memory["expert_bytes"], memory["megamoe_buffer_bytes"]) == (expert_bytes(name), 2_190_838_030)
    assert profile.checkpoint_bytes is not None
    # The buffers were counted in the real constructor; what is no routed expert has a copy on every rank.
    filled = expert_bytes(name) + 2_190_838_030 + profile.checkpoint_bytes - RANKS * expert_bytes(name)

    def verdict(share: int) -> set[str]:
        outcome = plan(**changes(name, 8192, 16 * GIB, args__gpu_memory_utilization=(share + 0.5) / card))
        if outcome.exit_code is Exit.PASS:
            assert outcome.data["memory"]["engine_share_bytes"] == share
            assert outcome.data["memory"]["kv_and_activation_bytes"] == share - filled
        return codes(outcome)

    assert verdict(filled) == {"weights_over_share"}
    assert verdict(filled + 1) == set()


def test_where_the_number_of_layers_is_unknown_so_are_the_weights_and_what_they_leave() -> None:
    memory = plan(**changes("deepseek-v4-flash", 8192, 16 * GIB)).data["memory"]
    assert memory["expert_bytes"] is memory["other_weight_bytes"] is memory["kv_and_activation_bytes"] is None
