"""The base image in a mirror: an OCI layout (base/), beside the registry's own manifests (base-manifests/N.json).

A layout may hold the image under another manifest than the registry's, since Docker's older form is converted. So the
registry's bytes are kept, too: the first has the pinned digest, the last names the configuration and the layers, and
each of those must be a blob of the layout. Content has the same digest in either form.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding
from megamoe.pins.model import Pins
from megamoe.pins.sources import last_line, sha256_of

LAYOUT, MANIFESTS = "base", "base-manifests"
_PLATFORM = {"os": "linux", "architecture": "amd64"}


def _unreachable(what: str) -> Problem:
    return Problem(
        "source_unreachable",
        exit_code=Exit.UNREACHABLE,
        what=f"base: {what}",
        why="the image starts from this digest",
        fix="check the network to the image registry",
    )


def _other(what: str) -> Problem:
    return Problem(
        "source_hash",
        exit_code=Exit.CHECK_FAILED,
        what=f"base: {what}",
        why="the image would start from another base than the pins say",
        fix="do not change the pin: find out what stands between here and the registry",
    )


def _run(argv: list[str]) -> bytes:
    done = subprocess.run(argv, capture_output=True, timeout=4 * 3600, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise _unreachable(last_line(done.stderr.decode(errors="replace")))
    return done.stdout


def _manifest(client: str, name: str, digest: str) -> bytes:
    raw = _run([client, "inspect", "--raw", f"docker://{name}@{digest}"])
    if (found := f"sha256:{hashlib.sha256(raw).hexdigest()}") != digest:
        raise _other(f"the manifest served for {digest} has {found}")
    return raw


def _chosen(body: dict[str, Any]) -> str | None:
    """Digest of the manifest for these nodes, when `body` is a list of them."""
    for entry in body.get("manifests", []):
        if _PLATFORM.items() <= entry.get("platform", {}).items():
            return str(entry["digest"])
    return None


def fetch(client: str, pins: Pins, directory: Path) -> None:
    """Copies the base with skopeo, all or nothing.

    Raises:
        Problem: source_unreachable (exit 3), source_hash (exit 1).
    """
    name = pins.base.name.split(":")[0]
    documents = [_manifest(client, name, pins.base.digest)]
    if (digest := _chosen(json.loads(documents[0]))) is not None:
        documents.append(_manifest(client, name, digest))
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as temporary:
        work = Path(temporary)
        copy = [client, "copy", "--override-os", _PLATFORM["os"], "--override-arch", _PLATFORM["architecture"]]
        _run([*copy, f"docker://{pins.base.reference}", f"oci:{work / LAYOUT}:base"])
        (work / MANIFESTS).mkdir()
        for number, raw in enumerate(documents):
            (work / MANIFESTS / f"{number}.json").write_bytes(raw)
        if found := differences(pins, work):
            raise _other(found[0])
        for part in (LAYOUT, MANIFESTS):
            if (directory / part).exists():
                shutil.rmtree(directory / part)
            (work / part).rename(directory / part)


def differences(pins: Pins, directory: Path) -> list[str]:
    """What makes the base in `directory` another one than the pinned, or an incomplete one; one line each."""
    try:
        documents = [path.read_bytes() for path in sorted((directory / MANIFESTS).glob("*.json"))]
        bodies = [json.loads(raw) for raw in documents]
        digests = [f"sha256:{hashlib.sha256(raw).hexdigest()}" for raw in documents]
        if not digests or digests[0] != pins.base.digest:
            return [f"the mirror holds {digests[0] if digests else 'no manifest'}, pinned is {pins.base.digest}"]
        if len(documents) > 1 and _chosen(bodies[0]) != digests[1]:
            return [f"{digests[1]} is not the manifest for {_PLATFORM['architecture']} of the pinned list"]
        wanted = [bodies[-1]["config"]["digest"], *(layer["digest"] for layer in bodies[-1]["layers"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"its manifests cannot be read: {type(error).__name__} {error}"]
    blobs = directory / LAYOUT / "blobs/sha256"
    lacking = [digest for digest in wanted if not (blobs / digest.removeprefix("sha256:")).is_file()]
    return [f"the layout lacks {len(lacking)} of {len(wanted)} blobs, such as {lacking[0]}"] if lacking else []


def files(directory: Path) -> dict[str, dict[str, str]]:
    """The base's entries of the mirror's own manifest."""
    found = sorted(p for part in (LAYOUT, MANIFESTS) for p in (directory / part).rglob("*") if p.is_file())
    return {p.relative_to(directory).as_posix(): {"pin": "base", "sha256": sha256_of(p)} for p in found}


def verify(pins: Pins, directory: Path) -> list[Finding]:
    return [
        Finding("mirror_other_pin", "error", f"base: {line}", "it was made for other pins, or broke off",
                "run `megamoe pins mirror` again where skopeo is installed")
        for line in differences(pins, directory)
    ]  # fmt: skip
