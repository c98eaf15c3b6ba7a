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

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ r.title }}: {{ r.status|upper }}</title>
<style>
:root { --bg:#fff; --fg:#1c2127; --soft:#5b6670; --line:#d5dbe1; --card:#f6f8fa; --accent:#1f6feb; --pass:#1a7f37; --bad:#c62828;
  --warn:#8a5a00; }
@media (prefers-color-scheme: dark) { :root { --bg:#0f1419; --fg:#e6e9ec; --soft:#9aa5b0; --line:#2e3842; --card:#171e25;
  --accent:#6ea8fe; --pass:#56d17b; --bad:#ff7b72; --warn:#e3b341; } }
* { box-sizing:border-box } body { margin:0 auto; max-width:60rem; padding:1rem; background:var(--bg); color:var(--fg);
  font:16px/1.5 system-ui, sans-serif; overflow-wrap:anywhere }
h1 { font-size:1.5rem; margin:.5rem 0 } h2 { font-size:1.15rem; margin:0 0 .5rem }
section { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:1rem; margin:1rem 0 }
.status { font-weight:700; text-transform:uppercase } .pass { color:var(--pass) } .warn,.not_run { color:var(--warn) }
.fail,.error,.invalid,.inconclusive,.refused { color:var(--bad) } .soft,dt { color:var(--soft) }
table { border-collapse:collapse; width:100% } td,th { text-align:left; padding:.3rem .6rem .3rem 0; vertical-align:top;
  border-top:1px solid var(--line) } td,th { overflow-wrap:break-word } .status { white-space:nowrap } td.n { white-space:nowrap; text-align:right; padding-right:0 }
dl { display:grid; grid-template-columns:minmax(8rem, max-content) 1fr; gap:.2rem 1rem; margin:0 } dd { margin:0 }
li { margin:.6rem 0 } ul { padding-left:1.2rem } code { font-size:.9em }
svg { width:100%; height:auto; display:block; margin:.8rem 0 } svg text { fill:var(--fg); font:14px system-ui, sans-serif }
.axis { stroke:var(--line); stroke-width:2 } .band { fill:var(--accent); opacity:.45 } .point { fill:var(--accent) }
.mark { stroke:var(--bad); stroke-width:2 } .curve { fill:none; stroke:var(--accent); stroke-width:2 }
@media (max-width:32rem) { dl { grid-template-columns:1fr; gap:0 } dd { margin-bottom:.5rem } svg text { font-size:20px } }
</style></head><body>
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
    return page.render(r=report, plots=plots, provenance=_known(report)) + "\n"


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
