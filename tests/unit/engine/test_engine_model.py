"""The decoder: the same numbers however the work is cut up; the experts add up to the dense MLP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from megamoe_atom.problem import Exit, Problem
from reference_engine.checkpoint import Weights, read_config
from reference_engine.model import Chunk, KvCache, Model, dense_mlp
from reference_engine.moe import MoeStack
from reference_engine.sampling import Sampler, Sampling


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Model:
    config, weights = read_config(model_dir), Weights(model_dir)
    return Model(config, weights, [dense_mlp(weights, i, torch.float32) for i in range(2)], torch.float32, 64)


PROMPT = [10, 20, 30, 40, 50, 60, 70]


def cache(model: Model) -> KvCache:
    return KvCache(model.config, 4, 64, torch.float32)


def whole(model: Model) -> torch.Tensor:
    return model.forward([Chunk(0, 0, PROMPT)], cache(model))[0]


@pytest.mark.parametrize("cuts", [[3], [1], [6], [2, 4], list(range(1, 7))])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(model: Model, cuts: list[int]) -> None:
    kv = cache(model)
    for start, end in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
        logits = model.forward([Chunk(1, start, PROMPT[start:end])], kv)
    torch.testing.assert_close(logits[0], whole(model), atol=1e-4, rtol=1e-4)


def test_neighbours_in_a_batch_do_not_change_a_sequence(model: Model) -> None:
    kv = cache(model)
    model.forward([Chunk(0, 0, [5, 6]), Chunk(2, 0, PROMPT[:-1]), Chunk(3, 0, [9])], kv)
    mixed = model.forward([Chunk(0, 2, [7]), Chunk(2, 6, PROMPT[-1:]), Chunk(1, 0, [1, 2, 3])], kv)
    torch.testing.assert_close(mixed[1], whole(model), atol=1e-4, rtol=1e-4)


def test_a_copied_prefix_continues_like_the_original(model: Model) -> None:
    kv = cache(model)
    model.forward([Chunk(0, 0, PROMPT[:5])], kv)
    kv.copy_prefix(0, 3, 5)
    logits = model.forward([Chunk(3, 5, PROMPT[5:])], kv)
    torch.testing.assert_close(logits[0], whole(model), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_the_experts_reproduce_the_dense_mlp_up_to_rounding(model_dir: Path, ranks: int) -> None:
    config, weights = read_config(model_dir), Weights(model_dir)
    moe = MoeStack(config, weights, ranks=ranks, mtpr=16, fault=None)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    got, want = moe.forward(1, x), dense_mlp(weights, 1, torch.float32)(x)
    # fp4 weights (11 % of a layer's norm on the real model) and fp8 activations; a wrong layout gives more than 100 %.
    assert float((got - want).norm() / want.norm()) < 0.25
    assert torch.equal(got[:1], moe.forward(1, x[:1]))  # idle ranks get a dummy token that changes nothing


@pytest.mark.parametrize(
    ("fault", "kind"), [("gate_up_mispaired", "gate_up_mispaired:"), ("expert_zeroed", "one_expert:")]
)
def test_the_self_test_stops_a_start_with_damaged_experts_and_names_them(
    model_dir: Path, fault: str, kind: str
) -> None:
    config, weights = read_config(model_dir), Weights(model_dir)
    with pytest.raises(Problem) as caught:
        MoeStack(config, weights, ranks=2, mtpr=16, fault=fault).prove()
    assert caught.value.exit_code is Exit.CHECK_FAILED and caught.value.code == "selftest"
    assert f"likely {kind}" in caught.value.reasons[0].what


def test_the_self_test_passes_sound_experts(model_dir: Path) -> None:
    MoeStack(read_config(model_dir), Weights(model_dir), ranks=2, mtpr=16, fault=None).prove()


LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def test_temperature_zero_takes_the_largest() -> None:
    assert Sampler(Sampling(1, temperature=0)).pick(LOGITS) == 1


def test_the_same_seed_draws_the_same_tokens_and_another_does_not() -> None:
    def draws(seed: int) -> list[int]:
        sampler = Sampler(Sampling(1, temperature=2.0, seed=seed))
        return [sampler.pick(LOGITS) for _ in range(40)]

    assert draws(1) == draws(1) != draws(2)


@pytest.mark.parametrize(
    ("top_p", "top_k", "allowed"), [(0.5, 0, {1}), (1.0, 1, {1}), (1.0, 2, {1, 2}), (0.85, 0, {1, 2})]
)
def test_top_p_and_top_k_leave_only_the_likely_tokens(top_p: float, top_k: int, allowed: set[int]) -> None:
    sampler = Sampler(Sampling(1, top_p=top_p, top_k=top_k, seed=0))
    assert {sampler.pick(LOGITS) for _ in range(200)} == allowed


def test_draws_follow_the_softmax() -> None:
    sampler = Sampler(Sampling(1, seed=3))
    share = sum(sampler.pick(LOGITS) == 1 for _ in range(2000)) / 2000
    assert abs(share - float(torch.softmax(LOGITS, 0)[1])) < 0.04
