"""`megamoe pins`: check, mirror and verify what docker/pins.toml names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb
from megamoe.pins import check as offline
from megamoe.pins import online as served
from megamoe.pins import sources
from megamoe.pins import verify as judged
from megamoe.pins.model import load_pins
from megamoe.resources import checkout_root, resource

app = typer.Typer(add_completion=False, help="Check, mirror and verify the pinned sources.")

_NOT_HAD = {"apt_not_mirrored": "the Debian packages", "base_not_mirrored": "the base image"}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
GitBase = Annotated[str, typer.Option(envvar="MEGAMOE_GIT_BASE", help="Where OWNER/NAME.git repositories are served.")]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _root() -> Path:
    root = checkout_root()
    if root is None:
        raise Problem(
            "no_checkout",
            exit_code=Exit.PRECONDITION,
            what="this megamoe was not run from a checkout",
            why="the pins are judged against the repository's files",
            fix="clone the repository and run it from there",
        )
    return root


def _outcome(findings: list[Finding], ok: str, bad: str) -> Outcome:
    """What was not had is said in the first line, too: `ok` speaks of the rest."""
    if absent := [n for f in findings if (n := _NOT_HAD.get(f.code)) is not None]:
        ok += f", but {' and '.join(absent)}"
    unreachable = any(f.code == "source_unreachable" for f in findings)
    wrong = any(f.severity == "error" and f.code != "source_unreachable" for f in findings)
    return outcome_from(
        findings,
        summary_ok=ok,
        summary_bad=bad,
        bad_status="error" if unreachable and not wrong else "fail",
        bad_exit=Exit.UNREACHABLE if unreachable and not wrong else Exit.CHECK_FAILED,
    )


@app.command()
def check(
    online: Annotated[bool, typer.Option(help="Also ask whether each source is still served as pinned.")] = False,
    git_base: GitBase = sources.GIT_BASE,
    json_output: Json = False,
) -> None:
    """Consistent, complete, nothing floating, nothing pinned elsewhere."""

    def judge() -> Outcome:
        pins = load_pins(resource("docker/pins.toml"))
        findings = offline.judge(pins, _root())
        if not online:
            return _outcome(findings, "the pins are complete and stand in one place", "the pins do not hold")
        answers = served.ask(pins, _root(), git_base=git_base, say=_say)
        findings += [finding for answer in answers for finding in answer.findings]
        data = {"sources": [{"pin": answer.pin, "status": answer.status, "about": answer.about} for answer in answers]}
        counted = f"{sum(a.status == 'pass' for a in answers)} of {len(answers)} sources are served as pinned"
        if (silent := [a.pin for a in answers if a.status == "not_run"]) and all(
            f.severity != "error" for f in findings
        ):
            return Outcome(
                "not_run", Exit.NO_EVIDENCE, f"{counted}; could not be asked: {', '.join(silent)}", findings, data
            )
        outcome = _outcome(findings, f"the pins are complete and stand in one place; {counted}", "the pins do not hold")
        outcome.data = data
        return outcome

    run_verb("pins check", judge, json_output=json_output)


@app.command()
def mirror(
    directory: Path,
    lock: Annotated[list[str] | None, typer.Option(help="Locks whose closure to fetch.")] = None,
    git_base: GitBase = sources.GIT_BASE,
    json_output: Json = False,
) -> None:
    """Fetch every pinned source once into DIRECTORY; what is there and right is kept."""

    def judge() -> Outcome:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Problem(
                "mirror_unwritable",
                what=f"{directory} cannot be made: {error}",
                why="the mirror is written there",
                fix="name a folder that can be written",
            ) from error
        findings = sources.mirror(
            load_pins(resource("docker/pins.toml")), _root(), directory, git_base=git_base, locks=lock or [], say=_say
        )
        return _outcome(findings, f"{directory.name} holds every pinned source", f"{directory.name} is not complete")

    run_verb("pins mirror", judge, json_output=json_output)


@app.command()
def bake(
    mirror_dir: Annotated[Path | None, typer.Option("--mirror", help="The mirror that the build reads.")] = None,
    out: Annotated[Path, typer.Option(help="The bake file to write.")] = Path(".state/bake.json"),
    source: Annotated[str, typer.Option(help="Address for the label image.source.")] = "unknown",
    allow_dirty: Annotated[bool, typer.Option(help="Build from files that are not committed.")] = False,
    json_output: Json = False,
) -> None:
    """Write docker-bake.hcl's build arguments from docker/pins.toml."""

    def judge() -> Outcome:
        from megamoe.pins.bake import arguments

        pins = load_pins(resource("docker/pins.toml"))
        found = [] if mirror_dir is None else judged.verify(pins, _root(), mirror_dir)
        if mirror_dir is not None and (bad := [f for f in found if f.severity == "error"]):
            return _outcome(bad, "", f"{mirror_dir.name} must not be built from")
        body = arguments(pins, _root(), mirror=mirror_dir, source=source, allow_dirty=allow_dirty)
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_name(f".{out.name}.tmp")
        temporary.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(out)
        return Outcome("pass", Exit.PASS, f"wrote {out}", data=body)

    run_verb("pins bake", judge, json_output=json_output)


@app.command()
def verify(directory: Path, json_output: Json = False) -> None:
    """Check a mirror offline."""

    def judge() -> Outcome:
        findings = judged.verify(load_pins(resource("docker/pins.toml")), _root(), directory)
        return _outcome(
            findings, f"{directory.name} is complete and unchanged", f"{directory.name} must not be built from"
        )

    run_verb("pins verify", judge, json_output=json_output)
