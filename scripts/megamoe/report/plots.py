"""Inline SVG plots. Colours come from the page's CSS variables, so light and dark both work."""

from __future__ import annotations

from html import escape
from typing import Any

WIDTH = 460


def _svg(height: int, label: str, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", quiet: bool = False) -> str:
    kind = ' class="quiet"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _anchor(x: float) -> str:
    return "start" if x < WIDTH * 0.25 else "end" if x > WIDTH * 0.75 else "middle"


def score_plot(gate: dict[str, Any]) -> str:
    """The score with its 95 % interval against floor and reference; empty when the gate gave no score."""
    data = gate.get("data") or {}
    if "wilson_95" not in data:
        return ""
    low, high = data["wilson_95"]
    marks = {"floor": data["floor"]["floor"], "reference": (data.get("reference") or {}).get("reference")}
    values = [low, high, *(v for v in marks.values() if v is not None)]
    margin = 0.08 * (max(values) - min(values))
    left, right = max(0.0, min(values) - margin), min(1.0, max(values) + margin)

    def x(value: float) -> float:
        return float(20 + (WIDTH - 40) * (value - left) / (right - left or 1))

    parts = [
        f'<line class="axis" x1="20" x2="{WIDTH - 20}" y1="80" y2="80"/>',
        f'<rect class="band" x="{x(low):.1f}" width="{max(1.0, x(high) - x(low)):.1f}" y="42" height="22"/>',
        f'<circle class="point" cx="{x(data["score"]):.1f}" cy="53" r="6"/>',
        _text(x(data["score"]), 28, f"score {data['score']:.4f}", _anchor(x(data["score"]))),
    ]
    for row, (name, value) in enumerate((n, v) for n, v in marks.items() if v is not None):
        parts.append(f'<line class="mark" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="38" y2="84"/>')
        parts.append(_text(x(value), 101 + 19 * row, f"{name} {value:.4f}", _anchor(x(value))))
    return _svg(128, f"score {data['score']:.4f}, 95 % interval {low:.4f} to {high:.4f}", parts)


def line_plot(values: list[float]) -> str:
    """A line over the index of its values; the first tenth, which jumps about, may leave the plot."""
    if len(values) < 2:
        return ""
    steady = values[len(values) // 10 :]
    low, high = min(steady), max(steady)
    low, high = max(0.0, low - 0.1 * (high - low)), min(1.0, high + 0.1 * (high - low))
    span = (high - low) or 1.0
    points = " ".join(
        f"{56 + (WIDTH - 66) * i / (len(values) - 1):.1f},{100 - 84 * min(1.0, max(0.0, (v - low) / span)):.1f}"
        for i, v in enumerate(values)
    )
    parts = [
        f'<line class="axis" x1="56" x2="{WIDTH - 10}" y1="104" y2="104"/>',
        f'<polyline class="curve" points="{points}"/>',
        _text(48, 20, f"{high:.3f}", "end", quiet=True),
        _text(48, 104, f"{low:.3f}", "end", quiet=True),
        _text(56, 122, "first", quiet=True),
        _text(WIDTH - 10, 122, f"last: {values[-1]:.4f}", "end", quiet=True),
    ]
    return _svg(128, f"running accuracy, at the end {values[-1]:.4f}", parts)


def histogram(values: list[float], bins: int = 24) -> str:
    """Counts of values (seconds) in equal bins, with the median."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    step = (WIDTH - 66) / bins
    bars = [
        f'<rect class="band" x="{56 + i * step:.1f}" width="{step - 2:.1f}" y="{104 - 84 * c / max(counts):.1f}" '
        f'height="{84 * c / max(counts):.1f}"/>'
        for i, c in enumerate(counts)
    ]
    median = sorted(values)[len(values) // 2]
    parts = [
        *bars,
        f'<line class="axis" x1="56" x2="{WIDTH - 10}" y1="104" y2="104"/>',
        _text(48, 20, str(max(counts)), "end", quiet=True),
        _text(56, 122, f"{low:.2f} s", quiet=True),
        _text((WIDTH + 46) / 2, 122, f"median {median:.2f} s", "middle", quiet=True),
        _text(WIDTH - 10, 122, f"{high:.2f} s", "end", quiet=True),
    ]
    return _svg(128, f"seconds per answer from {low:.2f} to {high:.2f}, median {median:.2f}", parts)


def flip_plot(paired: dict[str, Any]) -> str:
    """Lost and gained questions as bars; both looks where there were two."""
    look = paired.get("second_look") or paired
    most = max(look["lost"], look["gained"], 1)
    parts = []
    for row, name in enumerate(("lost", "gained")):
        length = (WIDTH - 150) * look[name] / most
        parts += [
            _text(60, 40 + 44 * row, name, "end"),
            f'<rect class="{name}" x="72" y="{22 + 44 * row}" width="{max(1.0, length):.1f}" height="26"/>',
            _text(80 + length, 40 + 44 * row, str(look[name])),
        ]
    return _svg(128, f"{look['lost']} questions lost, {look['gained']} gained", parts)
