"""The stack lock: what an image is made of, as one JSON file that can be checked against the running files.

Format (schema 1): pins (docker/pins.toml as data), edits_sha256 (over the edit files in name order), distributions
(installed Python packages), apt (package=version), files (path relative to `root` -> sha256 of the watched trees).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding

SCHEMA_VERSION = 1
LOCK_PATH = Path(os.environ.get("MEGAMOE_STACK_LOCK", "/opt/megamoe/stack.lock.json"))


def edits_sha256(edits: Path) -> str:
    """One hash over all edit files: names and bytes, in name order; `megamoe patch` prints the same."""
    digest = hashlib.sha256()
    for path in sorted(p for p in edits.rglob("*") if p.is_file() and p.suffix in {".yml", ".toml"}):
        digest.update(path.relative_to(edits).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def distributions() -> dict[str, str]:
    """Installed Python distributions by normalised name."""
    found: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name:
            found.setdefault(name, dist.version)
    return dict(sorted(found.items()))


def apt_packages() -> list[str]:
    """name=version of every installed Debian package; empty where dpkg is not."""
    if shutil.which("dpkg-query") is None:
        return []
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}=${Version}\n"], capture_output=True, text=True, check=True, timeout=60
    )
    return sorted(done.stdout.split())


def _watched(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
                yield path


def record(pins: dict[str, Any], edits: Path, watch: list[Path]) -> dict[str, Any]:
    """The lock of this file system. `watch` names the files and folders whose bytes are part of the identity."""
    for root in watch:
        if not root.exists():
            raise Problem(
                "watch_missing",
                what=f"{root} is to be recorded and does not exist",
                why="a lock that silently leaves it out would verify an image without it",
                fix="correct the list of watched paths in the Dockerfile",
            )
    return {
        "schema_version": SCHEMA_VERSION,
        "pins": pins,
        "edits_sha256": edits_sha256(edits),
        "distributions": distributions(),
        "apt": apt_packages(),
        "files": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in _watched(watch)},
    }


def write(lock: dict[str, Any], target: Path) -> None:
    """Writes the lock atomically, keys sorted, so that the same content gives the same bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(json.dumps(lock, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(target)


def read(path: Path) -> dict[str, Any]:
    """Reads a lock.

    Raises:
        Problem: it is missing, damaged or of another schema (exit 5: nothing is proven about this image).
    """
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if lock["schema_version"] != SCHEMA_VERSION:
            raise KeyError(f"schema_version {lock['schema_version']}")
        for key in ("distributions", "files", "apt", "pins", "edits_sha256"):
            lock[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(
            "stack_lock_unreadable",
            exit_code=Exit.NO_EVIDENCE,
            what=f"{path} is no readable stack lock: {error}",
            why="without it nothing says what this image should be",
            fix="rebuild the image; its build writes the file",
        ) from error
    return lock


def drift(lock: dict[str, Any]) -> list[Finding]:
    """Differences between the lock and what is installed now: every one is an error."""
    findings = []
    now = distributions()
    for name, version in lock["distributions"].items():
        if now.get(name) != version:
            findings.append(
                Finding(
                    "package_drift",
                    "error",
                    f"{name} is {now.get(name, 'not installed')}, built with {version}",
                    "the image was changed after it was validated",
                    "start the container from the image again, by digest",
                )
            )
    for name in sorted(set(now) - set(lock["distributions"])):
        findings.append(
            Finding(
                "package_added",
                "error",
                f"{name} {now[name]} was installed after the build",
                "it can shadow a pinned package",
                "start the container from the image again, by digest",
            )
        )
    for name, wanted in lock["files"].items():
        path = Path(name)
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        except PermissionError as error:
            findings.append(
                Finding(
                    "file_unreadable",
                    "error",
                    f"{name} cannot be read by uid {os.geteuid()}: {error.strerror}",
                    "it is part of the image's identity, and the engine runs as the same user",
                    "rebuild the image with that file readable by everyone",
                    file=name,
                )
            )
            continue
        if found != wanted:
            findings.append(
                Finding(
                    "file_drift",
                    "error",
                    f"{name} {'differs from' if found else 'is missing; it was in'} the build",
                    "the image was changed after it was validated",
                    "start the container from the image again, by digest",
                    file=name,
                )
            )
    return findings
