"""Where an inspection comes from: a file that holds one, or the engine on this machine."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.text_input import parse_json
from megamoe.verify_deploy.environment import environment
from megamoe.verify_deploy.rows import listed, mapping


def one_container(raw: Any, name: str) -> dict[str, Any]:
    """The one container of an inspection; engines print a list.

    Raises:
        Problem: no container, several of which none has the planned name, or not the inspection of a container.
    """
    entries = raw if isinstance(raw, list) else [raw]
    found = [entry for entry in entries if isinstance(entry, dict) and entry]
    if not found or len(found) != len(entries):
        raise Problem(
            "inspect_shape",
            what="the inspection is not a list of containers" if entries else "the inspection holds no container",
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
    if "RootFS" in found[0] and "HostConfig" not in found[0]:
        raise Problem(
            "inspect_of_an_image",
            what="this is the inspection of an image, not of a container",
            why="an image does not say how it runs",
            fix=f"give the output of `docker container inspect {name}`",
        )
    return found[0]


def ask_engine(engine: str, name: str) -> tuple[dict[str, Any], dict[str, str] | None]:
    """The container as the engine inspects it, with the digests of its image; and the environment of that image.

    Raises:
        Problem: there is no such container (exit 1), or the engine does not answer (exit 3).
    """
    found = _asked(engine, "inspect", "--type", "container", name)
    if found is None:
        raise Problem(
            "container_missing",
            what=f"{engine} has no container {name}",
            why="what is planned does not run here",
            fix="start it with the serve role",
            exit_code=Exit.CHECK_FAILED,
        )
    entry = one_container(found, name)
    if not isinstance(entry.get("Image"), str):
        return entry, None
    images = _asked(engine, "image", "inspect", entry["Image"])  # None: removed while its container runs on
    image = next((i for i in listed(images) if isinstance(i, dict)), None)
    if image is None:
        return entry, None
    entry.setdefault("RepoDigests", image.get("RepoDigests"))
    return entry, environment(listed(mapping(image, "Config").get("Env")))


def _asked(engine: str, *words: str) -> Any:
    """What the engine prints as JSON; None when it says that there is no such object."""
    try:
        done = subprocess.run([engine, *words], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreachable(engine, str(error)) from None
    if not done.returncode:
        return parse_json(done.stdout.decode(errors="replace"), f"{engine} {' '.join(words)}")
    said = done.stderr.decode(errors="replace").strip()
    if re.search(r"no such (?:container|object|image)|image not known|no container with", said, re.I):
        return None
    raise _unreachable(engine, said[-200:] or f"exit code {done.returncode}")


def _unreachable(engine: str, said: str) -> Problem:
    return Problem(
        "engine_unreachable",
        what=f"{engine} could not be asked: {said}",
        why="the running container is unknown",
        fix="run on the host as a user who may use the engine, or give --inspect",
        exit_code=Exit.UNREACHABLE,
    )
