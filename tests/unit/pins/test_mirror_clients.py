"""Mirroring what only other programs can fetch: the base through skopeo, the Debian packages inside the base."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from megamoe.pins import bake, sources, verify
from megamoe.pins.model import AptPin, Pins

Served = tuple[Pins, str, Path]
APT = AptPin(snapshot="20260722T000000Z", packages=["tini"])
ONE, TWO = "1" * 64, "2" * 64
IMAGE = json.dumps({"config": {"digest": f"sha256:{ONE}"}, "layers": [{"digest": f"sha256:{TWO}"}]})
PLATFORM = f"sha256:{hashlib.sha256(IMAGE.encode()).hexdigest()}"
ARM = {"digest": "sha256:" + "3" * 64, "platform": {"os": "linux", "architecture": "arm64"}}
LIST = json.dumps({"manifests": [ARM, {"digest": PLATFORM, "platform": {"os": "linux", "architecture": "amd64"}}]})
DIGEST = f"sha256:{hashlib.sha256(LIST.encode()).hexdigest()}"
# What skopeo does, in small: `inspect --raw docker://REF` and `copy ... docker://REF oci:DIR:base`.
SKOPEO = f"""
for word in "$@"; do case $word in oci:*) out=${{word#oci:}}; out=${{out%:base}} ;; docker://*) ref=$word ;; esac; done
case $1 in
    inspect)
        case $ref in *@{DIGEST}) printf '%s' '{LIST}' ;; *@{PLATFORM}) printf '%s' '{IMAGE}' ;; *) exit 2 ;; esac ;;
    copy) mkdir -p "$out/blobs/sha256" && echo >"$out/blobs/sha256/{ONE}" && echo >"$out/blobs/sha256/{TWO}" &&
        printf '{{}}' >"$out/index.json" ;;
esac
"""
# What fetch_apt.sh leaves in the folder that is mounted at /out.
DOCKER = """
case "$*" in pull*) exit 0 ;; esac
for word in "$@"; do case $word in *:/out) out=${word%:/out} ;; esac; done
printf deb >"$out/tini_1.deb" && cd "$out" && sha256sum tini_1.deb >SHA256SUMS
"""


def client(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def mirror(served: Served) -> tuple[Path, list[tuple[str, str]]]:
    """The mirror's folder, and (code, severity) of what could not be had."""
    pins, base, tmp = served
    (tmp / "docker/rocm").mkdir(parents=True, exist_ok=True)
    (tmp / "docker/rocm/fetch_apt.sh").touch()
    found = sources.mirror(pinned(pins), tmp, tmp / "m", git_base=base, locks=[], say=lambda _line: None)
    return tmp / "m", [(f.code, f.severity) for f in found]


def pinned(pins: Pins, **change: object) -> Pins:
    """The served pins, with packages and a base by the digest that the client serves."""
    return pins.model_copy(update={"apt": APT, "base": pins.base.model_copy(update={"digest": DIGEST})} | change)


def other(served: Served, folder: Path, **change: object) -> list[str]:
    found = verify.verify(pinned(served[0], **change), served[2], folder)
    assert all(f.severity == "error" for f in found)
    return [f.what.split(":")[0] for f in found]


def test_with_both_clients_the_mirror_is_whole_and_verifies(served: Served, clients: Path) -> None:
    client(clients, "skopeo", SKOPEO)
    client(clients, "docker", DOCKER)
    folder, said = mirror(served)
    assert said == []
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert {f["pin"] for f in files.values()} == {"git.name", "wheel.thing.py3", "apt", "base"}
    assert [p.read_text() for p in sorted((folder / "base-manifests").iterdir())] == [LIST, IMAGE]
    assert other(served, folder) == []


def test_a_mirror_of_another_base_or_of_other_packages_is_refused(served: Served, clients: Path) -> None:
    client(clients, "skopeo", SKOPEO)
    client(clients, "docker", DOCKER)
    folder, _ = mirror(served)
    assert other(served, folder, base=served[0].base) == ["base"]
    assert other(served, folder, apt=APT.model_copy(update={"snapshot": "20260723T000000Z"})) == ["apt"]
    assert other(served, folder, apt=APT.model_copy(update={"packages": ["tini", "libpci3"]})) == ["apt"]
    (folder / f"base/blobs/sha256/{TWO}").unlink()
    assert other(served, folder) == ["base", "base"]  # the file is missing, and the layout is not whole


def test_a_build_takes_the_base_of_the_mirror_when_it_is_there(served: Served, clients: Path) -> None:
    from megamoe.pins.model import load_pins
    from megamoe.resources import resource

    own, root = load_pins(resource("docker/pins.toml")), resource("docker/pins.toml").parents[1]
    client(clients, "skopeo", SKOPEO)
    folder, _ = mirror(served)
    body = bake.arguments(own, root, mirror=folder, source="s", allow_dirty=True)["target"]["rocm"]
    assert body["args"]["ROCM_BASE"] in body["contexts"]
    assert body["contexts"][body["args"]["ROCM_BASE"]] == f"oci-layout://{folder}/base:base"
    assert body["args"]["BASE_DIGEST"] == own.base.digest  # what the label says stays the registry's
    without = bake.arguments(own, root, mirror=served[2], source="s", allow_dirty=True)["target"]["rocm"]
    assert without["args"]["ROCM_BASE"] == own.base.reference and set(without["contexts"]) == {"mirror"}


def test_without_clients_both_are_said_and_nothing_is_made(served: Served, clients: Path) -> None:
    folder, said = mirror(served)
    assert said == [("apt_not_mirrored", "warn"), ("base_not_mirrored", "warn")]
    assert not (folder / "base").exists() and not (folder / "apt").exists()


@pytest.mark.parametrize(
    ("skopeo", "docker", "said"),
    [
        pytest.param(SKOPEO + "exit 1", DOCKER, [("source_unreachable", "error")], id="the registry breaks off"),
        pytest.param("printf '{}'", DOCKER, [("source_hash", "error")], id="a manifest with another hash"),
        pytest.param(
            SKOPEO.replace(f' && echo >"$out/blobs/sha256/{TWO}"', ""),
            DOCKER,
            [("source_hash", "error")],
            id="a layer that did not come",
        ),
        pytest.param(SKOPEO, DOCKER + "exit 100", [("source_unreachable", "error")], id="the archive breaks off"),
        pytest.param(SKOPEO, DOCKER + "echo >>tini_1.deb", [("source_unreachable", "error")], id="a damaged package"),
        pytest.param(SKOPEO, "exit 1", [("apt_not_mirrored", "warn")], id="docker cannot pull the base"),
    ],
)
def test_what_breaks_off_leaves_nothing_half_written(
    served: Served, clients: Path, skopeo: str, docker: str, said: list[tuple[str, str]]
) -> None:
    client(clients, "skopeo", skopeo)
    client(clients, "docker", docker)
    folder, found = mirror(served)
    assert found == said
    assert (folder / "base").exists() is (skopeo == SKOPEO)
    assert not (folder / "apt").exists() or docker == DOCKER
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_second_run_keeps_the_packages_and_replaces_damaged_ones(served: Served, clients: Path) -> None:
    client(clients, "skopeo", SKOPEO)
    client(clients, "docker", DOCKER)
    folder, _ = mirror(served)
    client(clients, "docker", "exit 1")  # would not be able to fetch them again
    assert mirror(served)[1] == []
    (folder / "apt/tini_1.deb").write_bytes(b"other")
    assert mirror(served)[1] == [("apt_not_mirrored", "warn")]
    client(clients, "docker", DOCKER)
    assert mirror(served)[1] == []
    assert (folder / "apt/tini_1.deb").read_bytes() == b"deb"
