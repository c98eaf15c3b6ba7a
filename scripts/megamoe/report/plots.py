"""Inline SVG plots. Colours come from the page's CSS variables, so light and dark both work."""

from __future__ import annotations

from html import escape
from typing import Any


def score_plot(gate: dict[str, Any]) -> str:
    """The score with its 95 % interval against floor and reference; empty when the gate gave no score."""
    data = gate.get("data") or {}
    if "wilson_95" not in data:
        return ""
    low, high = data["wilson_95"]
    marks = {"floor": data["floor"]["floor"], "reference": (data.get("reference") or {}).get("reference")}
    values = [low, high, *(v for v in marks.values() if v is not None)]
    left, right = max(0.0, min(values) - 0.02), min(1.0, max(values) + 0.02)

    def x(value: float) -> float:
        return round(20 + 560 * (value - left) / (right - left or 1), 1)

    parts = [
        f'<svg viewBox="0 0 600 130" role="img" aria-label="score {data["score"]:.4f}, 95 % interval {low:.4f} to '
        f'{high:.4f}"><line class="axis" x1="20" x2="580" y1="85" y2="85"/>',
        f'<rect class="band" x="{x(low)}" width="{max(1, round(x(high) - x(low), 1))}" y="45" height="24"/>',
        f'<circle class="point" cx="{x(data["score"])}" cy="57" r="6"/>',
        f'<text x="{x(data["score"])}" y="32" text-anchor="middle">score {data["score"]:.4f}</text>',
    ]
    for row, (name, value) in enumerate((n, v) for n, v in marks.items() if v is not None):
        parts.append(f'<line class="mark" x1="{x(value)}" x2="{x(value)}" y1="40" y2="90"/>')
        anchor = "start" if x(value) < 300 else "end"
        parts.append(
            f'<text x="{x(value)}" y="{105 + 16 * row}" text-anchor="{anchor}">{escape(name)} {value:.4f}</text>'
        )
    return "".join(parts) + "</svg>"


def line_plot(values: list[float], label: str) -> str:
    """A line over the index of its values, y from the data's own range."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    points = " ".join(
        f"{50 + 530 * i / (len(values) - 1):.1f},{110 - 90 * (v - low) / span:.1f}" for i, v in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 600 130" role="img" aria-label="{escape(label)}"><line class="axis" x1="50" x2="580" y1="112" '
        f'y2="112"/><polyline class="curve" points="{points}"/><text x="4" y="24">{high:.3f}</text>'
        f'<text x="4" y="112">{low:.3f}</text><text x="315" y="127" text-anchor="middle">{escape(label)}</text></svg>'
    )


def histogram(values: list[float], label: str, bins: int = 24) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    bars = "".join(
        f'<rect class="band" x="{20 + i * 560 / bins:.1f}" width="{560 / bins - 2:.1f}" '
        f'y="{105 - 85 * c / max(counts):.1f}" height="{85 * c / max(counts):.1f}"/>'
        for i, c in enumerate(counts)
    )
    return (
        f'<svg viewBox="0 0 600 130" role="img" aria-label="{escape(label)}">{bars}<line class="axis" x1="20" x2="580" '
        f'y1="105" y2="105"/><text x="20" y="122">{low:.2f}</text><text x="300" y="122" text-anchor="middle">{escape(label)}'
        f'</text><text x="580" y="122" text-anchor="end">{high:.2f}</text></svg>'
    )
