"""`megamoe pins verify`: a mirror judged offline, against the pins and the locks of this checkout."""

from __future__ import annotations

import json
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding
from megamoe.pins import base_image
from megamoe.pins.model import Pins
from megamoe.pins.sources import (
    HASH,
    apt_is_of,
    git_sources,
    require_bundle,
    requirements,
    sha256_of,
    wheel_sources,
)


def verify(pins: Pins, root: Path, directory: Path) -> list[Finding]:
    """Judges a mirror offline: every pin is there, every file has its hash, every bundle unpacks to its commit.

    root: the checkout, whose locks the closures must be of.
    """
    try:
        files = json.loads((directory / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise Problem(
            "mirror_unreadable",
            exit_code=Exit.PRECONDITION,
            what=f"{directory.name} has no readable manifest.json: {error}",
            why="without it nothing says what should be there",
            fix="run `megamoe pins mirror DIR`",
        ) from error
    findings: list[Finding] = []
    for name, entry in sorted(files.items()):
        path = directory / name
        if not path.is_file():
            findings.append(
                Finding(
                    "mirror_file_missing",
                    "error",
                    f"{entry['pin']}: {name} is missing",
                    "an offline build would stop there",
                    "run `megamoe pins mirror` again",
                    file=name,
                )
            )
        elif (found := sha256_of(path)) != entry["sha256"]:
            findings.append(
                Finding(
                    "mirror_hash",
                    "error",
                    f"{entry['pin']}: {name} has sha256 {found}, recorded is {entry['sha256']}",
                    "the file was truncated or changed after it was mirrored",
                    "delete it and run `megamoe pins mirror` again",
                    file=name,
                )
            )
    have = {entry["pin"]: entry["sha256"] for entry in files.values()}
    for source in git_sources(pins):
        if source.pin not in have:
            findings.append(_absent(source.pin))
        elif (directory / source.bundle).is_file() and not any(f.file == source.bundle for f in findings):
            try:
                require_bundle(source, directory / source.bundle)
            except Problem as problem:
                findings += [Finding.from_reason(reason) for reason in problem.reasons]
    for wheel in wheel_sources(pins):
        if have.get(wheel.pin) is None:
            findings.append(_absent(wheel.pin))
        elif have[wheel.pin] != wheel.sha256:
            findings.append(_other_pin(wheel.pin, f"{have[wheel.pin]}, pinned is {wheel.sha256}"))
    for name in sorted(pins.closure):
        if f"lock.{name}" not in have:
            findings.append(_absent(f"lock.{name}"))
        else:
            findings += _closure(root / "requirements" / f"{name}.lock", files)
    if pins.apt is not None and "apt" not in have:
        findings.append(
            Finding(
                "apt_not_mirrored",
                "warn",
                "the Debian packages are not in this mirror",
                "an offline build stops where it installs them",
                "mirror them where docker can pull the base",
            )
        )
    elif pins.apt is not None and not apt_is_of(pins, directory / "apt"):
        findings.append(_other_pin("apt", f"packages of another snapshot or list than {pins.apt.snapshot}"))
    if "base" not in have:
        findings.append(
            Finding(
                "base_not_mirrored",
                "warn",
                "the base image is not in this mirror",
                "a build needs it from a registry",
                "mirror it where skopeo is installed",
            )
        )
    else:
        findings += base_image.verify(pins, directory)
    return findings


def _closure(lock: Path, files: dict[str, dict[str, str]]) -> list[Finding]:
    """Each line of the lock has one file with a hash of that line, and there is no other file."""
    pin = f"lock.{lock.stem}"
    if not lock.is_file():
        return [_other_pin(pin, f"files of {lock.name}, which this checkout has not")]
    here = {entry["sha256"] for entry in files.values() if entry["pin"] == pin}
    lines = requirements(lock.read_text(encoding="utf-8"))
    lacking = [line.split(" ")[0] for line in lines if not here & set(HASH.findall(line))]
    if lacking or len(here) != len(lines):
        found = f"{len(here)} files for {len(lines)} requirements"
        return [_other_pin(pin, found + (f", and none for {', '.join(lacking[:3])}" if lacking else ""))]
    return []


def _other_pin(pin: str, found: str) -> Finding:
    return Finding(
        "mirror_other_pin",
        "error",
        f"{pin}: the mirror holds {found}",
        "it was made for other pins",
        "run `megamoe pins mirror` again",
    )


def _absent(pin: str) -> Finding:
    return Finding(
        "mirror_incomplete",
        "error",
        f"{pin} is not in the mirror",
        "an offline build would stop there",
        "run `megamoe pins mirror` again",
    )
