"""The rehearsal's summary as one HTML page that needs nothing else: what was done, what was decided, where time went."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from megamoe.report.style import STYLE

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Rehearsal: {{ status }}</title>
<style>
{{ style }}
td.long, td .soft { overflow-wrap:anywhere } .bar { background:var(--accent); height:.6rem; border-radius:.2rem; min-width:1px } td.wide { width:30% }
</style></head><body>
<h1>Rehearsal: <span class="status {{ status }}">{{ status }}</span></h1>
<p>{{ summary }}</p>
{% if findings %}<section><h2>{{ "First cause" if status != "pass" else "Findings" }}</h2><ul>
{% for f in findings %}<li><b>{{ f.severity }}</b> <code>{{ f.code }}</code>{% if f.host %} on {{ f.host }}{% endif %}: {{ f.what }}
<br><span class="soft">Why: {{ f.why }}. Do: {{ f.fix }}.</span></li>
{% endfor %}</ul></section>{% endif %}
{% if verdicts %}<section><h2>Verdicts</h2><table><thead><tr><th>Host</th><th>Check</th><th>Verdict</th><th>It said</th></tr></thead><tbody>
{% for v in verdicts %}<tr><td>{{ v.host }}</td><td>{{ v.check }}</td><td class="status {{ v.status }}">{{ v.status }}</td><td class="long">{{ v.said }}</td></tr>
{% endfor %}</tbody></table></section>{% endif %}
{% if hosts %}<section><h2>Hosts</h2><table><thead><tr><th>Host</th><th>Changed</th><th>Failed</th><th>Unreachable</th><th>Behind the gateway</th></tr></thead><tbody>
{% for name, c in hosts %}<tr><td>{{ name }}</td><td>{{ c.changed|default(0) }}</td><td>{{ c.failures|default(0) }}</td>
<td>{{ c.unreachable|default(0) }}</td><td>{{ "yes" if name in serving else "-" }}</td></tr>
{% endfor %}</tbody></table></section>{% endif %}
<section><h2>Where the time went ({{ "%.0f"|format(total) }} s)</h2><table><tbody>
{% for p in phases %}<tr><td>{{ p.name }}{% if p.note %}<br><span class="soft">{{ p.note }}</span>{% endif %}</td>
<td class="status {{ p.status }}">{{ p.status }}</td><td class="wide"><div class="bar" style="margin-left:{{ p.from }}%; width:{{ p.share }}%"></div></td>
<td class="n">{{ "%.1f"|format(p.seconds or 0) }}</td></tr>
{% for play in p.plays %}<tr><td class="soft">&nbsp;&nbsp;{{ play.name }}</td><td></td>
<td class="wide"><div class="bar" style="margin-left:{{ play.from }}%; width:{{ play.share }}%; opacity:.5"></div></td><td class="n">{{ "%.1f"|format(play.seconds) }}</td></tr>
{% endfor %}{% endfor %}</tbody></table></section>
<section><h2>What ran</h2><dl>{% for k, v in facts %}<dt>{{ k }}</dt><dd>{{ v }}</dd>{% endfor %}</dl></section>
{% if next %}<section><h2>What to try next</h2><ul>{% for n in next %}<li><code>{{ n }}</code></li>{% endfor %}</ul></section>{% endif %}
</body></html>
"""


def to_html(envelope: dict[str, Any]) -> str:
    """Renders the summary.

    Args:
        envelope: what `megamoe rehearse --json` prints; phases that never ran are simply not in it.
    """
    data = envelope.get("data") or {}
    phases = data.get("phases", [])
    total = max((p["began"] + (p["seconds"] or 0.0) for p in phases), default=0.0)

    def bar(began: float, seconds: float | None) -> dict[str, float]:
        """Where the bar begins and how long it is, in percent of the whole."""
        return {
            "from": round(100 * began / total, 1) if total else 0.0,
            "share": round(100 * (seconds or 0.0) / total, 1) if total else 0.0,
        }

    rows = []
    for phase in phases:
        plays, at = [], phase["began"]
        for play in data.get("plays", []) if phase["name"] == "roll out with site.yml" else []:
            plays.append({**play, **bar(at, play["seconds"])})
            at += play["seconds"]
        rows.append({**phase, **bar(phase["began"], phase["seconds"]), "plays": plays})
    facts = [(k, data[k]) for k in ("nodes", "fault", "selftest", "image", "run") if k in data]
    facts += sorted((data.get("look_at") or {}).items())
    return Environment(autoescape=True, trim_blocks=True).from_string(_PAGE).render(
        style=Markup(STYLE), status=envelope["status"], summary=envelope["summary"], findings=envelope["findings"],
        verdicts=data.get("verdicts", []), hosts=sorted((data.get("hosts") or {}).items()),
        serving=data.get("serving", []), phases=rows, total=total, facts=facts, next=data.get("next", []),
    ) + "\n"  # fmt: skip
