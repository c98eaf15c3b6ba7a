"""The build arguments of docker-bake.hcl, made from docker/pins.toml and the checkout. Nothing is written twice."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.pins.base_image import LAYOUT
from megamoe.pins.model import Pins
from megamoe.version.identity import edits_sha256

# Paths that go into an image; a change elsewhere does not make a build another one.
CONTEXT = ("pyproject.toml", "README.md", "requirements", "scripts/megamoe", "atom_patch", "docker", "tests/golden")


def kernels(profiles: Path) -> int:
    """Ahead-of-time kernels of all profiles together; the build refuses another count."""
    found = (tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(profiles.glob("*.toml")))
    return sum(int(profile["aot"]["kernels"]) for profile in found if "aot" in profile)


def _git(root: Path, *argv: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *argv], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.rstrip() if done.returncode == 0 else ""


def revision(root: Path, *, allow_dirty: bool) -> str:
    """The commit that the context is.

    Raises:
        Problem: context_dirty, a file of the context is changed or not committed (exit 4).
    """
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", *CONTEXT).splitlines()
    if changed and not allow_dirty:
        names = ", ".join(line[3:] for line in changed[:5]) + (f" and {len(changed) - 5} more" if changed[5:] else "")
        raise Problem(
            "context_dirty",
            exit_code=Exit.PRECONDITION,
            what=f"{len(changed)} files of the build context are not as committed: {names}",
            why=f"the image would call itself {commit[:12]} and hold something else",
            fix="commit them, or say --allow-dirty for an image that is not rolled out",
        )
    return (commit or "unknown") + ("-dirty" if changed else "")


def arguments(pins: Pins, root: Path, *, mirror: Path | None, source: str, allow_dirty: bool) -> dict[str, Any]:
    """A bake file (JSON) for both targets.

    source: the address that the label org.opencontainers.image.source gets; a checkout does not know its own.
    """
    made = revision(root, allow_dirty=allow_dirty)
    created = datetime.fromtimestamp(pins.source_date_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    common = {
        "SOURCE_DATE_EPOCH": str(pins.source_date_epoch),
        "REVISION": made,
        "ATOM_COMMIT": pins.git["atom"].commit,
        "FLYDSL_COMMIT": pins.git["flydsl"].commit,
        "EDITS_SHA256": edits_sha256(root / "atom_patch/edits"),
    }
    rocm: dict[str, Any] = {
        "args": common
        | {
            "ROCM_BASE": pins.base.reference,
            "BASE_NAME": pins.base.name,
            "BASE_DIGEST": pins.base.digest,
            "AITER_COMMIT": pins.git["aiter"].commit,
            "MORI_VERSION": pins.wheel["mori"].version,
            "AOT_KERNELS": str(kernels(root / "docker/profiles")),
            "CREATED": created,
            "SOURCE": source,
        }
    }
    if mirror is not None:
        rocm["contexts"] = {"mirror": str(mirror.resolve())}
        if (mirror / LAYOUT / "index.json").is_file():
            # The mirror's base in place of the registry's; that it is the pinned one, `pins verify` has proven.
            rocm["args"]["ROCM_BASE"] = "base-of-the-mirror"
            rocm["contexts"]["base-of-the-mirror"] = f"oci-layout://{mirror.resolve() / LAYOUT}:base"
    lock = hashlib.sha256((root / "requirements/engine.lock").read_bytes()).hexdigest()
    reference = {
        "args": common | {"MODEL_GGUF_SHA256": pins.model["smollm2"].gguf_sha256, "ENGINE_LOCK_SHA256": lock},
    }
    return {"target": {"rocm": rocm, "reference": reference}}
