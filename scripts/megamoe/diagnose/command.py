"""`megamoe diagnose LOG...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from megamoe_atom.problem import Problem

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def diagnose(
    logs: Annotated[list[str], typer.Argument(help="log files (plain, gzip, bzip2 or xz), or - for standard input")],
    facts: Annotated[str, typer.Option("--facts", help="facts around the logs (JSON)")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="print the result envelope")] = False,
) -> None:
    """Name the first cause in one or more logs, tell its victims apart, and say what to do next."""
    run_verb("diagnose", lambda: _outcome(logs, facts), json_output=json_output)


def _outcome(logs: list[str], facts: str) -> Outcome:
    from megamoe.diagnose.judge import judge
    from megamoe.diagnose.scan import scan

    known: dict[str, Any] = {}
    if facts:
        from megamoe.text_input import load_json

        loaded = load_json(facts)
        if not isinstance(loaded, dict):
            raise Problem("facts_not_an_object", what=f"{facts}: the facts are a {type(loaded).__name__}",
                          why="facts are one JSON object", fix="write {...}")
        known = loaded
    return judge(scan(logs), known)
