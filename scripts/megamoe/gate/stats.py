"""The gate's arithmetic: intervals, one-sided tests, the paired test and how many questions it needs. Pure functions.

scipy does the distributions; each function says which test it is and where it comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


def wilson(right: int, n: int, confidence: float = 0.95) -> Interval:
    """Two-sided Wilson score interval (scipy binomtest(...).proportion_ci, method "wilson")."""
    ci = stats.binomtest(right, n).proportion_ci(confidence_level=confidence, method="wilson")
    return Interval(float(ci.low), float(ci.high))


def p_below(right: int, n: int, level: float) -> float:
    """One-sided exact binomial p-value: how often a model with true accuracy `level` scores this low or lower."""
    return float(stats.binomtest(right, n, level, alternative="less").pvalue)


def p_below_measured(right: int, n: int, reference: float, reference_n: int) -> float:
    """One-sided p-value that a score is no worse than a reference which was itself measured on reference_n questions.

    Lancaster's mid-p of the hypergeometric (Fisher's exact test with half the weight on the observed table): the
    reference has a sampling error of its own, and comparing with it as if it were exact fails good runs.
    """
    reference_right = round(reference * reference_n)
    total = stats.hypergeom(n + reference_n, right + reference_right, n)
    return float(total.cdf(right - 1) + 0.5 * total.pmf(right))


def mcnemar_p(lost: int, gained: int) -> float:
    """McNemar's exact one-sided p-value: lost = right before and wrong now, gained = the reverse.

    Without a real change each flip goes either way with probability 1/2, so `lost` is binomial(lost + gained, 1/2).
    """
    flips = lost + gained
    return float(stats.binom.sf(lost - 1, flips, 0.5)) if flips else 1.0


def p_loss_exceeds(lost: int, gained: int, n: int, tolerated: float) -> float:
    """One-sided p-value of "the loss is at most `tolerated`" on n paired questions.

    tolerated = 0 is McNemar's exact test; above 0 it is Tango's score test (Tango, Statistics in Medicine 17, 1998,
    891-908), whose restricted estimate of the losing flips has a closed form.
    """
    if tolerated == 0:
        return mcnemar_p(lost, gained)
    # Under the null lost/n - gained/n = tolerated; p21 is the maximum-likelihood share of gaining flips under it.
    a = 2.0 * n
    b = -(lost + gained) + (2 * n - (lost - gained)) * tolerated
    c = -gained * tolerated * (1 - tolerated)
    gain_share = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = n * (2 * gain_share + tolerated * (1 - tolerated))
    return float(stats.norm.sf((lost - gained - n * tolerated) / math.sqrt(variance))) if variance > 0 else 1.0


def loss_upper_bound(lost: int, gained: int, n: int, confidence: float = 0.95) -> float:
    """One-sided upper bound on the loss (share of questions), by inverting Tango's test."""
    low, high = max((lost - gained) / n, 1e-9), 1.0 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        # the chance of seeing a loss this small or smaller if the true loss were `middle`
        if 1 - p_loss_exceeds(lost, gained, n, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def questions_needed(flip_rate: float, loss: float, alpha: float, power: float, tolerated: float = 0.0) -> int:
    """Paired questions that find a loss of `loss` with this power (Connor, Biometrics 43, 1987, 207-211).

    flip_rate: share of questions answered differently by the two; it cannot be below the loss itself.
    """
    rate = max(flip_rate, loss)
    excess = loss - tolerated
    z_alpha, z_power = stats.norm.isf(alpha), stats.norm.isf(1 - power)
    root = z_alpha * math.sqrt(rate - tolerated**2) + z_power * math.sqrt(max(rate - loss * loss, 0.0))
    whole: int = math.ceil((root / excess) ** 2)
    return whole


@lru_cache(maxsize=256)
def detectable_loss(flip_rate: float, n: int, alpha: float, power: float, tolerated: float = 0.0) -> float:
    """Smallest loss that n paired questions find with this power at this flip rate: what the run could settle."""
    low, high = tolerated, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if middle > tolerated and questions_needed(flip_rate, middle, alpha, power, tolerated) <= n:
            high = middle
        else:
            low = middle
    return high


# Of the false alarms allowed in all, what the first of two looks may spend; the second gets what is left, exactly.
FIRST_LOOK_SHARE = 0.8


def critical_lost(flips: int, alpha: float) -> int:
    """Smallest count of lost questions among `flips` that McNemar's exact test calls a loss; flips + 1 when none is."""
    return next((lost for lost in range(flips + 1) if mcnemar_p(lost, flips - lost) <= alpha), flips + 1)


def second_look(flips_1: int, flips_2: int, first_alpha: float, alpha: float) -> int:
    """Smallest lost count of both stages together that is a loss, given that the first look found none.

    Without a real change the losses of each stage are binomial(flips, 1/2), whatever the questions are. The first look
    alarms at critical_lost(flips_1, first_alpha). The limit returned keeps first alarm and second alarm together at
    `alpha` at most, exactly and for these flip counts (a group-sequential test conditional on the flips); it may be
    above flips_1 + flips_2, when the first look has spent everything.
    """
    first = critical_lost(flips_1, first_alpha)
    spent = float(stats.binom.sf(first - 1, flips_1, 0.5))
    passed_on = stats.binom.pmf(np.arange(min(first, flips_1 + 1)), flips_1, 0.5)
    together = np.convolve(passed_on, stats.binom.pmf(np.arange(flips_2 + 1), flips_2, 0.5))
    tail = np.cumsum(together[::-1])[::-1]  # P(first look silent, and at least this many lost)
    reached = np.nonzero(tail <= alpha - spent)[0]
    return int(reached[0]) if reached.size else len(together)


def second_look_questions(flip_rate: float, n_1: int, loss: float, alpha: float, power: float) -> int:
    """Questions of both stages together with which the second look finds `loss` with this power (normal theory)."""
    first_z = stats.norm.isf(FIRST_LOOK_SHARE * alpha)
    total = questions_needed(flip_rate, loss, (1 - FIRST_LOOK_SHARE) * alpha, power)
    for _ in range(4):
        overlap = math.sqrt(min(1.0, n_1 / total))
        both = stats.multivariate_normal([0, 0], [[1, overlap], [overlap, 1]], allow_singular=True)
        low, high = 0.0, 5.0
        for _ in range(40):  # the second limit at which one of the two is crossed with probability alpha
            middle = (low + high) / 2
            low, high = (middle, high) if 1 - float(both.cdf([first_z, middle])) > alpha else (low, middle)
        total = max(n_1 + 1, questions_needed(flip_rate, loss, float(stats.norm.sf(high)), power))
    return total
