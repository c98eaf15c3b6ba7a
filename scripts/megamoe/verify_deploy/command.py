"""`megamoe verify-deploy DEPLOY --inspect INSPECT.json`. Reads, compares, reports; it changes nothing."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import Annotated, Any

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
    from megamoe.text_input import load_json
    from megamoe.verify_deploy.compare import compare

    known = read_facts(facts)
    loaded = load_deploy(deploy)
    judged = judge(loaded, known)
    if judged.refused:
        return Outcome(
            "refused", Exit.REFUSED, "the plan itself is refused, so nothing can be compared with it", judged.findings
        )
    spec = build(loaded.deploy, judged.context.profile, known)
    raw = load_json(inspect) if inspect else _ask(loaded.deploy.container.engine, spec.name)
    rows = compare(spec, _one(raw, spec.name), frozenset(loaded.deploy.env))
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
    unknown = [row for row in rows if row.state == "unknown"]
    if unknown:
        findings.append(
            Finding(
                "not_compared",
                "info",
                "unknown: " + "; ".join(f"{row.field} (planned {row.planned}; {row.running})" for row in unknown),
                "what the inspection does not carry is not counted as equal",
                "give the whole output of inspect, and --facts",
            )
        )
    same = sum(row.state == "same" for row in rows)
    if not same and not any(row.state == "drift" for row in rows):
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


def _one(raw: Any, name: str) -> dict[str, Any]:
    """The one container of an inspection; engines print a list.

    Raises:
        Problem: no container, several of which none has the planned name, or not an inspection.
    """
    entries = raw if isinstance(raw, list) else [raw]
    found = [entry for entry in entries if isinstance(entry, dict) and entry]
    if not found or len(found) != len(entries):
        raise Problem(
            "inspect_shape",
            what="the inspection is not a list of containers",
            why="there is nothing to compare",
            fix="give the output of `docker inspect NAME` or `podman inspect NAME`",
        )
    if len(found) > 1:
        found = [entry for entry in found if str(entry.get("Name", "")).lstrip("/") == name]
        if len(found) != 1:
            raise Problem(
                "inspect_ambiguous",
                what=f"{len(entries)} containers, {len(found)} of them named {name}",
                why="the comparison is with one container",
                fix=f"inspect {name} alone",
            )
    return found[0]


def _ask(engine: str, name: str) -> Any:
    from megamoe.text_input import parse_json

    def ask(*words: str) -> str:
        try:
            done = subprocess.run([engine, *words], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(
                "engine_unreachable",
                what=f"{engine} could not be asked: {error}",
                why="the running container is unknown",
                fix="run on the host, or give --inspect",
                exit_code=Exit.UNREACHABLE,
            ) from None
        if done.returncode:
            raise Problem(
                "container_missing",
                what=f"{engine} inspect {name}: {done.stderr.strip()[:200]}",
                why="there is no such container, or the engine does not answer",
                fix="start it with the serve role",
                exit_code=Exit.CHECK_FAILED,
            )
        return done.stdout

    found = parse_json(ask("inspect", "--type", "container", name), f"{engine} inspect {name}")
    entry = _one(found, name)
    if "RepoDigests" not in entry and entry.get("Image"):
        entry["RepoDigests"] = json.loads(
            ask("image", "inspect", "--format", "{{json .RepoDigests}}", str(entry["Image"]))
        )
    return entry
