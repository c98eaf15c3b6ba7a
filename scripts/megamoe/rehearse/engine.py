"""The container engine of this machine, through its command line (the only I/O of this file)."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.settings import LABEL


def docker(*args: str, timeout_s: float = 120, check: bool = True, stdin: str | None = None) -> str:
    """Runs `docker ARGS` and returns its stdout.

    Raises:
        Problem: code "engine_call", exit 4: it failed (unless check is False), is missing or took too long.
    """
    try:
        done = subprocess.run(
            ["docker", *args], capture_output=True, text=True, timeout=timeout_s, input=stdin, check=False
        )
    except FileNotFoundError as error:
        raise engine_missing() from error
    except subprocess.TimeoutExpired as error:
        raise Problem(
            "engine_call",
            exit_code=Exit.PRECONDITION,
            what=f"docker {args[0]} took longer than {timeout_s:.0f} s",
            why="the rehearsal cannot go on without it",
            fix="look at `docker info` and the engine's log",
        ) from error
    if check and done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Problem(
            "engine_call",
            exit_code=Exit.PRECONDITION,
            what=f"docker {' '.join(args[:3])} ended with {done.returncode}: {last}",
            why="the rehearsal cannot go on without it",
            fix="act on the engine's message above; `make rehearse-down` removes what was made so far",
        )
    return done.stdout


def inspect(kind: str, name: str) -> dict[str, Any] | None:
    """`docker KIND inspect NAME` as a mapping, or None where there is no such object."""
    out = docker(kind, "inspect", name, check=False)
    found: list[dict[str, Any]] = json.loads(out) if out.strip().startswith("[") else []
    return found[0] if found else None


def labelled(kind: str) -> list[str]:
    """Names of the containers, volumes, networks or images that a rehearsal made (by label, so never anyone else's)."""
    command = {
        "container": ["ps", "--all", "--format", "{{.Names}}"],
        "volume": ["volume", "ls", "--format", "{{.Name}}"],
        "network": ["network", "ls", "--format", "{{.Name}}"],
        "image": ["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"],
    }[kind]
    return sorted(set(docker(*command, "--filter", f"label={LABEL}").split()))


def engine_missing() -> Problem:
    return Problem(
        "engine_missing",
        exit_code=Exit.PRECONDITION,
        what="the command docker is not there",
        why="nodes and images of the rehearsal are containers",
        fix="run scripts/rehearse.sh as root (it installs docker.io), or: sudo apt-get install --yes docker.io",
    )
