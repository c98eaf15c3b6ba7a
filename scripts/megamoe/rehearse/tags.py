"""How a rehearsal's images are named, and whether they are there; the standard library alone (see `checks.main`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from megamoe.rehearse.engine import inspect
from megamoe.rehearse.settings import PREFIX

REFERENCE_TAG = f"{PREFIX}reference:current"


def host_tag(root: Path) -> str:
    """Tag of the host image: the hash of all that goes into it, so a changed file makes a new one."""
    digest = hashlib.sha256((root / "scripts/lib/base_image.sh").read_bytes())
    for path in sorted((root / "docker/node").rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{PREFIX}host:{digest.hexdigest()[:12]}"


def have_all(root: Path) -> bool:
    """True when both images are there, so that nothing needs the network."""
    return inspect("image", host_tag(root)) is not None and inspect("image", REFERENCE_TAG) is not None
