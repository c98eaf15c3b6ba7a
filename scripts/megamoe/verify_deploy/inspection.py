"""Where an inspection comes from: a file that holds one, or the engine on this machine."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.text_input import MAX_JSON_BYTES, display_name, parse_json, read_text
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
        found = [entry for entry in found if _name(entry) == name]
        if len(found) != 1:
            names = [_name(entry) or "(no name)" for entry in entries[:16]]
            raise Problem(
                "inspect_ambiguous",
                what=f"the inspection holds {len(entries)} containers ({', '.join(names)[:300]}), "
                f"{len(found) or 'none'} of them named {name} (container.name of DEPLOY)",
                why="the comparison is with one container",
                fix=f"give `docker inspect {name}` alone, or set container.name to the one that is meant",
            )
    if "RootFS" in found[0] and "HostConfig" not in found[0]:
        raise Problem(
            "inspect_of_an_image",
            what="this is the inspection of an image, not of a container",
            why="an image does not say how it runs",
            fix=f"give the output of `docker container inspect {name}`",
        )
    return found[0]


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("Name") or "").lstrip("/")[:80]


def read_inspection(path: str) -> Any:
    """The JSON of an inspection file. Two outputs that were joined (`>>`, xargs) are read as one list.

    Raises:
        Problem: unreadable, or not JSON (megamoe.text_input).
    """
    text, name = read_text(path, max_bytes=MAX_JSON_BYTES), display_name(path)
    try:
        return parse_json(text, name)
    except Problem as problem:
        parts = re.split(r"(?<=\])\s*(?=\[\s*\{)", text.strip())
        if len(parts) < 2 or problem.reasons[0].code != "json_syntax":
            raise
        try:
            lists = [parse_json(part, name) for part in parts]
        except Problem:
            raise problem from None
        return [entry for one in lists if isinstance(one, list) for entry in one]


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
