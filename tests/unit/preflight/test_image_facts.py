"""What the collector learns of the image: from its configuration, and from one container of it when asked.

The engine is a program of three lines first in PATH; the part that runs in the image is run for real, on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megamoe.deploy.load import parse_deploy
from megamoe.preflight import collect_facts
from megamoe.preflight.judge import judge, unread
from test_judge_facts import TEXT

IMAGE = "registry.example/moe@sha256:" + "1" * 64
DEPLOY = parse_deploy(TEXT).deploy
CONFIG = {"User": "10001:10001", "Env": ["PYTORCH_ROCM_ARCH=gfx90a;gfx950", "GPU_ARCHS=gfx942", "PATH=/usr/bin"],
          "Labels": {"org.opencontainers.image.base.name": "docker.io/rocm/pytorch:rocm7.2.4_ubuntu24.04"}}


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, inspect: Any = None, run: str = "exit 125",
           info: str = "echo '{}'") -> Path:
    """A docker that knows one image. Returns the file that its `run` and `rm` leave their words in."""
    said = folder / "said"
    (folder / "inspect.json").write_text(json.dumps(inspect))
    known = f"cat {folder}/inspect.json" if inspect is not None else "exit 1"
    (folder / "docker").write_text(
        f'#!/bin/sh\ncase "$1" in\n image) {known} ;;\n info) {info} ;;\n run) echo "$*" >>{said}; {run} ;;\n'
        f' rm) echo "$*" >>{said} ;;\n --version) echo Docker version 28.0.1 ;;\n ps) ;;\n *) exit 9 ;;\nesac\n')
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return said


def of_image(inside: bool = False, user: str = "") -> dict[str, Any]:
    facts: dict[str, Any] = {"host": {"dev": {"/dev/kfd": {"gid": 992}}}, "probe": {}}
    collect_facts.of_image(facts, IMAGE, "docker", user, "", inside)
    return facts


def test_the_configuration_of_the_image_gives_its_archs_its_rocm_and_its_user(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = engine(tmp_path, monkeypatch, [{"Config": CONFIG}])
    facts = of_image()
    assert facts["image_present"] is True
    assert facts["image"] == {"archs": ["gfx90a", "gfx950"], "rocm_version": "7.2.4", "user": "10001:10001"}
    assert set(facts["unknown_because"]) == {"image.groups", "torch_device_count"}
    assert "--inside-image" in facts["unknown_because"]["image.groups"]
    assert not said.exists()  # nothing was started


@pytest.mark.parametrize(("env", "base", "archs", "rocm"), [
    pytest.param(["GPU_ARCHS=native"], "rocm7.2_x", None, None, id="neither says it"),
    pytest.param(["GPU_ARCHS=gfx950"], None, ["gfx950"], None, id="what aiter is compiled for"),
    pytest.param(["ROCM_VERSION=7.2.0"], "rocm7.2.4_x", None, "7.2.0", id="the variable before the name of the base"),
])  # fmt: skip
def test_what_the_configuration_does_not_say_for_certain_stays_unknown(
        env: list[str], base: str | None, archs: list[str] | None, rocm: str | None, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"org.opencontainers.image.base.name": base} if base else None
    engine(tmp_path, monkeypatch, [{"Config": {"Env": env, "Labels": labels}}])
    facts = of_image()
    assert (facts["image"].get("archs"), facts["image"].get("rocm_version")) == (archs, rocm)
    assert ("image.archs" in facts["unknown_because"]) is (archs is None)
    assert ("image.rocm_version" in facts["unknown_because"]) is (rocm is None)


@pytest.mark.parametrize(("info", "present", "words"), [
    pytest.param("echo '{}'", False, "not on this host yet", id="the engine answers"),
    pytest.param("exit 1", None, "docker does not answer", id="the engine is down"),
])  # fmt: skip
def test_an_image_that_cannot_be_seen_is_absent_or_unknown(info: str, present: bool | None, words: str, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path, monkeypatch, None, info=info)
    facts = of_image(inside=True)
    assert facts.get("image_present") is present
    assert {words in why for why in facts["unknown_because"].values()} == {True}


def test_one_container_of_the_image_tells_the_rest_and_can_change_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = {"groups": {"render": 109, "video": 44}, "rocm_version": "7.2.4", "archs": ["gfx950"]}
    answer = {"image": inner, "open_kfd_rdwr": "EACCES", "container_groups": [109, 10001], "torch_device_count": 7}
    said = engine(tmp_path, monkeypatch, [{"Config": {"User": "10001"}}],
                  run=f"echo a warning; echo '{json.dumps(answer)}'")  # fmt: skip
    facts = of_image(inside=True)
    assert facts["image"] == {**inner, "user": "10001"}
    assert facts["torch_device_count"] == 7
    assert facts["probe"]["open_kfd_rdwr"] == "EACCES"
    assert facts["unknown_because"] == {}
    words = said.read_text()
    for wanted in ("--rm", "--pull never", "--network none", "--read-only", "--group-add 992", IMAGE):
        assert wanted in words
    assert "--user" not in words and "--privileged" not in words


@pytest.mark.parametrize(("run", "words", "removed"), [
    pytest.param("exit 125", "ended with 125", False, id="it cannot start"),
    pytest.param("echo nonsense", "ended with 0 and no answer", False, id="it says something else"),
    pytest.param("sleep 30", "did not answer in 1 s", True, id="it hangs"),
    pytest.param("echo '{\"image\": {}, \"torch_error\": \"ModuleNotFoundError\"}'", "ModuleNotFoundError", False,
                 id="it has no torch"),
])  # fmt: skip
def test_a_container_that_does_not_tell_leaves_its_reason_and_nothing_running(
        run: str, words: str, removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_facts, "INSIDE_S", 1)
    said = engine(tmp_path, monkeypatch, [{"Config": CONFIG}], run=run)
    facts = of_image(inside=True)
    assert words in facts["unknown_because"]["torch_device_count"]
    assert "torch_device_count" not in facts
    assert ("rm --force megamoe-preflight-" in said.read_text()) is removed


def test_what_runs_in_the_image_is_a_program_that_answers() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", collect_facts.INSIDE], capture_output=True, text=True,
                          timeout=120, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["open_kfd_rdwr"] == collect_facts.open_rdwr("/dev/kfd")
    assert os.getegid() in seen["container_groups"]
    assert "video" in seen["image"]["groups"]  # Debian's base has it, as the images do
    assert ("torch_device_count" in seen) is ("torch_error" not in seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try to open a node as another user")
def test_the_images_own_user_opens_the_node_where_the_plan_names_none(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def refused(_: str, uid: int, gid: int, groups: list[int]) -> str:
        tried.append((uid, gid))
        return "EACCES"

    monkeypatch.setattr(os.path, "exists", lambda _: True)
    monkeypatch.setattr(collect_facts, "open_as", refused)
    engine(tmp_path, monkeypatch, [{"Config": CONFIG}])
    assert of_image()["probe"]["open_kfd_rdwr"] == "EACCES"
    of_image(user="7:8")
    engine(tmp_path, monkeypatch, [{"Config": {"User": ""}}])
    of_image()
    engine(tmp_path, monkeypatch, None)
    assert "open_kfd_rdwr" not in of_image()["probe"]  # who it will be is unknown
    assert tried == [(10001, 10001), (7, 8), (0, 0)]


@pytest.mark.parametrize(("user", "codes"), [("10001", ["DEVICE_PERMISSION"]), ("0:0", ["UNKNOWN_KFD_ACCESS"])])
def test_the_images_own_user_decides_whether_a_group_is_lacking(user: str, codes: list[str]) -> None:
    from megamoe.preflight.permissions import permissions

    facts = {"image": {"user": user}, "probe": {"container_groups": [10001]},
             "host": {"dev": {"/dev/kfd": {"mode": "0660", "uid": 0, "gid": 992}}}}  # fmt: skip
    assert [f.code for f in permissions(facts, DEPLOY)] == codes


def test_facts_of_the_image_that_are_unknown_are_said_with_their_reason() -> None:
    found = unread({"unknown_because": {"image.groups": "no image was named", "torch_device_count": "no torch",
                                        "image.archs": "no image was named"}})  # fmt: skip
    assert [f.what for f in found] == ["image.groups, image.archs: no image was named", "torch_device_count: no torch"]
    assert {(f.code, f.severity) for f in found} == {("UNKNOWN_IMAGE", "info")}
    assert unread({"unknown_because": {}}) == unread({}) == []


@pytest.mark.parametrize(("counted", "code"), [(7, "GPU_COUNT"), (8, None)])
def test_torch_in_the_image_must_see_as_many_gpus_as_the_host_has(counted: int, code: str | None) -> None:
    from test_judge_facts import GOOD

    assert [f.code for f in judge({**GOOD, "torch_device_count": counted}, DEPLOY)] == ([code] if code else [])


def test_looking_into_an_image_needs_the_host(tmp_path: Path) -> None:
    (tmp_path / "deploy.yml").write_text(TEXT)
    (tmp_path / "facts.json").write_text("{}")
    done = subprocess.run([sys.executable, "-m", "megamoe", "preflight", str(tmp_path / "deploy.yml"), "--facts",
                           str(tmp_path / "facts.json"), "--inside-image"], capture_output=True, text=True, timeout=60,
                          check=False)  # fmt: skip
    assert done.returncode == 2
    assert "without --collect" in done.stdout + done.stderr
