#!/usr/bin/env python3
"""Simulates the gate and writes the curves: false alarms and misses of floor, reference, paired, sequential tests.

    scripts/simulate_gate.py [--runs 2000] [--out scripts/docs]

Seeded, so the figures in scripts/docs/gate.md can be made again. Writes gate_simulation.json and gate_simulation.svg.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from megamoe.gate import stats
from megamoe.gate.paired import judge_paired
from megamoe.gate.policy import Policy, load_policy
from megamoe.gate.samples import SampleFacts
from megamoe.gsm8k.sequential import EarlyFail

N = 1319


@cache
def facts(lost: int, gained: int, n: int) -> tuple[SampleFacts, SampleFacts]:
    """A run and its baseline with these flips; all other questions are right on both sides."""

    def side(wrong: range) -> SampleFacts:
        return SampleFacts(n, n - len(wrong), 0, 0, False, 0, 0, 0, {d: d not in wrong for d in range(n)}, {})

    return side(range(lost)), side(range(lost, lost + gained))


@cache
def paired_verdict(policy: Policy, first: tuple[int, int, int], second: tuple[int, int, int] | None = None) -> str:
    """The gate's own verdict on (lost, gained, n) of one or two stages."""
    return judge_paired(policy, *facts(*first), {}, [], [facts(*second)] if second else [])


def unpaired(policy: Policy, reference: float, runs: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Share of runs failed by floor and reference test, by true accuracy; the reference is drawn anew each run."""
    out = []
    fails = lru_cache(maxsize=None)(
        lambda right, ref: stats.p_below_measured(right, N, ref / N, N) < policy.reference_alpha
    )
    for accuracy in np.round(np.arange(0.90, 0.9651, 0.005), 4):
        right = rng.binomial(N, accuracy, runs)
        measured = rng.binomial(N, reference, runs)
        out.append(
            {
                "accuracy": float(accuracy),
                "floor_fails": float(np.mean(right / N < policy.floor)),
                "reference_fails": float(
                    np.mean([fails(int(a), int(b)) for a, b in zip(right, measured, strict=True)])
                ),
            }
        )
    return out


def paired(policy: Policy, runs: int, rng: np.random.Generator) -> list[dict[str, float | str]]:
    """Verdict shares by flip rate and loss: one look at 1319 questions, and two looks with further questions."""
    out: list[dict[str, float | str]] = []
    one = replace(policy, paired_stages=1)
    for flips in (0.02, 0.03, 0.05):
        for loss in (0.0, 0.01, 0.015, 0.02):
            if loss > flips:
                continue
            more = stats.second_look_questions(flips, N, 0.01, policy.paired_alpha, policy.paired_power) - N
            shares = [(flips + loss) / 2, (flips - loss) / 2, 1 - flips]
            first = rng.multinomial(N, shares, size=runs)
            further = rng.multinomial(more, shares, size=runs) if more > 100 else None
            looks: dict[str, list[str]] = {"one": [], "first of two": [], "two": []}
            for row, (lost, gained, _) in enumerate(first):
                seen = (int(lost), int(gained), N)
                looks["one"].append(paired_verdict(one, seen))
                looks["first of two"].append(paired_verdict(policy, seen))
                if further is not None:
                    later = (int(further[row][0]), int(further[row][1]), more)
                    looks["two"].append(paired_verdict(policy, seen, later))
            for name, verdicts in looks.items():
                if verdicts:
                    out.append(
                        {
                            "looks": name,
                            "flips": flips,
                            "loss": loss,
                            "n": N + more if name == "two" else N,
                            **{v: round(verdicts.count(v) / runs, 4) for v in ("PASS", "FAIL", "INCONCLUSIVE")},
                        }
                    )
    return out


def sequential(floor: float, alpha: float, runs: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Share of runs ever stopped within 1319 answers, within 100, and the median stop, by true accuracy."""
    out = []
    for accuracy in (0.017, 0.2, 0.41, 0.5, 0.6, 0.7, 0.8, 0.85, 0.90, floor, 0.94, 0.96):
        stops = []
        for _ in range(runs):
            early = EarlyFail(floor, alpha)
            for answer in rng.random(N) < accuracy:
                if early.add(bool(answer)):
                    break
            stops.append(early.stopped_at)
        hit = [s for s in stops if s is not None]
        out.append(
            {
                "accuracy": accuracy,
                "stopped": round(len(hit) / runs, 4),
                "within_100": round(sum(s <= 100 for s in hit) / runs, 4),
                "median_stop": float(np.median(hit)) if hit else 0.0,
            }
        )
    return out


Curve = tuple[str, str, list[tuple[float, float]]]  # label, colour, points (x, share of runs failed)
RED, BLUE, GREEN = "#c62828", "#1f6feb", "#1a7f37"


def panel(left: int, title: str, ticks: list[tuple[float, str]], curves: list[Curve]) -> list[str]:
    """One plot of 300 x 200 with y from 0 to 1, x from the first tick to the last."""
    low, high = ticks[0][0], ticks[-1][0]

    def x(value: float) -> float:
        return left + 40 + 240 * (value - low) / (high - low)

    def y(share: float) -> float:
        return 230 - 190 * share

    lines = [
        f'<path d="M{left + 40} 40V230H{left + 280}" fill="none" stroke="#888"/>',
        f'<text x="{left + 160}" y="24" text-anchor="middle" font-weight="bold">{title}</text>',
    ]
    lines += [f'<text x="{left + 34}" y="{y(s) + 4:.0f}" text-anchor="end">{s:g}</text>' for s in (0, 0.5, 1)]
    lines += [f'<text x="{x(at):.0f}" y="247" text-anchor="middle">{text}</text>' for at, text in ticks]
    for row, (label, colour, points) in enumerate(curves):
        inside = [(a, b) for a, b in points if low <= a <= high]
        dash = ' stroke-dasharray="5 4"' if "one look" in label else ""
        shown = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in inside)
        lines += [
            f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="{left + 46}" y="{270 + 17 * row}" fill="{colour}">{label}</text>',
        ]
    return lines


def plot(result: dict[str, Any], policy: Policy) -> str:
    """Share of runs failed: floor and reference by accuracy, paired by loss and flip rate, sequential by accuracy."""
    accuracies = [(a, f"{a:.2f}") for a in (0.90, 0.92, 0.94, 0.96)]

    def by_accuracy(part: str, key: str) -> list[tuple[float, float]]:
        return [(row["accuracy"], row[key]) for row in result[part]]

    def by_loss(looks: str, flips: float) -> list[tuple[float, float]]:
        rows = [r for r in result["paired"] if r["flips"] == flips and r["looks"] == looks]
        return [(100 * r["loss"], r["FAIL"]) for r in rows]

    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 370" font-family="sans-serif" font-size="13">',
        '<rect width="960" height="370" fill="#fff"/>',
        *panel(
            0,
            "unpaired, by true accuracy",
            accuracies,
            [
                (f"floor {policy.floor}", RED, by_accuracy("unpaired", "floor_fails")),
                (f"reference {policy.reference}", BLUE, by_accuracy("unpaired", "reference_fails")),
            ],
        ),
        *panel(
            320,
            "paired, by true loss in points",
            [(0, "0"), (0.5, "0.5"), (1, "1"), (1.5, "1.5"), (2, "2")],
            [
                (f"{100 * flips:.0f} % flips, {label}", colour, by_loss(looks, flips))
                for flips, colour in ((0.02, GREEN), (0.03, BLUE), (0.05, RED))
                for looks, label in (("one", "one look"), ("two", "two looks"))
                if by_loss(looks, flips)
            ],
        ),
        *panel(
            640,
            "sequential, by true accuracy",
            [(0.5, "0.5"), (0.6, "0.6"), (0.7, "0.7"), (0.8, "0.8"), (0.96, "0.96")],
            [
                ("stopped within 100 questions", BLUE, by_accuracy("sequential", "within_100")),
                ("ever stopped (of 1319)", RED, by_accuracy("sequential", "stopped")),
            ],
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=2000)
    arguments.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "docs")
    given = arguments.parse_args()
    rng = np.random.default_rng(20260822)
    policy = load_policy("v4-pro-fused")
    assert policy.reference is not None  # this policy is the one that has a reference to simulate
    result: dict[str, Any] = {
        "runs": given.runs,
        "unpaired": unpaired(policy, policy.reference, given.runs, rng),
        "paired": paired(policy, given.runs, rng),
        "sequential": sequential(policy.stop_floor, policy.sequential_alpha, max(200, given.runs // 5), rng),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gate_simulation.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (given.out / "gate_simulation.svg").write_text(plot(result, policy), encoding="utf-8")
    for part in ("unpaired", "paired", "sequential"):
        for row in result[part]:
            print(part, row)


if __name__ == "__main__":
    main()
