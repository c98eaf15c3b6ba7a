"""Report as HTML, JSON, JUnit and Markdown. Pure: Report in, text out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from xml.sax.saxutils import quoteattr

from jinja2 import Environment
from markupsafe import Markup

from megamoe.report.model import Report
from megamoe.report.plots import flip_plot, histogram, line_plot, score_plot
from megamoe.report.style import STYLE

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ r.title }}: {{ r.status|upper }}</title>
<style>
{{ style }}</style></head><body>
<h1>{{ r.title }}: <span class="status {{ r.status }}">{{ r.status|replace("_", " ") }}</span></h1>
{% if r.partial %}<section class="warn"><b>Partial.</b> {{ r.partial }}.</section>{% endif %}
{% for s in r.sections %}<section class="{{ s.status }}"><h2>{{ s.command }}: <span class="status {{ s.status }}">
{{- s.status|replace("_", " ") }}</span></h2>
<p>{{ s.summary }}</p>
{% if figures[loop.index0] %}<div class="figures">
{% for name, value, note in figures[loop.index0] %}<div><span class="soft">{{ name }}</span><b>{{ value }}</b><span class="soft">{{ note }}</span></div>
{% endfor %}</div>{% endif %}
{{ plots[loop.index0] }}
{% if s.data and s.data.checks %}<table class="rows"><thead><tr><th>Check</th><th>Status</th><th>Seen</th><th class="n">s</th></tr></thead><tbody>
{% for c in s.data.checks %}<tr><td class="name">{{ c.name }}</td><td class="status {{ c.status }}">{{ c.status|replace("_", " ") }}</td>
<td>{{ c.detail }}</td><td class="n" data-unit="s">{{ "%.2f"|format(c.seconds) }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if s.data and s.data.figures %}<table class="rows"><thead><tr><th>Figure</th><th>Label</th><th class="n">Value</th></tr></thead><tbody>
{% for k, f in s.data.figures.items() %}<tr><td class="name">{{ k }}</td><td>{{ f.label if f.label == "invalid" else s.data.label }}{% if f.why %}: {{ f.why }}{% endif %}</td>
<td class="n">{{ f.value if f.label == "shown" else "no value" }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if s.data and s.data.flips %}<h3>Questions that flipped</h3><table class="rows"><thead><tr><th>Question</th><th>Flip</th><th>Before</th><th>After</th></tr></thead><tbody>
{% for f in s.data.flips %}<tr><td class="name">{{ f.doc_id }}</td><td class="status {{ "fail" if f.flip == "lost" else "pass" }}">{{ f.flip }}</td>
<td class="mono" data-name="before">{{ f.before }}</td><td class="mono" data-name="after">{{ f.after }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if s.findings %}<ul>{% for f in s.findings %}<li><b>{{ f.severity }}</b> <code>{{ f.code }}</code>: {{ f.what }}
<br><span class="soft">Why: {{ f.why }}. Do: {{ f.fix }}.</span></li>
{% endfor %}</ul>{% endif %}</section>
{% endfor %}
{% if provenance %}<section><h2>Provenance</h2><dl>
{% for k, v in provenance %}<dt>{{ k|replace("_", " ") }}</dt><dd>{{ v }}</dd>
{% endfor %}</dl></section>{% endif %}
</body></html>
"""


def to_html(report: Report) -> str:
    plots = [Markup(_plots(report, s)) for s in report.sections]
    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    figures = [_figures(s) for s in report.sections]
    return page.render(style=Markup(STYLE), r=report, plots=plots, figures=figures, provenance=_known(report)) + "\n"


def _figures(section: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The few numbers that a verdict rests on: name, value, note. None for a verdict without evidence."""
    data = section.get("data") or {}
    out: list[tuple[str, str, str]] = []
    if section["command"] == "gate" and "score" in data:
        low, high = data["wilson_95"]
        out.append(("score", f"{data['score']:.4f}", f"{data['right']} of {data['n']} right"))
        out.append(("95 % interval", f"{low:.3f}–{high:.3f}", "Wilson"))
        out.append(
            ("floor", f"{data['floor']['floor']:.2f}", f"{data['floor']['margin_in_stderr']:+.1f} standard errors")
        )
        reference = data.get("reference") or {}
        if "reference" in reference:
            out.append(
                ("reference", f"{reference['reference']:.4f}", f"p = {reference['p_no_worse']:.2g} that it is no worse")
            )
        if "answers" in data:
            out.append(("empty answers", str(data["answers"]["empty"]), f"{data['answers']['failed']} without any"))
    paired = data.get("paired") or {}
    if "lost" in paired:
        look = paired.get("second_look") or paired
        out.append(("lost / gained", f"{look['lost']} / {look['gained']}", f"of {look['n']} paired questions"))
        settle = f"it could settle {100 * paired['loss_this_run_could_find']:.1f} points"
        out.append(("loss", f"{100 * look['loss']:+.1f} points", settle))
    if section["command"] == "bench-report" and "effective_concurrency_per_rank" in data:
        out.append(("per rank", f"{data['effective_concurrency_per_rank']:g}", f"effective, {data['ranks']} ranks"))
        out.append(
            ("label", str(data.get("label")), "may be ranked" if data.get("may_be_ranked") else "not to be ranked")
        )
    if section["command"] == "smoke" and "seconds" in data:
        out.append(("took", f"{data['seconds']:.1f} s", "all checks"))
        out.append(
            ("fused path", "active" if data.get("fused_path_active") else "not proven", "by the adapter's evidence")
        )
    return out


def _plots(report: Report, section: dict[str, Any]) -> str:
    data = section.get("data") or {}
    plots = []
    if section["command"] == "gate" and data.get("verdict") != "INVALID":
        plots.append((score_plot(section), "The score with its 95 % interval, against floor and reference"))
        plots.append((line_plot(report.running), "Running accuracy over the questions, in file order"))
        plots.append((histogram(report.seconds), "Answers by seconds taken"))
    if data.get("verdict") != "INVALID" and "lost" in (data.get("paired") or {}):
        plots.append((flip_plot(data["paired"]), "Questions that flipped against the baseline"))
    shown = "".join(f"<figure>{svg}<figcaption>{text}</figcaption></figure>" for svg, text in plots if svg)
    return f'<div class="plots">{shown}</div>' if shown else ""


def _known(report: Report) -> list[tuple[str, str]]:
    return [(k, _text(v)) for k, v in report.provenance.items()]


def _text(value: Any) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def to_json(report: Report) -> str:
    return json.dumps({"schema_version": 1, **asdict(report)}, indent=2, ensure_ascii=False) + "\n"


def to_junit(report: Report) -> str:
    """One test case per section, and one per smoke check; what could not run is skipped, never passed."""
    cases: list[tuple[str, str, str, str]] = []
    for section in report.sections:
        cases.append((str(section["command"]), "verdict", str(section["status"]), str(section["summary"])))
        for check in (section.get("data") or {}).get("checks") or []:
            cases.append((str(section["command"]), str(check["name"]), str(check["status"]), str(check["detail"])))
    bad = [c for c in cases if c[2] not in ("pass", "warn", "not_run")]
    skipped = [c for c in cases if c[2] == "not_run"]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name={quoteattr(report.title)} tests="{len(cases)}" '
        f'failures="{len(bad)}" errors="0" skipped="{len(skipped)}">',
    ]
    for suite, name, status, text in cases:
        text = "".join(c for c in text if c >= " " or c in "\t\n")  # XML 1.0 has no other control characters
        inner = (
            f"<failure message={quoteattr(text)}/>"
            if status not in ("pass", "warn", "not_run")
            else f"<skipped message={quoteattr(text)}/>"
            if status == "not_run"
            else ""
        )
        lines.append(f"  <testcase classname={quoteattr(suite)} name={quoteattr(name)}>{inner}</testcase>")
    return "\n".join([*lines, "</testsuite>"]) + "\n"


def to_markdown(report: Report) -> str:
    lines = [f"# {report.title}: {report.status.upper()}", ""]
    if report.partial:
        lines += [f"Partial: {report.partial}.", ""]
    for section in report.sections:
        lines += [f"## {section['command']}: {section['status']}", "", str(section["summary"]), ""]
        lines += [f"- {name}: {value} ({note})" for name, value, note in _figures(section)]
        lines += [
            f"- {c['status']}: {c['name']}: {c['detail']}" for c in (section.get("data") or {}).get("checks") or []
        ]
        lines += [f"- {f['severity']} `{f['code']}`: {f['what']}" for f in section.get("findings") or []]
        lines.append("")
    if report.provenance:
        lines += ["## Provenance", "", *(f"- {k}: {v}" for k, v in _known(report)), ""]
    return "\n".join(lines)
