"""Links as the container resolves them: relative ones within a mount, absolute ones by the container's own paths."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from megamoe_atom.problem import Problem

from megamoe.envelope import Finding
from megamoe.verify_model.walk import finding, walk

CHAIN_MAX = 40  # links in a row, as the kernel allows


@dataclass(frozen=True, slots=True)
class Mount:
    """host is resolved (the engine resolves it too); container is as given."""

    host: Path
    container: Path

    @classmethod
    def parse(cls, text: str) -> Mount:
        """HOST:CONTAINER[:OPTIONS] with absolute paths.

        Raises:
            Problem: another form (code "mount_form", exit 2).
        """
        host, _, rest = text.partition(":")
        container = rest.partition(":")[0]
        if not host.startswith("/") or not container.startswith("/") or "\0" in text:
            raise Problem(
                "mount_form",
                what=f"--mount {text[:200]!r} is not HOST:CONTAINER with absolute paths",
                why="links are resolved as the container will see them",
                fix="write --mount /models:/models",
            )
        return cls(Path(os.path.realpath(host)), Path(os.path.normpath(container)))


def outside(root: Path, mounts: list[Mount]) -> list[Finding]:
    """The model directory itself must be in a mount."""
    real = Path(os.path.realpath(root))
    if any(real.is_relative_to(m.host) for m in mounts):
        return []
    shown = ", ".join(f"{m.host}:{m.container}" for m in mounts)
    return [
        finding(
            "MODEL_NOT_MOUNTED",
            f"{real} is in none of the mounts ({shown})",
            "in the container the directory does not exist",
            f"mount it: --mount {real}:{real}",
            file=root,
        )
    ]


def links(root: Path, mounts: list[Mount]) -> list[Finding]:
    """Dangling links, and links whose target the container will not see. No mount given: the directory alone is one."""
    real_root = Path(os.path.realpath(root))
    seen = mounts or [Mount(real_root, real_root)]
    out = []
    for path in walk(real_root):
        if not path.is_symlink():
            continue
        shown = root / path.relative_to(real_root)
        try:
            path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            out.append(
                finding(
                    "LINK_DANGLING",
                    f"{path.name} links to {path.readlink()}, {_broken(error)}",
                    "the engine cannot open it",
                    "fetch the file (`git annex get .`)" if ".git/annex/" in str(path.readlink()) else
                    "fetch the blob again, or copy the snapshot with links followed (`cp -L`)",
                    file=shown,
                )
            )
            continue
        reason = _unseen(path, seen)
        if reason:
            out.append(
                finding(
                    "LINK_OUTSIDE_MOUNT",
                    f"{path.name} resolves to {path.resolve()}: {reason}",
                    "in the container that path does not exist",
                    "mount the folder that holds both (--mount HOST:CONTAINER), or copy with `cp -L`",
                    file=shown,
                )
            )
    return out


def _broken(error: OSError | RuntimeError) -> str:
    """Why a link leads nowhere. Python says RuntimeError (3.13: OSError) for a loop."""
    if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
        return "and so back to itself"
    if error.errno == errno.EACCES:
        return "which this user may not look at"
    return "which does not exist"


def _unseen(path: Path, mounts: list[Mount]) -> str:
    """Why the container cannot follow the link at host path `path`; "" when it can."""
    place = _in_container(path, mounts)
    if place is None:
        return f"{path} is in no mount"
    for _ in range(CHAIN_MAX):
        here = _on_host(place, mounts)
        if here is None:
            return f"the container's path is {place}, which no mount holds"
        if not here.is_symlink():
            return "" if here.exists() else f"nothing is at {here}, where the container's {place} comes from"
        target = here.readlink()
        place = Path(os.path.normpath(target if target.is_absolute() else place.parent / target))
    return "too many links in a row"


def _in_container(path: Path, mounts: list[Mount]) -> Path | None:
    found = [m for m in mounts if path.is_relative_to(m.host)]
    best = max(found, key=lambda m: len(m.host.parts), default=None)
    return best.container / path.relative_to(best.host) if best else None


def _on_host(place: Path, mounts: list[Mount]) -> Path | None:
    found = [m for m in mounts if place.is_relative_to(m.container)]
    best = max(found, key=lambda m: len(m.container.parts), default=None)
    return best.host / place.relative_to(best.container) if best else None
