"""`megamoe preflight DEPLOY`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome, outcome_from, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def preflight(
    deploy: Annotated[str, typer.Argument(help="deploy file")],
    facts: Annotated[str, typer.Option("--facts", help="facts of the host (JSON), - for standard input")] = "",
    collect: Annotated[bool, typer.Option("--collect", help="collect the facts on this host")] = False,
    inside_image: Annotated[
        bool, typer.Option("--inside-image", help="with --collect: ask one short-lived container of the image too")
    ] = False,
    kernels: Annotated[
        str, typer.Option("--kernels", help="result of `megamoe kernels verify --json` on this host, judged too")
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="print the result envelope")] = False,
) -> None:
    """Judge host facts before anything changes. Exit 4 when the host must not be deployed to."""
    run_verb("preflight", lambda: _outcome(deploy, facts, collect, kernels, inside_image), json_output=json_output)


def _outcome(path: str, facts_path: str, collect: bool, kernels: str = "", inside: bool = False) -> Outcome:
    from megamoe.deploy.load import require_deploy
    from megamoe.preflight.judge import judge
    from megamoe.preflight.provenance import provenance
    from megamoe.preflight.reading import Recorded

    deploy = require_deploy(path)
    facts: dict[str, Any]
    if collect == bool(facts_path):
        raise Problem("usage", what="give either --facts or --collect", why="there must be one source of facts",
                      fix="--collect on the host itself, --facts FILE for another host")
    if inside and not collect:
        raise Problem("usage", what="--inside-image was given without --collect", why="the facts in a file were "
                      "collected already, on a host that may be another", fix="add it where the facts are collected")
    if collect:
        from megamoe.preflight.collect_facts import collect as collect_here

        own = deploy.container
        facts = collect_here(deploy.model.path, own.cache_dir or "", deploy.image, own.engine, own.user or "",
                             ",".join(str(g) for g in own.group_add or []), "inside" if inside else "")
    else:
        from megamoe.text_input import load_json

        loaded = load_json(facts_path)
        if not isinstance(loaded, dict):
            raise Problem("facts_not_an_object", what=f"{facts_path}: the facts are a {type(loaded).__name__}",
                          why="facts are one JSON object", fix="write {...}")
        facts = loaded
    recorded = Recorded(facts)
    judged = judge(recorded, deploy)
    if not recorded.read:
        raise Problem("facts_empty", what=f"{facts_path or 'this host'}: no fact that this deployment is judged by is "
                      "there", why="nothing could be judged, and what was not judged has not passed",
                      fix="give the file that `megamoe preflight DEPLOY --collect --json` wrote on the host (its "
                      "data.facts)", exit_code=Exit.NO_EVIDENCE)
    findings = [replace(f, host=deploy.host) for f in [*judged, *provenance(facts, deploy, time.time())]]
    # Facts that somebody chose to give may be partial: what is absent is listed as unknown. Where we collected
    # ourselves, not being able to know is a finding of its own.
    unknown = [] if collect else [f for f in findings if f.code.startswith("UNKNOWN_")]
    findings = [f for f in findings if f not in unknown]
    blocks = sum(f.severity == "error" for f in findings)
    data: dict[str, Any] = {"unknown": [{"code": f.code, "what": f.what, "fix": f.fix} for f in unknown]}
    if collect:
        data["facts"] = facts
    if kernels:
        from megamoe_atom import kernel_edits
        from megamoe_atom.settings import parse_kernel_edits

        from megamoe.kernels.verify_evidence import judge_saved
        from megamoe.text_input import load_json

        left_out, copies = parse_kernel_edits({name: str(value) for name, value in deploy.env.items()})
        wanted = kernel_edits.wanted(left_out, async_copy=copies)
        against, data["kernels"] = judge_saved(load_json(kernels), kernels, wanted)
        findings += [replace(f, host=deploy.host) for f in against]
        blocks += len(against)
    name = deploy.host or "host"
    rest = f"; {len(unknown)} fact(s) unknown" if unknown else ""
    return outcome_from(findings, summary_ok=f"{name}: nothing that is known blocks the deployment{rest}",
                        summary_bad=f"{name}: {blocks} finding(s) block the deployment{rest}", bad_status="error",
                        bad_exit=Exit.PRECONDITION, data=data,
                        text="\n".join(f"unknown: {f.what} ({f.fix})" for f in unknown))
