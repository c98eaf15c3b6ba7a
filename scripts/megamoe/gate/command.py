"""`megamoe gate`: reads policy and evidence, prints the verdict."""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated

import typer
from megamoe_atom.problem import Problem

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def gate(
    policy: Annotated[str, typer.Option(help="Packaged policy (v4-pro-fused, ...) or a .toml/.json file.")],
    result: Annotated[str, typer.Option(help="Result JSON of lm-eval, or a results folder.")],
    samples: Annotated[str | None, typer.Option(help="Samples JSONL of the same run.")] = None,
    run: Annotated[str | None, typer.Option(help="Run record (RUN.json): only that run's own files count.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Run folder, or samples JSONL, of a known-good run.")] = None,
    further: Annotated[
        list[str] | None, typer.Option(help="Second stage: run folder with further questions; may be repeated.")
    ] = None,
    further_baseline: Annotated[
        list[str] | None, typer.Option(help="The known-good run of the same further questions, in the same order.")
    ] = None,
    status_before: Annotated[
        str | None, typer.Option(help="Saved `megamoe status --json` of just before the run, where gsm8k had none.")
    ] = None,
    status_after: Annotated[str | None, typer.Option(help="The same of just after the run.")] = None,
    server_started_at_end: Annotated[
        str | None, typer.Option(help="Start of the server as read after the run, epoch seconds or ISO time.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """PASS, FAIL, INCONCLUSIVE or INVALID: may this deployment serve?"""

    def work() -> Outcome:
        from megamoe.gate.evidence import add_watch, load_evidence, load_run
        from megamoe.gate.judge import judge
        from megamoe.gate.policy import load_policy

        loaded = load_policy(policy)
        pairs = list(zip_longest(further or [], further_baseline or []))
        if any(None in pair for pair in pairs) or (pairs and not baseline):
            raise Problem(
                "further_unpaired",
                what=f"{len(further or [])} --further, {len(further_baseline or [])} --further-baseline, "
                f"{1 if baseline else 0} --baseline",
                why="each stage compares two runs of the same questions",
                fix="give --baseline, and one --further-baseline for each --further",
            )
        evidence = load_evidence(result, samples, run)
        add_watch(evidence, status_before, status_after, server_started_at_end)
        return judge(
            loaded,
            evidence,
            load_run(baseline) if baseline else None,
            [(load_run(now), load_run(before)) for now, before in pairs],
        )

    run_verb("gate", work, json_output=json_output)
