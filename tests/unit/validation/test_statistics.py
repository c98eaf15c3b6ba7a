"""The gate's arithmetic against closed forms, and its error rates against small seeded simulations."""

from __future__ import annotations

import random
from math import comb

import numpy as np
import pytest
from megamoe.gate import stats
from megamoe.gsm8k.sequential import EarlyFail


def test_mcnemar_is_the_exact_one_sided_sign_test() -> None:
    assert stats.mcnemar_p(8, 2) == pytest.approx(sum(comb(10, k) for k in (8, 9, 10)) / 2**10)
    assert stats.mcnemar_p(0, 0) == 1.0


def test_wilson_interval_equals_its_formula() -> None:
    n, z, p = 1319, 1.959964, 1243 / 1319
    centre, half = (
        (p + z * z / 2 / n) / (1 + z * z / n),
        z * (p * (1 - p) / n + z * z / 4 / n / n) ** 0.5 / (1 + z * z / n),
    )
    found = stats.wilson(1243, n)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-6)


@pytest.mark.parametrize(
    ("flips", "points"), [pytest.param(0.02, 1.0, id="2 % flips"), pytest.param(0.05, 1.5, id="5 % flips")]
)
def test_1319_questions_settle_one_to_one_and_a_half_points(flips: float, points: float) -> None:
    assert 100 * stats.detectable_loss(flips, 1319, 0.05, 0.8) == pytest.approx(points, abs=0.06)


def test_tangos_test_fails_a_tolerated_loss_about_five_times_in_a_hundred() -> None:
    draws = np.random.default_rng(1).multinomial(200, [0.15, 0.05, 0.8], size=1500)  # true loss 10 points, tolerated 10
    rate = np.mean([stats.p_loss_exceeds(int(a), int(b), 200, 0.10) <= 0.05 for a, b, _ in draws])
    assert 0.03 < rate < 0.07


@pytest.mark.parametrize("accuracy", [0.017, 0.41, 0.6])
def test_a_broken_model_is_stopped_within_a_hundred_answers(accuracy: float) -> None:
    rng = random.Random(3)
    for _ in range(50):
        early = EarlyFail(0.90, 0.001)
        assert any(early.add(rng.random() < accuracy) for _ in range(100))


def test_a_model_at_the_floor_is_stopped_no_more_often_than_promised() -> None:
    rng = random.Random(5)
    stopped = 0
    for _ in range(150):
        early = EarlyFail(0.90, 0.05)
        stopped += any(early.add(rng.random() < 0.90) for _ in range(400))
    assert stopped / 150 <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


def test_the_evidence_is_a_martingale_at_the_floor() -> None:
    early = EarlyFail(0.9, 0.001)
    expected = 0.9 * np.exp(_after(early, True)) + 0.1 * np.exp(_after(early, False))
    assert expected == pytest.approx(1.0)


def _after(like: EarlyFail, correct: bool) -> float:
    fresh = EarlyFail(like.floor, like.alpha)
    fresh.add(correct)
    return fresh.log_evidence
