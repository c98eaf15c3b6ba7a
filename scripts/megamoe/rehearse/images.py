"""The images of a rehearsal: the host image (nodes, gateway, registry) and the engine's image, pushed by digest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.beside import program
from megamoe.rehearse.engine import docker, inspect
from megamoe.rehearse.settings import LABEL, PREFIX, Settings
from megamoe.rehearse.tags import REFERENCE_TAG, host_tag

REPOSITORY = "megamoe/reference"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def ensure_host_image(settings: Settings, log: Path) -> str:
    """Builds the host image unless it is there: base by debootstrap, then our files on it. Returns its tag."""
    tag = host_tag(settings.root)
    if inspect("image", tag) is not None:
        return tag
    packages = (settings.root / "docker/node/packages.txt").read_text().split()
    script = (
        'source scripts/lib/base_image.sh; recipe=$(base_recipe "${@:2}"); tag="$1:${recipe:0:12}"; '
        'ensure_base_image "$tag" "${@:2}" && printf "%s" "$tag"'
    )
    base = run_logged(
        ["bash", "-c", script, "base", f"{PREFIX}base", *packages],
        settings.root,
        log,
        "host base image",
        timeout_s=900,
        environ={"MEGAMOE_STATE": str(settings.root / ".state")},
    )
    # The classic builder: bookworm's engine has no BuildKit, and nothing in this Dockerfile needs it.
    run_logged(
        [
            "docker",
            "build",
            "--quiet",
            "--label",
            LABEL,
            "--build-arg",
            f"BASE={base.strip()}",
            "--tag",
            tag,
            "docker/node",
        ],
        settings.root,
        log,
        "host image",
        timeout_s=300,
        environ={"DOCKER_BUILDKIT": "0"},
    )
    return tag


def ensure_reference_image(settings: Settings, log: Path) -> str:
    """Builds the engine's image with the script that anyone uses for it; the script decides what is up to date."""
    run_logged(
        ["bash", "docker/build_reference.sh", "--tag", REFERENCE_TAG, "--base", f"{PREFIX}engine-base:current"],
        settings.root,
        log,
        "reference image",
        timeout_s=1500,
        environ={"MEGAMOE_STATE": str(settings.root / ".state")},
    )
    return REFERENCE_TAG


def push(settings: Settings, tag: str) -> str:
    """Pushes tag to the rehearsal's registry and returns the address by which nodes pull it, with its digest.

    Raises:
        Problem: the registry has no digest for what was pushed (code "rehearse_push", exit 3).
    """
    local = f"127.0.0.1:{settings.registry_port}/{REPOSITORY}:current"
    docker("tag", tag, local)
    try:
        docker("push", "--quiet", local, timeout_s=600)
    finally:
        docker("image", "rm", local, check=False)
    answer = httpx.head(
        f"http://127.0.0.1:{settings.registry_port}/v2/{REPOSITORY}/manifests/current",
        headers={"Accept": MANIFEST},
        timeout=30,
    )
    digest = answer.headers.get("docker-content-digest", "")
    if answer.status_code != 200 or not digest.startswith("sha256:"):
        raise Problem(
            "rehearse_push",
            exit_code=Exit.UNREACHABLE,
            what=f"the local registry answered {answer.status_code} for {REPOSITORY} and gave no digest",
            why="nodes pull by digest only",
            fix=f"see `docker logs {PREFIX}registry`",
        )
    return f"{settings.registry_address}:5000/{REPOSITORY}@{digest}"


def run_logged(
    argv: list[str], cwd: Path, log: Path, what: str, *, timeout_s: float, environ: dict[str, str] | None = None
) -> str:
    """Runs a build step, its stderr appended to log, and returns its stdout.

    Raises:
        Problem: code "rehearse_build": it failed; exit 2, 3 or 4 when the script said so, else 1.
    """
    with log.open("ab") as out:
        offset = out.tell()
        try:
            with program(
                argv, cwd=cwd, stdout=subprocess.PIPE, stderr=out, env={**os.environ, **(environ or {})}
            ) as process:
                said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Problem(
                "rehearse_build",
                exit_code=Exit.CHECK_FAILED,
                what=f"{what}: not done after {timeout_s:.0f} s",
                why="a build that hangs is usually a mirror that does not answer",
                fix=f"read {log}",
            ) from error
    if process.returncode:
        lines = log.read_bytes()[offset:].decode(errors="replace").strip().splitlines() or [
            said.strip() or "no message"
        ]
        first = next((line for line in lines if line.startswith("error:")), lines[-1])
        code = Exit(process.returncode) if process.returncode in (2, 3, 4) else Exit.CHECK_FAILED
        raise Problem(
            "rehearse_build",
            exit_code=code,
            what=f"{what}: {first.removeprefix('error:').strip()}",
            why="the rehearsal needs it before it can go on",
            fix=f"the whole log is {log}",
        )
    return said
