"""`--inside-image` against engines that answer, fail, hang, print nonsense and print without end: facts or a reason.

The engine is a shell script first in PATH that records its words. What it starts must be gone when it is given up.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from megamoe.preflight import collect_facts
from megamoe.preflight.judge import unread

IMAGE = "registry.example/moe@sha256:" + "1" * 64
ANSWER = {"image": {"groups": {"render": 109}, "archs": ["gfx950"], "rocm_version": "7.2.4"}, "open_kfd_rdwr": "OK",
          "container_groups": [109, 10001], "torch_device_count": 8}  # fmt: skip


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, run: str) -> Path:
    """An engine that has the image, whose `run` does this. Returns the file with its words, one a line."""
    said = folder / "said"
    (folder / name).write_text(f"""#!/bin/sh
case "$1" in
 image) echo '[{{"Config": {{"User": "10001"}}}}]' ;;
 info) echo '{{}}' ;;
 run) printf '%s\\n' "$@" >{said}; {run} ;;
 rm) printf '%s\\n' "$@" >{folder}/removed ;;
esac
""")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return said


def of_image(name: str, user: str = "", groups: str = "") -> dict[str, Any]:
    facts: dict[str, Any] = {"host": {"dev": {"/dev/kfd": {"gid": 992}}}, "probe": {}}
    collect_facts.of_image(facts, IMAGE, name, user, groups, True)
    return facts


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_container_gets_the_deployments_user_groups_and_devices_and_no_more(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = engine(tmp_path, monkeypatch, name, f"echo '{json.dumps(ANSWER)}'")
    there = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path in ("/dev/kfd", "/dev/dri") or there(path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # else the host's own probe would open these nodes, too
    facts = of_image(name, "10001:10001", "44,992")
    words = said.read_text().split("\n")
    end = words.index(IMAGE)
    assert words[:end] == [
        "run", "--rm", "--pull", "never", "--name", f"megamoe-preflight-{os.getpid()}", "--network", "none",
        "--read-only", "--entrypoint", "python3", "--device", "/dev/kfd", "--device", "/dev/dri",
        "--group-add", "44", "--group-add", "992", "--user", "10001:10001"]  # fmt: skip
    assert words[end + 1] == "-c" and "\n".join(words[end + 2:]).strip() == collect_facts.INSIDE.strip()
    assert facts["torch_device_count"] == 8 and facts["unknown_because"] == {}


def test_podmans_keep_groups_is_passed_on_and_dockers_numbers_are_those_of_the_nodes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in (("podman", "keep-groups"), ("docker", "992")):
        said = engine(tmp_path, monkeypatch, name, "exit 1")
        of_image(name, groups="keep-groups" if name == "podman" else "")
        words = said.read_text().split("\n")
        assert [words[i + 1] for i, w in enumerate(words) if w == "--group-add"] == [given]


@pytest.mark.parametrize(("run", "words"), [
    pytest.param("echo 'Error: crun: /dev/kfd: denied' >&2; exit 126",
                 "ended with 126 and no answer: Error: crun: /dev/kfd: denied", id="it fails and says why"),
    pytest.param("printf 'a\\nb\\033[31m red\\n' >&2; exit 1", "ended with 1 and no answer: b [31m red",
                 id="in colour"),
    pytest.param("printf '\\377\\376\\000'", "ended with 0 and no answer", id="it prints bytes"),
    pytest.param("head -c 200000 /dev/zero | tr '\\0' '['", "ended with 0 and no answer", id="too deep to be read"),
    pytest.param("echo '[]'", "ended with 0 and no answer", id="a list"),
    pytest.param("kill -9 $$", "ended with -9 and no answer", id="it is killed"),
    pytest.param(f"echo '{json.dumps(ANSWER)}'; exit 3", "ended with 3 and no answer", id="an answer and a failure"),
    pytest.param("echo '{}'", "the image does not say", id="an empty answer"),
    pytest.param("echo '{\"image\": [1], \"torch_error\": {\"a\": \"\\u001b[2J\"}}'", "{'a': '\\x1b[2J'}",
                 id="another shape"),
    pytest.param("yes", "docker printed more than 1 MiB", id="it prints without end"),
])  # fmt: skip
def test_what_is_no_answer_is_unknown_with_its_reason(run: str, words: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_facts, "MAX_OUTPUT", 1 << 20)
    engine(tmp_path, monkeypatch, "docker", run)
    facts = of_image("docker")
    assert "torch_device_count" not in facts and facts["image"] == {"user": "10001"}
    (finding,) = unread(facts)
    assert finding.what.startswith("image.groups, image.archs, image.rocm_version, torch_device_count: ")
    assert words in finding.what and finding.what.isprintable()


def test_an_answer_after_a_megabyte_of_warnings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = "head -c 2000000 /dev/zero | tr '\\0' 'w'; echo"
    engine(tmp_path, monkeypatch, "docker", f"{noise}; {{ {noise}; }} >&2; echo '{json.dumps(ANSWER)}'")
    assert of_image("docker")["torch_device_count"] == 8


def test_of_an_answer_only_what_has_its_type_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"image": {"groups": {"render": "x", "video": 44}, "archs": [950], "rocm_version": 7},
             "open_kfd_rdwr": "\x1b[2J", "container_groups": ["a"], "torch_device_count": True}  # fmt: skip
    engine(tmp_path, monkeypatch, "docker", f"echo '{json.dumps(wrong)}'")
    facts = of_image("docker")
    assert facts["image"] == {"user": "10001", "groups": {"video": 44}}
    assert set(facts["probe"]) == {"host_open_kfd_rdwr"}
    assert set(facts["unknown_because"]) == {"image.archs", "image.rocm_version", "torch_device_count"}


def alive(pid: int) -> bool:
    state = collect_facts.read(f"/proc/{pid}/stat")
    return state is not None and state.rpartition(")")[2].split()[0] != "Z"


def test_an_engine_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_facts, "INSIDE_S", 0.5)
    engine(tmp_path, monkeypatch, "docker", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    begin = time.monotonic()
    facts = of_image("docker")
    assert time.monotonic() - begin < 10
    assert "docker did not answer in 0.5 s" in facts["unknown_because"]["torch_device_count"]
    assert (tmp_path / "removed").read_text().split() == ["rm", "--force", f"megamoe-preflight-{os.getpid()}"]
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 5
    while alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(child)


@pytest.mark.parametrize("printed", ["[1]", '[{"Config": {"Env": 7, "Labels": []}}]', "{}", '"x"', "[[[[", ""])
def test_an_engine_that_prints_another_shape_gives_no_traceback(printed: str, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\ncase $1 in --version) echo 1.2;; *) echo '{printed}';; esac\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = of_image("docker")
    assert "torch_device_count" not in facts and facts["unknown_because"]
    assert collect_facts.containers("docker") in (None, [])
    assert collect_facts.engine_info("docker") in (None, {"engine": "docker", "os": "", "kernel": "", "rootless": False,
                                                          "root": ""})  # fmt: skip
