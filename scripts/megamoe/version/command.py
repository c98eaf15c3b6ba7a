"""`megamoe version`: what this is; inside an image also whether it still is that."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
from megamoe_atom.problem import Exit

from megamoe import __version__
from megamoe.envelope import Outcome, outcome_from, run_verb
from megamoe.resources import checkout_root, resource
from megamoe.version import identity

app = typer.Typer(add_completion=False)


@app.command()
def version(
    record: Annotated[Path | None, typer.Option(help="Write the stack lock there (the image build does this).")] = None,
    watch: Annotated[list[Path] | None, typer.Option(help="Files and folders whose bytes are recorded.")] = None,
    lock: Annotated[Path | None, typer.Option(help="The stack lock to verify against.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this installation or image is, and verify an image against its stack lock."""
    run_verb("version", lambda: _judge(record, watch or [], lock), json_output=json_output)


def _judge(target: Path | None, watch: list[Path], lock_path: Path | None) -> Outcome:
    data: dict[str, Any] = {"megamoe": __version__, "edits_sha256": identity.edits_sha256(resource("atom_patch/edits"))}
    if (root := checkout_root()) is not None:
        data["commit"] = _commit(root)
    if target is not None:
        from megamoe.pins.model import load_pins

        pins = load_pins(resource("docker/pins.toml")).model_dump(mode="json")
        identity.write(identity.record(pins, resource("atom_patch/edits"), watch), target)
        return Outcome("pass", Exit.PASS, f"recorded this file system in {target}", data=data)
    path = lock_path or identity.LOCK_PATH
    if lock_path is None and not path.exists():
        return Outcome("pass", Exit.PASS, f"megamoe {__version__}, not inside an image", data=data, text=_text(data))
    lock = identity.read(path)
    data["stack"] = {key: lock[key] for key in ("pins", "edits_sha256")}
    data["verified"] = {"packages": len(lock["distributions"]), "files": len(lock["files"]), "apt": len(lock["apt"])}
    findings = identity.drift(lock)
    checked = f"{len(lock['distributions'])} packages and {len(lock['files'])} files"
    return outcome_from(
        findings,
        summary_ok=f"megamoe {__version__}: {checked} are as built",
        summary_bad=f"{len(findings)} differences from the build",
        data=data,
        text=_text(data),
    )


def _text(data: dict[str, Any]) -> str:
    rows = [("megamoe", data["megamoe"]), ("commit", data.get("commit")), ("edits", data["edits_sha256"][:16])]
    for name, pin in data.get("stack", {}).get("pins", {}).get("git", {}).items():
        rows.append((name, pin["commit"]))
    return "\n".join(f"{name:10} {value}" for name, value in rows if value)


def _commit(root: Path) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.strip() or None
