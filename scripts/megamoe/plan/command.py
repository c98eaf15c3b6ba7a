"""`megamoe plan DEPLOY`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


def _codes(incomplete: str) -> list[str]:
    """Codes for shell completion."""
    from megamoe.plan.catalogue import codes

    return [code for code in sorted(codes()) if code.startswith(incomplete.lower())]


@app.command()
def plan(
    deploy: Annotated[str, typer.Argument(help="deploy file, or - for standard input")] = "",
    facts: Annotated[str, typer.Option("--facts", help="host facts (JSON), for numeric groups")] = "",
    fit: Annotated[bool, typer.Option("--fit", help="print the nearest legal plan and each difference")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema of DEPLOY")] = False,
    explain: Annotated[
        str, typer.Option("--explain", metavar="CODE", help="explain a finding's code", autocompletion=_codes)
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="print the result envelope")] = False,
) -> None:
    """Refuse an unsafe launch with every reason, or print its environment, flags, memory budget and `docker run`.

    Reads two files at most, contacts no host and pulls nothing.
    """
    if schema and not json_output:  # the schema alone, for editors and validators
        import json

        from megamoe.deploy.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        raise typer.Exit(0)
    run_verb("plan", lambda: _outcome(deploy, facts, fit, explain, schema), json_output=json_output)


def _outcome(deploy: str, facts: str, fit: bool, explain: str, schema: bool = False) -> Outcome:
    if schema:
        from megamoe.deploy.schema import json_schema

        return Outcome("pass", Exit.PASS, "the JSON Schema of DEPLOY", data={"schema": json_schema()})
    if explain:
        from megamoe.plan.catalogue import explain as explain_code

        return explain_code(explain)
    if not deploy:
        raise Problem(
            "usage",
            what="no deploy file given",
            why="there is nothing to plan",
            fix="give a file, or - for standard input",
            exit_code=Exit.REFUSED,
        )
    from megamoe.deploy.load import load_deploy
    from megamoe.plan.judge import outcome_of

    known = read_facts(facts)
    loaded = load_deploy(deploy)
    if fit:
        from megamoe.plan.fit import fit_outcome

        return fit_outcome(loaded, known)
    return outcome_of(loaded, known)


def read_facts(path: str) -> dict[str, Any]:
    """Facts as one JSON object, {} when no file is given.

    Raises:
        Problem: unreadable, not JSON, or not an object.
    """
    if not path:
        return {}
    from megamoe.text_input import display_name, load_json

    value = load_json(path)
    if not isinstance(value, dict):
        raise Problem(
            "facts_not_an_object",
            what=f"{display_name(path)}: facts are a {type(value).__name__}, not an object",
            why="facts are keys such as host and gpus",
            fix="give the file that `megamoe preflight --collect` wrote",
        )
    return value
