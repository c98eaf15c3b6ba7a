"""`megamoe verify-deploy DEPLOY --inspect INSPECT.json`. Reads, compares, reports; it changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def verify_deploy(
    deploy: Annotated[str, typer.Argument(help="deploy file, or - for standard input")],
    inspect: Annotated[
        str,
        typer.Option("--inspect", help="output of docker or podman inspect; left out: ask the engine on this machine"),
    ] = "",
    facts: Annotated[str, typer.Option("--facts", help="host facts (JSON), for numeric groups")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="print the result envelope")] = False,
) -> None:
    """Compare a running container with the plan: digest, args, env, devices, groups, ipc, limits, labels."""
    run_verb("verify-deploy", lambda: _outcome(deploy, inspect, facts), json_output=json_output)


def _outcome(deploy: str, inspect: str, facts: str) -> Outcome:
    from megamoe.deploy.load import load_deploy
    from megamoe.plan.command import read_facts
    from megamoe.plan.container import build
    from megamoe.plan.judge import judge
    from megamoe.verify_deploy.compare import IDENTITY, compare, restarts
    from megamoe.verify_deploy.inspection import ask_engine, one_container, read_inspection

    known = read_facts(facts)
    loaded = load_deploy(deploy)
    judged = judge(loaded, known)
    if judged.refused:
        return Outcome(
            "refused", Exit.REFUSED, "the plan itself is refused, so nothing can be compared with it", judged.findings
        )
    spec = build(loaded.deploy, judged.context.profile, known)
    if inspect:
        entry, image_env = one_container(read_inspection(inspect), spec.name), None
    else:
        entry, image_env = ask_engine(loaded.deploy.container.engine, spec.name)
    rows = compare(spec, entry, frozenset(loaded.deploy.env), image_env)
    findings = [
        Finding(
            "drift",
            "error",
            f"{row.field}: planned {row.planned}, running {row.running}",
            "what runs is not what was planned and validated",
            _fix(row.field, loaded.deploy.container.engine, spec.name),
            host=loaded.deploy.host,
        )
        for row in rows
        if row.state == "drift"
    ]
    if (again := restarts(entry)) > 0:
        engine = loaded.deploy.container.engine
        findings.append(
            Finding(
                "restarted",
                "warn",
                f"{engine} started {spec.name} {again} time(s) again after it had ended",
                "what runs is the plan, but the server did not stay up, and each start costs its load",
                f"`{engine} logs {spec.name} >all.log 2>&1`, then `megamoe diagnose all.log` names what ended it",
                host=loaded.deploy.host,
            )
        )
    unknown = [row for row in rows if row.state == "unknown"]
    if unknown:
        findings.append(
            Finding(
                "not_compared",
                # Fields can be left out of an inspection; without the digest nobody knows what runs at all.
                "warn" if any(row.field == IDENTITY for row in unknown) else "info",
                "unknown: " + "; ".join(f"{row.field} (planned {row.planned}; {row.running})" for row in unknown),
                "what the inspection does not carry is not counted as equal",
                "give the whole output of inspect, and --facts",
            )
        )
    same = sum(row.state == "same" for row in rows)
    if not any(row.state != "unknown" and row.field != "name" for row in rows):
        raise Problem(
            "inspect_empty",
            what="the inspection holds no field of the plan",
            why="nothing was compared",
            fix="give the output of `docker inspect NAME`",
            exit_code=Exit.NO_EVIDENCE,
        )
    drift = len(rows) - same - len(unknown)
    return outcome_from(
        findings,
        summary_ok=f"{spec.name} is the plan: {same} fields equal, {len(unknown)} unknown",
        summary_bad=f"{spec.name} is not the plan: {drift} fields differ, {same} equal, {len(unknown)} unknown",
        data={"fields": [asdict(row) for row in rows], "drift": drift, "same": same, "unknown": len(unknown)},
    )


def _fix(field: str, engine: str, name: str) -> str:
    if field == "state":
        return (
            f"keep its last words before it is replaced: `{engine} logs {name} >end.log 2>&1`, then "
            "`megamoe diagnose end.log`; the serve role starts it again"
        )
    return "recreate the container with the serve role, then gate it again; this verb changes nothing"
