#!/usr/bin/env python3
"""Writes what this image is: the stack lock and a CycloneDX bill of materials; checks what its labels will say.

    identify.py PINS OUT_DIR --edits SHA256 --kernels COUNT

--edits and --kernels are what docker-bake.hcl puts into the labels. A label that says something else than the files is
refused, so that a person may trust `docker inspect`. "unknown" (no label wanted) is not checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
import uuid
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def bill_of_materials(pins: dict[str, Any], base: str, epoch: int) -> dict[str, Any]:
    """CycloneDX 1.5: Debian packages, Python distributions, git sources and the base image."""
    from datetime import UTC, datetime

    components: dict[str, dict[str, Any]] = {}

    def add(kind: str, name: str, version: str, purl: str, **more: Any) -> None:
        components[purl] = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}

    name, digest = pins["base"]["name"].split(":")[0], pins["base"]["digest"]
    add("container", name, digest, f"pkg:oci/{name.split('/')[-1]}@{digest.replace(':', '%3A')}?repository_url={name}")
    for key, pin in pins["git"].items():
        add("library", key, pin["commit"], f"pkg:github/{pin['repository'].lower()}@{pin['commit']}")
        for path, (repository, commit) in pin.get("submodules", {}).items():
            add("library", path, commit, f"pkg:github/{repository.lower()}@{commit}")
    hashes = {
        (w["distribution"], w["version"]): [
            {"alg": "SHA-256", "content": s} for t, s in w["sha256"].items() if t == "cp312"
        ]
        for w in pins["wheel"].values()
    }
    for dist in distributions():
        raw, version = dist.metadata["Name"], dist.version
        if not raw:
            continue
        plain = raw.lower().replace("_", "-")
        fields = dist.metadata.json
        licence = str(fields.get("license_expression") or fields.get("license") or "")
        more: dict[str, Any] = {}
        if licence and len(licence) < 100 and "\n" not in licence:
            more["licenses"] = [{"license": {"name": licence}}]
        if known := hashes.get((plain, version)):
            more["hashes"] = known
        add("library", plain, version, f"pkg:pypi/{plain}@{version.replace('+', '%2B')}", **more)
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    for line in listed.splitlines():
        package, version, arch = line.split()
        add(
            "library",
            package,
            version,
            f"pkg:deb/{base}/{package}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={arch}",
        )
    ordered = [components[key] for key in sorted(components)]
    # The serial number names the content, so that the same build has the same bill.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(ordered, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "bom-ref": "megamoe", "name": "megamoe"},
        },
        "components": ordered,
    }


def distributor() -> str:
    """ubuntu, debian, ...: the namespace of a deb package URL."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("ID="):
            return line.removeprefix("ID=").strip('"')
    return "linux"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the stack lock and the bill of materials.")
    parser.add_argument("pins", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--edits", required=True)
    parser.add_argument("--kernels", required=True)
    options = parser.parse_args()
    pins = tomllib.loads(options.pins.read_text(encoding="utf-8"))
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or pins["source_date_epoch"])
    aot = json.loads((options.out / "kernels/aot.json").read_text())

    site = next(p for p in sys.path if p.endswith("site-packages"))
    watched = [
        f"{options.out}/flydsl/kernels",
        f"{options.out}/kernels",
        f"{options.out}/mori",
        "/usr/local/bin/megamoe-entrypoint",
    ]
    watched += [f"{site}/{name}" for name in ("atom", "flydsl", "mori", "megamoe", "megamoe_atom")]
    argv = ["megamoe", "version", "--record", f"{options.out}/stack.lock.json"]
    subprocess.run(argv + [word for path in watched for word in ("--watch", path)], check=True)
    lock = json.loads((options.out / "stack.lock.json").read_text())

    wrong = [
        f"{what} is labelled {given}, the image has {have}"
        for what, given, have in (
            ("the edits' hash", options.edits, lock["edits_sha256"]),
            ("the number of ahead-of-time kernels", options.kernels, str(aot["kernels"])),
        )
        if given not in ("unknown", have)
    ]
    closed = [name for name in lock["files"] if not Path(name).stat().st_mode & 0o004]
    wrong += [f"{name} is not readable by the user who serves" for name in closed[:5]]
    if wrong:
        print("error: " + "\nerror: ".join(wrong), file=sys.stderr)
        print("  why: a label that is not true is worse than none", file=sys.stderr)
        fix = "build with the arguments of `megamoe pins bake`; once understood, a new count goes to the profiles"
        print(f"  fix: {fix}", file=sys.stderr)
        return 1
    bom = bill_of_materials(pins, distributor(), epoch)
    (options.out / "sbom.cdx.json").write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")
    counts = f"{len(lock['distributions'])} distributions, {len(lock['apt'])} Debian packages"
    counts += f", {len(lock['files'])} watched files, {len(bom['components'])} components"
    print(f"{counts}, {aot['kernels']} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
