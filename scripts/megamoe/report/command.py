"""`megamoe report`: one page, three machine forms, from saved evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def report(
    envelopes: Annotated[list[str], typer.Argument(help="Saved --json output of smoke, gsm8k, gate, ... in order.")],
    out: Annotated[str, typer.Option(help="Folder for report.html, report.json, report.md and junit.xml.")],
    run_dir: Annotated[str | None, typer.Option(help="gsm8k's --out folder, for provenance and plots.")] = None,
    facts: Annotated[str | None, typer.Option(help="Host facts (JSON), for the hardware's line.")] = None,
    title: Annotated[str, typer.Option(help="Heading.")] = "MegaMoE validation",
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Write the HTML, JSON, JUnit and Markdown report."""

    def work() -> Outcome:
        from megamoe.report.model import build
        from megamoe.report.render import to_html, to_json, to_junit, to_markdown

        body = build(envelopes, run_dir, title, facts)
        folder = Path(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in (
                ("report.html", to_html(body)),
                ("report.json", to_json(body)),
                ("report.md", to_markdown(body)),
                ("junit.xml", to_junit(body)),
            ):
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise Problem(
                "out_not_writable",
                what=f"{folder} cannot be written: {error.strerror}",
                why="the report has to go somewhere",
                fix="choose another --out",
            ) from None
        return Outcome(
            "pass",
            Exit.PASS,
            f"wrote {folder}/report.html (validation status: {body.status})",
            [],
            {"status": body.status, "files": ["report.html", "report.json", "report.md", "junit.xml"]},
        )

    run_verb("report", work, json_output=json_output)
