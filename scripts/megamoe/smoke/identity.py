"""Labels and versions: is the server that answers the image that was planned, and do its ranks agree on what they run?

Sources, each used where it is at hand: the container's inspection (labels, digest), the deploy file (digest), the
adapter's evidence (versions, hash of the edits), and the stack lock of the image when smoke runs inside it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem
from megamoe_atom.status import RankStatus

from megamoe.resources import resource
from megamoe.text_input import load_json

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LABELS = "io.megamoe."


def read_inspection(path: str) -> dict[str, Any]:
    """One container's inspection. Raises Problem (exit 2) for anything else."""
    body = load_json(path)
    entries = body if isinstance(body, list) else [body]
    if len(entries) != 1 or not isinstance(entries[0], dict) or not isinstance(entries[0].get("Config"), dict):
        raise Problem(
            "inspect_shape",
            what=f"{path} is not the inspection of one container",
            why="labels and digest are read from it",
            fix="save `docker inspect CONTAINER` and give that file",
        )
    return dict(entries[0])


def digests_of(inspection: dict[str, Any]) -> set[str]:
    """Every digest under which the running image is known to the engine."""
    named = [inspection.get(key) for key in ("Image", "ImageDigest", "ImageName")]
    named += [inspection["Config"].get("Image"), *(inspection.get("RepoDigests") or [])]
    return {digest for text in named if isinstance(text, str) for digest in _DIGEST.findall(text)}


def comparable(image: str, inspection: dict[str, Any] | None) -> str:
    """The planned image as given. Raises Problem (exit 2) where it could not be compared with what runs."""
    if inspection is None or not _DIGEST.search(image):
        raise Problem(
            "image_not_comparable",
            what=f"--image {image}" + (" names no digest" if inspection is not None else " without --inspect"),
            why="the planned digest is compared with the container's; a check that compares nothing would be no check",
            fix="give NAME@sha256:DIGEST, and the container's inspection as --inspect",
        )
    return image


def labels_of(inspection: dict[str, Any]) -> dict[str, str]:
    labels = inspection["Config"].get("Labels") or {}
    return {
        str(key): str(value)
        for key, value in labels.items()
        if str(key).startswith(LABELS) or str(key) == "org.opencontainers.image.revision"
    }


def pinned_commits() -> dict[str, str]:
    """Commits by name from docker/pins.toml. Whether that file is whole is the business of `megamoe pins check`."""
    git = tomllib.loads(resource("docker/pins.toml").read_text(encoding="utf-8"))["git"]
    return {name: entry["commit"] for name, entry in git.items()}


def _short(version: str) -> str:
    return version[:12] if re.fullmatch(r"[0-9a-f]{40}", version) else version


def judge_identity(
    evidence: list[RankStatus], inspection: dict[str, Any] | None, planned_image: str | None, lock: Path
) -> tuple[str, str, dict[str, Any]]:
    """Status, what was seen, and the facts for the report. Could not be judged is not_run, never a pass."""
    pins = pinned_commits()
    against: list[str] = []
    unlike: list[str] = []
    seen: list[str] = []
    facts: dict[str, Any] = {}
    if inspection is not None:
        labels = facts["labels"] = labels_of(inspection)
        facts["image_digests"] = sorted(digests_of(inspection))
        for name in ("atom", "flydsl"):
            label = labels.get(f"{LABELS}{name}.commit")
            if label is None:
                against.append(f"the container has no label {LABELS}{name}.commit: it is no image of this recipe")
            elif label != pins[name]:
                unlike.append(f"label {LABELS}{name}.commit is {label[:12]}, this CLI pins {pins[name][:12]}")
        seen.append(f"{len(labels)} labels read")
    if planned_image is not None and inspection is not None:
        wanted = _DIGEST.findall(planned_image)
        if wanted and wanted[-1] not in facts["image_digests"]:
            against.append(f"the plan's image is {wanted[-1]}, the container runs {facts['image_digests']}")
        elif wanted:
            seen.append(f"image {wanted[-1][:19]} as planned")
    if evidence:
        versions = {tuple(sorted(s.versions.items())) for s in evidence}
        hashes = {s.edits_hash for s in evidence}
        facts["versions"] = dict(sorted(evidence[0].versions.items()))
        facts["edits_hash"] = evidence[0].edits_hash
        if len(versions) > 1 or len(hashes) > 1:
            against.append(
                f"the ranks do not run the same versions: {sorted(map(dict, versions), key=str)}, {sorted(hashes)}"
            )
        built = facts["versions"].get("flydsl_commit")
        if built is not None and built != pins["flydsl"]:
            unlike.append(f"the kernels are of FlyDSL {built[:12]}, this CLI pins {pins['flydsl'][:12]}")
        told = ", ".join(f"{k} {_short(v)}" for k, v in facts["versions"].items())
        seen.append(f"{len(evidence)} ranks run {told}" if told else f"{len(evidence)} ranks tell no versions")
    if lock.exists():
        from megamoe.version import identity

        stack = identity.read(lock)
        facts["stack"] = {name: pin["commit"] for name, pin in stack["pins"].get("git", {}).items()}
        unlike += [
            f"the image was built with {name} {commit[:12]}, this CLI pins {pins[name][:12]}"
            for name, commit in facts["stack"].items()
            if name in pins and commit != pins[name]
        ]
        seen.append("the image's stack lock is of " + ", ".join(f"{k} {_short(v)}" for k, v in facts["stack"].items()))
    if against:
        return "fail", "; ".join(against), facts
    if unlike:
        return "warn", "; ".join(unlike), facts
    if not seen:
        return "not_run", "neither --inspect nor evidence was given: the served name alone says who answers", facts
    return "pass", "; ".join(seen), facts
