"""Report as HTML, JSON, JUnit and Markdown. Pure: Report in, text out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from xml.sax.saxutils import quoteattr

from jinja2 import Environment
from markupsafe import Markup

from megamoe.report.model import Report
from megamoe.report.plots import histogram, line_plot, score_plot
from megamoe.report.style import STYLE

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ r.title }}: {{ r.status|upper }}</title>
<style>
{{ style }}</style></head><body>
<h1>{{ r.title }}: <span class="status {{ r.status }}">{{ r.status }}</span></h1>
{% for s in r.sections %}<section><h2>{{ s.command }}: <span class="status {{ s.status }}">{{ s.status }}</span></h2>
<p>{{ s.summary }}</p>
{{ plots[loop.index0] }}
{% if s.data and s.data.checks %}<table><thead><tr><th>Check</th><th>Status</th><th>Seen</th><th>s</th></tr></thead><tbody>
{% for c in s.data.checks %}<tr><td>{{ c.name }}</td><td class="status {{ c.status }}">{{ c.status }}</td><td>{{ c.detail }}</td>
<td class="n">{{ "%.2f"|format(c.seconds) }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if s.findings %}<ul>{% for f in s.findings %}<li><b>{{ f.severity }}</b> <code>{{ f.code }}</code>: {{ f.what }}
<br><span class="soft">Why: {{ f.why }}. Do: {{ f.fix }}.</span></li>
{% endfor %}</ul>{% endif %}</section>
{% endfor %}
{% if provenance %}<section><h2>Provenance</h2><dl>
{% for k, v in provenance %}<dt>{{ k }}</dt><dd>{{ v }}</dd>
{% endfor %}</dl></section>{% endif %}
</body></html>
"""


def to_html(report: Report) -> str:
    plots = [Markup(_plots(report, s)) for s in report.sections]
    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    return page.render(style=Markup(STYLE), r=report, plots=plots, provenance=_known(report)) + "\n"


def _plots(report: Report, section: dict[str, Any]) -> str:
    if section["command"] != "gate" or (section.get("data") or {}).get("verdict") == "INVALID":
        return ""
    return (
        score_plot(section)
        + line_plot(report.running, "running accuracy over the questions, in file order")
        + histogram(report.seconds, "seconds per answer")
    )


def _known(report: Report) -> list[tuple[str, Any]]:
    return [(k, "not recorded" if v is None else v) for k, v in report.provenance.items()]


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
    for section in report.sections:
        lines += [f"## {section['command']}: {section['status']}", "", str(section["summary"]), ""]
        lines += [f"- {f['severity']} `{f['code']}`: {f['what']}" for f in section.get("findings") or []]
        lines.append("")
    if report.provenance:
        lines += ["## Provenance", "", *(f"- {k}: {v}" for k, v in _known(report)), ""]
    return "\n".join(lines)
