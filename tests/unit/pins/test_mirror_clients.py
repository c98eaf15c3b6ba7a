"""Mirroring what only other programs can fetch: the base through skopeo, the Debian packages inside the base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from megamoe.pins import sources
from megamoe.pins.model import AptPin, Pins

Served = tuple[Pins, str, Path]
APT = AptPin(snapshot="20260722T000000Z", packages=["tini"])
# What skopeo does, in small: `copy --preserve-digests docker://REF oci:DIR:base`.
SKOPEO = """
for word in "$@"; do case $word in oci:*) out=${word#oci:}; out=${out%:base} ;; docker://*) ref=$word ;; esac; done
mkdir -p "$out/blobs/sha256" && printf '%s' "$ref" >"$out/blobs/sha256/aa" && printf '{}' >"$out/index.json"
"""
# What fetch_apt.sh leaves in the folder that is mounted at /out.
DOCKER = """
case "$*" in pull*) exit 0 ;; esac
for word in "$@"; do case $word in *:/out) out=${word%:/out} ;; esac; done
printf deb >"$out/tini_1.deb" && cd "$out" && sha256sum tini_1.deb >SHA256SUMS
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, so that the programs of this machine are not found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "sh", "mkdir", "sha256sum"):
        (folder / name).symlink_to(Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def client(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def mirror(served: Served) -> tuple[Path, list[tuple[str, str]]]:
    """The mirror's folder, and (code, severity) of what could not be had."""
    pins, base, tmp = served
    (tmp / "docker/rocm").mkdir(parents=True, exist_ok=True)
    (tmp / "docker/rocm/fetch_apt.sh").touch()
    found = sources.mirror(
        pins.model_copy(update={"apt": APT}), tmp, tmp / "m", git_base=base, locks=[], say=lambda _line: None
    )
    return tmp / "m", [(f.code, f.severity) for f in found]


def test_with_both_clients_the_mirror_is_whole_and_verifies(served: Served, clients: Path) -> None:
    client(clients, "skopeo", SKOPEO)
    client(clients, "docker", DOCKER)
    folder, said = mirror(served)
    assert said == []
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert {f["pin"] for f in files.values()} == {"git.name", "wheel.thing.py3", "apt", "base"}
    assert (folder / "base/blobs/sha256/aa").read_text() == f"docker://{served[0].base.reference}"
    assert sources.verify(served[0].model_copy(update={"apt": APT}), folder) == []


def test_without_clients_both_are_said_and_nothing_is_made(served: Served, clients: Path) -> None:
    folder, said = mirror(served)
    assert said == [("apt_not_mirrored", "warn"), ("base_not_mirrored", "warn")]
    assert not (folder / "base").exists() and not (folder / "apt").exists()


@pytest.mark.parametrize(
    ("skopeo", "docker", "said"),
    [
        pytest.param(SKOPEO + "exit 1", DOCKER, [("source_unreachable", "error")], id="the registry breaks off"),
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
