"""The self-test passes a healthy layer and finds, and names, each planted fault. CPU reference, two or four ranks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from cluster import Cluster, geometry, random_weights
from megamoe_atom.layout import convert_layer_tensors
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.selftest import (
    VARIANTS,
    Weights,
    make_batch,
    partial,
    rel_l2,
    row_rel,
    tokens_per_rank,
    unshuffled,
)

Plant = Callable[[Cluster], None]


def _weights(kind: str, which: int = 0, rank: int | None = None) -> Plant:
    return lambda c: c.replace(VARIANTS[kind][which], rank)


def _change_expert(local: int, rank: int, change: Callable[[torch.Tensor], None], tensor: int = 2) -> Plant:
    def edit(raw: Weights) -> Weights:
        copy = tuple(t.clone() for t in raw)
        change(copy[tensor][local])
        return copy  # type: ignore[return-value]

    return lambda c: c.replace(edit, rank)


def _swap_experts(c: Cluster) -> None:
    def edit(raw: Weights) -> Weights:
        order = torch.arange(raw[0].shape[0])
        order[0], order[2] = 2, 0
        return tuple(t[order] for t in raw)  # type: ignore[return-value]

    c.replace(edit, 1)


def _output(change: Callable[[int, list[torch.Tensor]], None]) -> Plant:
    def plant(c: Cluster) -> None:
        def spoil(call: int, _name: str, outs: list[torch.Tensor]) -> list[torch.Tensor]:
            change(call, outs)
            return outs

        c.spoil_output = spoil

    return plant


def _stale(c: Cluster) -> None:
    kept: list[list[torch.Tensor]] = []

    def spoil(call: int, _name: str, outs: list[torch.Tensor]) -> list[torch.Tensor]:
        kept.append([o.clone() for o in outs])
        if call > 1:
            outs[1][:] = kept[-2][1][: len(outs[1])]
        return outs

    c.spoil_output = spoil


def _race(at: int) -> Plant:
    def plant(c: Cluster) -> None:
        def spoil(call: int, _name: str, outs: list[torch.Tensor]) -> list[torch.Tensor]:
            if call == at:  # one tile in about 200 calls, within the bound of the quantisation
                outs[1][2:3, 64:96] *= 1.01
            return outs

        c.spoil_output = spoil

    return plant


def _tile(_call: int, outs: list[torch.Tensor]) -> None:
    outs[0][3:5, 32:96] = 0


def _nan(_call: int, outs: list[torch.Tensor]) -> None:
    outs[1][2, 5] = float("nan")


def _inputs(change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Plant:
    def plant(c: Cluster) -> None:
        c.spoil_input = lambda inputs: [(x, *change(i, w)) for x, i, w in inputs]

    return plant


def _no_clamp(c: Cluster) -> None:
    for kernel in c.kernels:
        kernel.swiglu_limit = 0.0


def _drop(i: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    w = w.clone()
    w[:, -1] = 0
    return i, w


def _bad_pad(c: Cluster) -> None:
    """Scales converted as if each expert's rows were padded alone: a block of 32 rows moves by a pad's width."""

    def edit(raw: Weights) -> Weights:
        s2 = raw[3].flatten(0, 1)
        return raw[0], raw[1], raw[2], torch.cat((torch.zeros_like(s2[:32]), s2[:-32])).view(raw[3].shape)

    c.replace(edit)


def _laid_out_separated(c: Cluster) -> None:
    """The recipe of another kernel: every byte count is right, and the converted layer itself says gate_up=False."""
    for key, raw in c.raw.items():
        c.converted[key] = convert_layer_tensors(*raw, gate_up=False)


FAULTS: dict[str, tuple[Plant, set[str]]] = {
    "gate and up swapped": (_weights("gate_up_swapped"), {"gate_up_swapped"}),
    "gate and up mis-paired": (_weights("gate_up_mispaired", 1), {"gate_up_mispaired"}),
    "w13 laid out separated, read interleaved": (_laid_out_separated, {"gate_up_mispaired"}),
    "w13 scales of the neighbouring row": (_weights("scale_layout", 0), {"scale_layout"}),
    "w2 scales of the neighbouring block": (_weights("scale_layout", 8), {"scale_layout"}),
    "scales of the neighbouring expert": (_weights("scale_layout", 4), {"scale_layout"}),
    "scales of gate and up swapped": (_weights("scale_layout", 12), {"scale_layout"}),
    "wrong pad of the w2 scales": (_bad_pad, {"weights_unknown", "several_experts"}),
    "nibbles swapped": (_weights("nibbles_swapped"), {"nibbles_swapped"}),
    "nibbles of w2 swapped on one rank": (_weights("nibbles_swapped", 2, 1), {"nibbles_swapped"}),
    "experts of one rank shifted": (_weights("experts_shifted", 0, 1), {"experts_shifted"}),
    "one expert zeroed": (_change_expert(1, 0, lambda t: t.zero_()), {"one_expert"}),
    "one expert's scales doubled": (_change_expert(3, 1, lambda t: t.add_(1), 3), {"one_expert"}),
    "two experts swapped": (_swap_experts, {"several_experts"}),
    "clamp missing on large activations": (_no_clamp, {"clamp_missing"}),
    "a stale buffer on one rank": (_stale, {"stale_buffer"}),
    "one tile of a token block zero": (_output(_tile), {"one_tile"}),
    "a NaN": (_output(_nan), {"not_finite"}),
    "routing weights ignored": (_inputs(lambda i, w: (i, torch.ones_like(w))), {"weights_ignored"}),
    "last slot dropped": (_inputs(_drop), {"slot_dropped"}),
    "routing weights in another order": (_inputs(lambda i, w: (i, w.roll(1, -1))), {"weights_misordered"}),
    "ids off by one": (_inputs(lambda i, w: ((i + 1) % 8, w)), {"ids_shifted"}),
}


@pytest.mark.parametrize(("plant", "kinds"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_stops_the_start_and_is_named(plant: Plant, kinds: set[str]) -> None:
    cluster = Cluster(geometry(), seed=5)
    plant(cluster)
    with pytest.raises(Problem) as caught:
        cluster.verify()
    assert caught.value.exit_code is Exit.CHECK_FAILED
    assert caught.value.code == "selftest"
    assert any(f"likely {kind}:" in str(caught.value) for kind in kinds), str(caught.value)


def _bits_flipped(rows: int, mask: int) -> Plant:
    def flip(t: torch.Tensor) -> None:
        t[:rows] ^= mask

    return _change_expert(0, 1, flip, tensor=0)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        pytest.param(_bits_flipped(16, 0x11), False, id="lowest bits of 16 rows: below the quantisation's own error"),
        pytest.param(_bits_flipped(128, 0x11), True, id="lowest bits of 128 rows"),
        pytest.param(_bits_flipped(16, 0x88), True, id="signs of 16 rows"),
    ],
)
def test_what_the_self_test_can_see_of_flipped_bits(plant: Plant, found: bool) -> None:
    """Its limit, stated in the adapter's page: a fault smaller than the quantisation's error passes."""
    cluster = Cluster(geometry(), seed=3)
    plant(cluster)
    if found:
        with pytest.raises(Problem, match="likely one_expert"):
            cluster.verify()
    else:
        assert cluster.verify().layers[0].ok


@pytest.mark.parametrize("at", [137, 138], ids=["in the judged batch", "in the batch between"])
def test_one_corrupted_tile_in_two_hundred_calls_is_non_deterministic(at: int) -> None:
    cluster = Cluster(geometry(), seed=6)
    _race(at)(cluster)
    with pytest.raises(Problem, match="likely non_deterministic: 1 of 200") as caught:
        cluster.verify(repeats=200)
    assert "node" in caught.value.reasons[0].fix


def test_one_wrong_token_of_many_is_found_although_the_layers_figure_hides_it() -> None:
    cluster = Cluster(geometry(world_size=8, experts=32, topk=4, mtpr=16), seed=8)
    _output(lambda _call, outs: outs[3][2:3].mul_(0.7))(cluster)
    test = cluster.selftest(repeats=4, sweep=False)
    with pytest.raises(Problem, match=r"worst token 0\.3"):
        test.verify(cluster.run, lambda name, r: cluster.converted[name, r])
    assert test.report is not None
    assert max(test.report.layers[0].rel_quiet, test.report.layers[0].rel_loud) < 0.1


def test_after_five_faulty_layers_nothing_more_is_judged() -> None:
    cluster = Cluster(geometry(), layers=7, seed=9)
    _output(_tile)(cluster)
    test = cluster.selftest(repeats=4, sweep=False)
    with pytest.raises(Problem) as caught:
        test.verify(cluster.run, lambda name, r: cluster.converted[name, r])
    assert len(caught.value.reasons) == 5
    assert test.report is not None and len(test.report.layers) == 5


def test_a_passed_self_test_gives_its_memory_back() -> None:
    cluster = Cluster(geometry(), seed=4)
    test = cluster.selftest(repeats=4, sweep=False)
    kept = [weakref.ref(t) for t in test._partials.values()]
    assert len(kept) == 2
    test.verify(cluster.run, lambda name, r: cluster.converted[name, r])
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


def test_only_the_faulty_layer_is_named() -> None:
    cluster = Cluster(geometry(), layers=3, seed=7)
    for r in range(2):
        w = cluster.raw["layers.1", r]
        cluster.converted["layers.1", r] = cluster.converted["layers.2", r]
        assert w is not cluster.raw["layers.2", r]
    with pytest.raises(Problem) as caught:
        cluster.verify()
    assert [r.what.split(":")[0] for r in caught.value.reasons] == ["layers.1"]


@pytest.mark.parametrize("seed", range(50))
def test_a_healthy_layer_passes(seed: int) -> None:
    report = Cluster(geometry(), seed=seed).verify()
    assert [r.kind for r in report.layers] == [""]


@pytest.mark.slow
def test_healthy_layers_pass_over_a_thousand_seeds() -> None:
    worst = [0.0, 0.0, 0.0]
    for seed in range(1000):
        row = Cluster(geometry(), seed=100_000 + seed).verify().layers[0]
        worst = [max(a, b) for a, b in zip(worst, (row.rel_quiet, row.rel_loud, row.rel_worst_row), strict=True)]
    print(f"worst of 1000 seeds: quiet {worst[0]:.4f} loud {worst[1]:.4f} token {worst[2]:.4f}")
    assert worst[2] < 0.2


def test_eight_ranks_pass_with_extremes_and_every_bucket() -> None:
    g = geometry(world_size=8, experts=32, topk=4, mtpr=16)
    report = Cluster(g, layers=2, seed=9).verify(sweep=True)
    assert set(report.extremes) == {"one_rank", "one_expert"}
    assert list(report.buckets) == [1, 2, 4, 8, 16]
    assert max(report.buckets.values()) < 0.2


def test_a_fault_of_one_token_bucket_alone_is_found() -> None:
    cluster = Cluster(geometry(), seed=10)

    def spoil(_call: int, _name: str, outs: list[torch.Tensor]) -> list[torch.Tensor]:
        if outs[0].shape[0] == 16:
            outs[0][9] = 0
        return outs

    cluster.spoil_output = spoil
    with pytest.raises(Problem, match="bucket of 16 tokens"):
        cluster.verify(sweep=True)


def test_a_fault_of_skewed_routing_alone_is_found() -> None:
    cluster = Cluster(geometry(), seed=11)
    inner = cluster.run

    def run(name, inputs):
        outs = inner(name, inputs)
        if all(int(i.max()) < 4 for _, i, _ in inputs):
            outs[1][:] = 0
        return outs

    cluster.run = run  # type: ignore[method-assign]
    with pytest.raises(Problem, match="routing extreme one_rank"):
        cluster.verify(sweep=True)


def test_a_kernel_without_limit_is_judged_against_the_unlimited_arithmetic() -> None:
    report = Cluster(geometry(swiglu_limit=0.0), seed=12).verify()
    assert report.layers[0].ok


def test_unshuffled_gives_the_raw_tensors_back() -> None:
    cluster = Cluster(geometry(), seed=13)
    for key, raw in cluster.raw.items():
        assert all(
            torch.equal(a, b) for a, b in zip(unshuffled(cluster.converted[key], gate_up=True), raw, strict=True)
        )


def test_every_rank_makes_the_same_batch_and_every_expert_is_used() -> None:
    g = geometry(world_size=8, experts=64, topk=6)
    tokens = tokens_per_rank(g)
    a, b = make_batch(g, 3, tokens), make_batch(geometry(rank=7, world_size=8, experts=64, topk=6), 3, tokens)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.ids, b.ids)
    assert set(a.ids.flatten().tolist()) == set(range(64))
    assert all(len(set(row)) == 6 for row in a.ids.flatten(0, 1).tolist())


def test_the_partials_of_all_ranks_sum_to_the_layer() -> None:
    g = geometry(world_size=4, experts=8)
    one = geometry(world_size=1, experts=8)
    parts = [random_weights(g, 20 + r) for r in range(4)]
    whole: Weights = tuple(torch.cat(ts) for ts in zip(*parts, strict=True))  # type: ignore[assignment]
    batch = make_batch(g, 1, 8)
    total = sum(partial(parts[r], batch, g, r) for r in range(4))
    flat = make_batch(g, 1, 8)
    assert rel_l2(total, partial(whole, flat, one, 0)) < 1e-6


def test_relative_errors_of_nan_and_zero_are_infinite_not_small() -> None:
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    assert rel_l2(one * float("nan"), one) == float("inf")
    assert rel_l2(one, zero) == float("inf")
    assert rel_l2(zero, zero) == 0.0
    assert row_rel(one * float("nan"), one).min() == float("inf")
