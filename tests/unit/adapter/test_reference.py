"""The reference MegaMoE against the executed gfx950 kernels, a float32 oracle, and its own refusals."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megamoe_atom import layout, quant
from megamoe_atom.problem import Problem
from megamoe_atom.reference import EPOCH_LIMIT, MegaMoE, ReferenceGroup

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.npz"))
Raw = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def build(raw: Raw, *, ep_size: int, topk: int, mtpr: int, quant: str = "a8w4", **more: Any) -> ReferenceGroup:
    """All ranks of a group over raw global weights."""
    experts, rows, packed = raw[0].shape
    per_rank = experts // ep_size
    group = ReferenceGroup(ep_size)
    for rank in range(ep_size):
        mine = [t[rank * per_rank : (rank + 1) * per_rank].contiguous() for t in raw]
        c = layout.convert_layer_tensors(*mine, gate_up=quant == "a8w4")
        MegaMoE(
            rank=rank,
            world_size=ep_size,
            model_dim=packed * 2,
            inter_dim=rows // 2,
            experts=experts,
            topk=topk,
            quant=quant,
            w1=c.w13,
            w1_scale=c.w13_scale,
            w2=c.w2,
            w2_scale=c.w2_scale,
            max_tok_per_rank=mtpr,
            group=group,
            **more,
        )
    return group


def test_the_golden_vectors_are_all_there() -> None:
    assert [p.stem for p in GOLDEN] == [
        "clamp_micro",
        "clamp_micro_compact",
        "micro",
        "micro_compact",
        "micro_u32",
        "small",
        "w2",
        "w2_compact",
        "w8",
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
@pytest.mark.parametrize("prepare", [False, True], ids=["on the fly", "prepared"])
def test_every_output_bit_of_the_executed_kernels_is_met(path: Path, prepare: bool) -> None:
    z = np.load(path)
    ep_size = int(z["ep_size"])
    raw = tuple(torch.from_numpy(z[n]) for n in ("w13", "w13_scale_e8m0", "w2", "w2_scale_e8m0"))
    group = build(
        raw,
        ep_size=ep_size,
        topk=z["topk_ids_r0"].shape[1],
        mtpr=int(z["mtpr"]),
        prepare=prepare,
        accumulate=torch.float64,
        swiglu_limit=float(z["swiglu_limit"]) if "swiglu_limit" in z else None,
    )
    inputs = [
        (
            torch.from_numpy(z[f"x_bf16_r{r}"]).view(torch.bfloat16),
            torch.from_numpy(z[f"topk_ids_r{r}"]),
            torch.from_numpy(z[f"topk_weights_r{r}"]),
        )
        for r in range(ep_size)
    ]
    outs = group.forward(inputs)
    for rank, out in enumerate(outs):
        assert np.array_equal(out.view(torch.uint16).numpy(), z[f"out_bf16_r{rank}"])


@pytest.mark.parametrize("path", [p for p in GOLDEN if "x_q_e4m3_r0" in np.load(p)], ids=lambda p: p.stem)
def test_the_quantised_activation_and_a2_equal_the_executed_kernels(path: Path) -> None:
    z = np.load(path)
    x = torch.from_numpy(z["x_bf16_r0"]).view(torch.bfloat16)
    payload, scales = quant.quantize_activation(x)
    assert np.array_equal(payload.view(torch.uint8).numpy(), z["x_q_e4m3_r0"])
    assert np.array_equal(scales.numpy(), z["x_scale_e8m0_r0"])
    xq = quant.dequantize(payload, scales, torch.float64)
    w13 = quant.dequantize_mxfp4(torch.from_numpy(z["w13"]), torch.from_numpy(z["w13_scale_e8m0"]), torch.float64)
    for token, ids in enumerate(z["topk_ids_r0"]):
        for slot, expert in enumerate(ids):
            g, u = (w13[expert] @ xq[token]).float().chunk(2)
            a = g * (1 / (1 + torch.exp2((g * -1.4426950408889634).double()).float())) * u
            q, s = quant.quantize_a2(a)
            assert np.array_equal(q.view(torch.uint8).numpy(), z["a2_e4m3_r0"][token, slot])
            assert np.array_equal(s.numpy(), z["a2_scale_e8m0_r0"][token, slot])


def random_raw(experts: int, hidden: int, inter: int, seed: int = 0) -> Raw:
    g = torch.Generator().manual_seed(seed)
    w13 = quant.quantize_mxfp4(torch.randn((experts, 2 * inter, hidden), generator=g) / hidden**0.5)
    w2 = quant.quantize_mxfp4(torch.randn((experts, hidden, inter), generator=g) / inter**0.5)
    return w13[0], w13[1], w2[0], w2[1]


def batch(
    tokens: int, hidden: int, experts: int, topk: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(tokens)]).int()
    return torch.randn((tokens, hidden), generator=g).bfloat16(), ids, torch.rand((tokens, topk), generator=g)


def oracle(raw: Raw, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    w13, w2 = quant.dequantize_mxfp4(raw[0], raw[1]), quant.dequantize_mxfp4(raw[2], raw[3])
    out = torch.zeros(x.shape)
    for token in range(x.shape[0]):
        for slot in range(ids.shape[1]):
            gate, up = (w13[ids[token, slot]] @ x[token].float()).chunk(2)
            out[token] += weights[token, slot] * (w2[ids[token, slot]] @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize(("form", "bound"), [("a8w4", 0.10), ("a4w4", 0.28)])
def test_it_stays_within_upstreams_bound_of_a_float32_oracle(form: str, bound: float) -> None:
    raw = random_raw(8, 512, 256)
    x, ids, weights = batch(16, 512, 8, 2, seed=3)
    got = build(raw, ep_size=1, topk=2, mtpr=16, quant=form).forward([(x, ids, weights)])[0].float()
    want = oracle(raw, x, ids, weights)
    error = float((got - want).norm() / want.norm())
    assert 0.01 < error < bound


def test_the_result_does_not_depend_on_the_number_of_ranks() -> None:
    raw = random_raw(8, 512, 256, seed=5)
    x, ids, weights = batch(16, 512, 8, 3, seed=6)
    results = []
    for ep_size in (1, 2, 4, 8):
        n = 16 // ep_size
        inputs = [(x[r * n : r * n + n], ids[r * n : r * n + n], weights[r * n : r * n + n]) for r in range(ep_size)]
        group = build(raw, ep_size=ep_size, topk=3, mtpr=16, accumulate=torch.float64)
        results.append(torch.cat(group.forward(inputs)))
        alone = [m.forward(i[0], i[2], i[1]).clone() for m, i in zip(group.owners(), inputs, strict=True)]
        assert torch.equal(torch.cat(alone), results[-1])
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_the_results_of_a_tokens_slots_are_added_in_their_order() -> None:
    """float32 sums depend on the order; the combine kernel adds slot 0, then 1, and so on."""
    raw = random_raw(8, 256, 256, seed=11)
    x, ids, weights = batch(16, 256, 8, 8, seed=12)
    # The first and the last result are large and cancel, so what lies between loses bits on the way.
    ids[:, 7] = ids[:, 0]
    weights[:, 0], weights[:, 7] = 2.0**20, -(2.0**20)
    (kernel,) = build(raw, ep_size=1, topk=8, mtpr=16, accumulate=torch.float64).owners()
    alone = []  # a slot's result by itself is a bf16 number, which the sum with zeros keeps
    for slot in range(8):
        only = torch.zeros_like(weights)
        only[:, slot] = weights[:, slot]
        alone.append(kernel.forward(x, only, ids).float())
    got = kernel.forward(x, weights, ids)

    def added(order: Sequence[int]) -> torch.Tensor:
        total = alone[order[0]].clone()
        for slot in order[1:]:
            total += alone[slot]
        return total.to(torch.bfloat16)

    assert torch.equal(got, added(range(8)))
    assert not torch.equal(got, added((0, 7, 1, 2, 3, 4, 5, 6))), "these values do not tell orders apart"


def test_the_fast_form_agrees_with_the_exact_one_when_nearly_all_experts_are_used() -> None:
    raw = random_raw(6, 256, 256, seed=7)
    x, ids, weights = batch(9, 256, 6, 6, seed=8)
    exact = build(raw, ep_size=1, topk=6, mtpr=16, accumulate=torch.float64).forward([(x, ids, weights)])[0].float()
    fast = build(raw, ep_size=1, topk=6, mtpr=16, prepare=True).forward([(x, ids, weights)])[0].float()
    assert float((fast - exact).norm() / exact.norm()) < 5e-3


def test_a_weight_written_in_place_makes_its_preparation_stale() -> None:
    raw = random_raw(2, 256, 256)
    group = build(raw, ep_size=1, topk=2, mtpr=4, prepare=True)
    (kernel,) = group.owners()
    x, ids, weights = batch(2, 256, 2, 2, seed=1)
    before = kernel.forward(x, weights, ids).clone()
    kernel.w2.zero_()
    assert not torch.equal(kernel.forward(x, weights, ids), before)
    assert float(kernel.forward(x, weights, ids).abs().max()) == 0.0


def test_the_output_is_one_buffer_that_the_next_forward_overwrites_as_on_the_gpu() -> None:
    (kernel,) = build(random_raw(2, 256, 256), ep_size=1, topk=2, mtpr=4).owners()
    first = kernel.forward(*(batch(2, 256, 2, 2, seed=1)[i] for i in (0, 2, 1)))
    kept = first.clone()
    kernel.forward(*(batch(2, 256, 2, 2, seed=2)[i] for i in (0, 2, 1)))
    assert not torch.equal(first, kept)
    assert kernel.forward(*(batch(2, 256, 2, 2, seed=2)[i] for i in (0, 2, 1)), slice_output=False).shape == (4, 256)


def test_prequantised_input_gives_the_same_bits() -> None:
    (kernel,) = build(random_raw(2, 256, 256), ep_size=1, topk=2, mtpr=4).owners()
    x, ids, weights = batch(3, 256, 2, 2, seed=1)
    want = kernel(x, weights, ids).clone()
    assert torch.equal(kernel.forward_prequant(*kernel.quantize(x), weights, ids), want)


def test_the_forward_takes_its_arguments_in_upstreams_order() -> None:
    assert list(inspect.signature(MegaMoE.forward).parameters) == [
        "self",
        "x_bf16",
        "wts",
        "topk_ids",
        "stream",
        "slice_output",
    ]


BAD_CALLS = {
    "x_dtype": lambda x, w, i: (x.float(), w, i),
    "x_shape": lambda x, w, i: (x[:, :100], w, i),
    "no_tokens": lambda x, w, i: (x[:0], w[:0], i[:0]),
    "mtpr_exceeded": lambda x, w, i: (x.repeat(3, 1), w.repeat(3, 1), i.repeat(3, 1)),
    "weights_dtype": lambda x, w, i: (x, w.bfloat16(), i),
    "routing_shape": lambda x, w, i: (x, w[:, :1], i),
    "expert_id": lambda x, w, i: (x, w, i - 1),
}


@pytest.mark.parametrize("code", BAD_CALLS)
def test_a_bad_call_is_refused_by_its_code(code: str) -> None:
    (kernel,) = build(random_raw(2, 256, 256), ep_size=1, topk=2, mtpr=4).owners()
    x, ids, weights = batch(3, 256, 2, 2, seed=1)
    with pytest.raises(Problem) as caught:
        kernel.forward(*BAD_CALLS[code](x, weights, ids))
    assert caught.value.code == code
    assert kernel.launches == 0


BAD_CONSTRUCTIONS: dict[str, dict[str, Any]] = {
    "quant": {"quant": "a16w4"},
    "mtpr": {"max_tok_per_rank": 48},
    "expert_split": {"world_size": 3},
    "scale_block": {"inter_dim": 250},
    "gate_mode": {"gate_mode": "gate_only"},
    "weight_size": {"inter_dim": 512},
    "swiglu_limit": {"swiglu_limit": -1.0},
    "accumulate": {"accumulate": torch.bfloat16},
    "ep_rank_missing": {"experts": 4, "world_size": 2},
}


@pytest.mark.parametrize("code", BAD_CONSTRUCTIONS)
def test_a_bad_construction_is_refused_by_its_code(code: str) -> None:
    c = layout.convert_layer_tensors(*random_raw(2, 256, 256))
    good: dict[str, Any] = {
        "rank": 0,
        "world_size": 1,
        "model_dim": 256,
        "inter_dim": 256,
        "experts": 2,
        "topk": 2,
        "quant": "a8w4",
        "w1": c.w13,
        "w1_scale": c.w13_scale,
        "w2": c.w2,
        "w2_scale": c.w2_scale,
        "max_tok_per_rank": 4,
    }
    MegaMoE(**good)
    with pytest.raises(Problem) as caught:
        MegaMoE(**good | BAD_CONSTRUCTIONS[code])
    assert caught.value.code == code


def test_the_last_launch_before_the_epoch_wraps_is_the_last_that_runs() -> None:
    (kernel,) = build(random_raw(2, 256, 256), ep_size=1, topk=2, mtpr=4).owners()
    x, ids, weights = batch(1, 256, 2, 2, seed=1)
    kernel.launches = EPOCH_LIMIT - 2
    kernel.forward(x, weights, ids)
    with pytest.raises(Problem) as caught:
        kernel.forward(x, weights, ids)
    assert caught.value.code == "launch_epoch"


def test_quantised_weights_err_by_less_than_either_scale_alone_would() -> None:
    w = torch.randn((64, 256), generator=torch.Generator().manual_seed(0))
    packed, scale = quant.quantize_mxfp4(w)
    error = (quant.dequantize_mxfp4(packed, scale) - w).square().sum()
    amax = w.unflatten(-1, (-1, 32)).abs().amax(-1)
    for exponent in (torch.ceil(torch.log2(amax / 6)), torch.ceil(torch.log2(amax / 6)) - 1):
        s = torch.exp2(exponent).unsqueeze(-1)
        codes = quant.encode_fp4(w.unflatten(-1, (-1, 32)) / s)
        alone = quant.decode_fp4(quant.pack_fp4(codes)) * s
        assert error <= (alone.flatten(-2) - w).square().sum() + 1e-4


@pytest.mark.parametrize(
    ("value", "even", "up"),
    [
        (0.25, 0, 1),
        (0.75, 2, 2),
        (1.25, 2, 3),
        (1.75, 4, 4),
        (2.5, 4, 5),
        (3.5, 6, 6),
        (5.0, 6, 7),
        (99.0, 7, 7),
        (-1.0, 10, 10),
    ],
)
def test_ties_of_fp4_round_to_even_or_up(value: float, even: int, up: int) -> None:
    t = torch.tensor([value])
    assert int(quant.encode_fp4(t)) == even
    assert int(quant.encode_fp4(t, half_up=True)) == up
