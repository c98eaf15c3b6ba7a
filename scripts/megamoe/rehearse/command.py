"""`megamoe rehearse`."""

from __future__ import annotations

from typing import Annotated

import typer

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def rehearse(
    nodes: Annotated[int, typer.Option("--nodes", help="Containers that stand for hosts, 1 to 32.")] = 2,
    fault: Annotated[str, typer.Option("--fault", help="Make this fault; a gate must catch it.")] = "none",
    selftest: Annotated[str, typer.Option("--selftest", help="on or off: the adapter's start-up proof.")] = "on",
    dataset: Annotated[str | None, typer.Option("--dataset", help="GSM8K JSONL; default: our easy sums.")] = None,
    down: Annotated[bool, typer.Option("--down", help="Remove everything that a rehearsal made.")] = False,
    json_output: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Takes this machine to a validated service on containers that stand for hosts, with the production playbooks."""

    def work() -> Outcome:
        from megamoe.rehearse.run import rehearse as go
        from megamoe.rehearse.run import tear_down
        from megamoe.rehearse.settings import parse

        settings = parse(nodes, fault, selftest, dataset)
        return tear_down(settings) if down else go(settings)

    run_verb("rehearse", work, json_output=json_output)
