#!/usr/bin/env python3
"""Simulates the gate and writes the curves: false alarms and misses of floor, reference, paired, sequential tests.

    scripts/simulate_gate.py [--runs 2000] [--out scripts/docs]

Seeded, so the figures in scripts/docs/gate.md can be made again. Writes gate_simulation.json and gate_simulation.svg.
"""

from __future__ import annotations

import argparse
import json
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from megamoe.gate import stats
from megamoe.gate.policy import Policy, load_policy
from megamoe.gsm8k.sequential import EarlyFail

N = 1319


@cache
def paired_verdict(lost: int, gained: int, n: int) -> str:
    """As megamoe.gate.judge decides it, for a tolerated loss of 0."""
    if stats.mcnemar_p(lost, gained) <= 0.05:
        return "FAIL"
    needed = stats.questions_needed((lost + gained) / n, 0.01, 0.05, 0.8)
    return "PASS" if needed <= n or stats.loss_upper_bound(lost, gained, n) < 0.01 else "INCONCLUSIVE"


def unpaired(policy: Policy, runs: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Share of runs failed by floor and reference test, by true accuracy; the reference is drawn anew each run."""
    out = []
    fails = lru_cache(maxsize=None)(
        lambda right, ref: stats.p_below_measured(right, N, ref / N, N) < policy.reference_alpha
    )
    for accuracy in np.round(np.arange(0.90, 0.9651, 0.005), 4):
        right = rng.binomial(N, accuracy, runs)
        reference = rng.binomial(N, policy.reference, runs)
        out.append(
            {
                "accuracy": float(accuracy),
                "floor_fails": float(np.mean(right / N < policy.floor)),
                "reference_fails": float(
                    np.mean([fails(int(a), int(b)) for a, b in zip(right, reference, strict=True)])
                ),
            }
        )
    return out


def paired(runs: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Verdict shares by flip rate, loss and n: n = 1319, and a second stage that makes n large enough."""
    out = []
    for flips in (0.02, 0.03, 0.05):
        for loss in (0.0, 0.01, 0.015, 0.02):
            if loss > flips:
                continue
            for n in (N, max(N, int(1.15 * stats.questions_needed(flips, 0.01, 0.05, 0.8)))):
                draws = rng.multinomial(n, [(flips + loss) / 2, (flips - loss) / 2, 1 - flips], size=runs)
                verdicts = [paired_verdict(int(a), int(b), n) for a, b, _ in draws]
                out.append(
                    {
                        "flips": flips,
                        "loss": loss,
                        "n": n,
                        **{v: round(verdicts.count(v) / runs, 4) for v in ("PASS", "FAIL", "INCONCLUSIVE")},
                    }
                )
    return out


def sequential(floor: float, alpha: float, runs: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Share of runs ever stopped within 1319 answers, within 100, and the median stop, by true accuracy."""
    out = []
    for accuracy in (0.017, 0.2, 0.41, 0.5, 0.6, 0.7, 0.8, 0.85, floor, 0.9424, 0.96):
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


def plot(curves: list[dict[str, float]], policy: Policy) -> str:
    """Share of runs failed against true accuracy, as SVG."""
    x = lambda a: 60 + 600 * (a - 0.90) / 0.065  # noqa: E731 - two one-line scales
    y = lambda share: 240 - 210 * share  # noqa: E731
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 290" font-family="sans-serif" font-size="13">',
        '<rect width="680" height="290" fill="#fff"/><path d="M60 30V240H660" fill="none" stroke="#888"/>',
    ]
    for key, colour, label, row in (
        ("floor_fails", "#c62828", f"floor {policy.floor}", 45),
        ("reference_fails", "#1f6feb", f"reference {policy.reference}", 62),
    ):
        points = " ".join(f"{x(c['accuracy']):.1f},{y(c[key]):.1f}" for c in curves)
        lines += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="500" y="{row}" fill="{colour}">{label}</text>',
        ]
    lines += [f'<text x="{x(a):.0f}" y="257" text-anchor="middle">{a:.2f}</text>' for a in (0.90, 0.92, 0.94, 0.96)]
    lines += [f'<text x="52" y="{y(s) + 4:.0f}" text-anchor="end">{s:.1f}</text>' for s in (0, 0.5, 1)]
    return (
        "\n".join(
            [
                *lines,
                '<text x="360" y="280" text-anchor="middle">'
                "true accuracy (share of runs failed, n = 1319)</text></svg>",
            ]
        )
        + "\n"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=2000)
    arguments.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "docs")
    given = arguments.parse_args()
    rng = np.random.default_rng(20260822)
    policy = load_policy("v4-pro-fused")
    curves = unpaired(policy, given.runs, rng)
    result = {
        "runs": given.runs,
        "unpaired": curves,
        "paired": paired(given.runs, rng),
        "sequential": sequential(policy.stop_floor, policy.sequential_alpha, max(200, given.runs // 5), rng),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gate_simulation.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (given.out / "gate_simulation.svg").write_text(plot(curves, policy), encoding="utf-8")
    for part in ("unpaired", "paired", "sequential"):
        for row in result[part]:
            print(part, row)


if __name__ == "__main__":
    main()
