"""Real inspections against their plans: no drift as they are, and one row of drift for each thing that is changed."""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.envelope import Outcome
from megamoe.plan.container import ContainerSpec, build
from megamoe.plan.judge import judge
from megamoe.verify_deploy.command import _outcome
from megamoe.verify_deploy.compare import compare
from megamoe.verify_deploy.environment import _OF_THE_IMAGE, _STEERS
from megamoe.verify_deploy.inspection import ask_engine
from megamoe.verify_deploy.rows import Row
from megamoe_atom.problem import Exit, Problem

PRINTED = json.loads(Path(__file__).with_name("inspections.json").read_text())
IMAGE = "registry.example/megamoe/reference@sha256:" + PRINTED["docker"]["Config"]["Image"][-64:]
DEPLOYS: dict[str, dict[str, Any]] = {
    "docker": {
        "engine": "reference", "image": IMAGE, "gpu": {"arch": "cpu", "count": 2, "vram_gib": 4},
        "model": {"path": "/models/rehearsal", "profile": "rehearsal", "weights": "mxfp4"},
        "args": {"tensor_parallel": 2, "enable_dp_attention": True, "enable_expert_parallel": True,
                 "moe_backend": "mega", "max_num_batched_tokens": 512, "max_num_seqs": 8, "max_model_len": 2048,
                 "kv_cache_dtype": "bf16", "gpu_memory_utilization": 0.9, "port": 8000},
        "container": {"engine": "docker", "ipc": "private", "init": True, "stop_timeout": 30, "devices": [],
                      "user": "10001:10001", "group_add": ["992"], "restart_policy": "unless-stopped",
                      "status_dir": "/srv/status"},
    },
    "podman": {
        "engine": "reference", "image": "sha256:" + PRINTED["podman"]["Image"].removeprefix("sha256:"),
        "gpu": {"arch": "cpu", "count": 0, "vram_gib": 0},
        "model": {"path": "/srv/model", "profile": "rehearsal", "weights": "mxfp4"},
        "args": {"max_num_batched_tokens": 8192, "max_num_seqs": 16, "port": 8123},
        "env": {"NOTE": "a b'$(c) \"q\""},
        "container": {"engine": "podman", "name": "demo", "status_dir": "/srv/status", "cache_dir": "/srv/cache",
                      "devices": ["/dev/null"], "group_add": ["44"], "labels": {"site": "x"},
                      "ulimits": {"nofile": {"soft": 1024, "hard": 2048}}, "ipc": "private", "shm_size": "1g",
                      "init": True, "tmpfs": ["/scratch:size=64m"], "cap_add": ["SYS_PTRACE"],
                      "cap_drop": ["NET_RAW"]},
    },
}  # fmt: skip


def planned(engine: str, **container: Any) -> ContainerSpec:
    deploy = copy.deepcopy(DEPLOYS[engine])
    deploy["container"] |= container
    loaded = parse_deploy(yaml.safe_dump(deploy))
    return build(loaded.deploy, judge(loaded, {}).context.profile, {})


def printed(engine: str) -> dict[str, Any]:
    """The inspection, with the hash of the plan as it is rendered today."""
    out: dict[str, Any] = copy.deepcopy(PRINTED[engine])
    out["Config"]["Labels"]["io.megamoe.plan-hash"] = planned(engine).labels["io.megamoe.plan-hash"]
    return out


def changed(engine: str, path: str, value: Any) -> dict[str, Any]:
    """The inspection with one value replaced. path: keys with dots between; a callable gets the old value."""
    out = printed(engine)
    *parents, last = path.split(".")
    node = out
    for part in parents:
        node = node[part]
    node[last] = value(node.get(last)) if callable(value) else value
    return out


def of(rows: list[Row], state: str) -> set[str]:
    return {row.field for row in rows if row.state == state}


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_what_an_engine_printed_for_a_plan_is_the_plan(engine: str) -> None:
    # The docker one was made from our image, whose entrypoint puts words of its own (tini -s --) before the verb.
    rows = compare(planned(engine), printed(engine))
    assert [row for row in rows if row.state != "same"] == []
    assert {"args command", "volumes", "ulimits", "devices"} <= of(rows, "same")


def without(*words: str) -> Callable[[list[str]], list[str]]:
    return lambda old: [w for w in old if w not in words]


def swapped(old_word: str, new: list[str]) -> Callable[[list[str]], list[str]]:
    return lambda old: [w for x in old for w in (new if x == old_word else [x])]


def with_entry(*more: Any) -> Callable[[list[Any] | None], list[Any]]:
    return lambda old: [*(old or []), *more]


DEVICE = {"PathOnHost": "/dev/kfd", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}
DRIFT: list[tuple[str, str, Any, str]] = [
    ("docker", "State", {"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "state"),
    ("docker", "State", {"Status": "paused"}, "state"),
    ("docker", "State", {"Status": None, "Running": False}, "state"),
    ("docker", "Config.Image", "registry.example/megamoe/reference@sha256:" + "3" * 64, "image digest"),
    ("docker", "RepoDigests", ["registry.example/other@sha256:" + "3" * 64], "image digest"),
    ("podman", "Image", "3" * 64, "image digest"),
    ("docker", "Args", swapped("serve", ["plan"]), "args command"),
    ("podman", "Args", swapped("serve", ["sleep", "inf"]), "args command"),
    ("docker", "Args", ["-s", "--", "/usr/local/bin/megamoe-entrypoint", "sleep", "infinity"], "args command"),
    ("docker", "Args", with_entry("--enforce-eager"), "args --enforce-eager"),
    ("docker", "Args", with_entry("--max-num-seqs", "16"), "args --max-num-seqs"),
    ("docker", "Args", with_entry("--max-num-seqs=16"), "args --max-num-seqs"),
    ("docker", "Args", without("--enable-expert-parallel"), "args --enable-expert-parallel"),
    ("docker", "Args", swapped("-tp", ["-dp"]), "args --data-parallel-size"),
    ("docker", "Config.Env", without("ATOM_USE_FLYDSL=1"), "env ATOM_USE_FLYDSL"),
    ("docker", "Config.Env", with_entry("ATOM_USE_FLYDSL_FUSED=0"), "env ATOM_USE_FLYDSL_FUSED"),
    ("docker", "Config.Env", with_entry("MORI_SHMEM_MODE=ISOLATION"), "env MORI_SHMEM_MODE"),
    ("docker", "HostConfig.IpcMode", "host", "ipc"),
    ("docker", "HostConfig.ShmSize", 1 << 30, "shm_size (ShmSize)"),
    ("docker", "HostConfig.Init", None, "init"),
    ("docker", "HostConfig.Init", "true", "init"),
    ("docker", "Config.StopTimeout", 10, "stop_timeout"),
    ("docker", "Config.StopTimeout", None, "stop_timeout"),
    ("docker", "HostConfig.NetworkMode", "default", "network_mode"),
    ("docker", "HostConfig.Devices", [DEVICE], "devices"),
    ("podman", "HostConfig.Devices", None, "devices"),
    ("docker", "HostConfig.DeviceRequests", [{"Driver": "nvidia", "Count": -1, "DeviceIDs": None}], "devices"),
    ("docker", "HostConfig.DeviceCgroupRules", ["c 226:* rwm"], "device_cgroup_rules"),
    ("docker", "HostConfig.GroupAdd", ["render"], "groups"),
    ("docker", "HostConfig.GroupAdd", ["992", "0"], "groups"),
    ("docker", "HostConfig.GroupAdd", None, "groups"),
    ("docker", "HostConfig.Ulimits", [{"Name": "nofile", "Soft": 64, "Hard": 64}], "ulimits"),
    ("podman", "HostConfig.Ulimits", [{"Name": "RLIMIT_NOFILE", "Soft": 1, "Hard": 2048}], "ulimits"),
    ("docker", "HostConfig.Memory", 8 << 30, "resource_limits"),
    ("docker", "HostConfig.CpusetCpus", "0-3", "resource_limits"),
    ("docker", "HostConfig.PidsLimit", 64, "resource_limits"),
    ("docker", "HostConfig.PidMode", "host", "pid_mode"),
    ("docker", "HostConfig.SecurityOpt", None, "security_opts"),
    ("docker", "HostConfig.CapAdd", ["CAP_SYS_ADMIN"], "cap_add"),
    ("docker", "HostConfig.Privileged", True, "privileged"),
    ("docker", "HostConfig.ReadonlyRootfs", True, "read_only"),
    ("docker", "Mounts", lambda old: [{**m, "RW": True} for m in old], "volumes"),
    ("docker", "Mounts", with_entry({"Type": "volume", "Name": "patch", "Destination": "/opt/x"}), "volumes"),
    ("docker", "HostConfig.Tmpfs", {"/tmp": "size=16g"}, "tmpfs"),
    ("podman", "HostConfig.Tmpfs", {"/scratch": "size=32m,rw"}, "tmpfs"),
    ("docker", "HostConfig.PortBindings", {"8000/tcp": [{"HostIp": "", "HostPort": "80"}]}, "ports"),
    ("docker", "HostConfig.RestartPolicy", {"Name": "always"}, "restart_policy"),
    ("docker", "Config.User", "0:0", "user"),
    ("docker", "Config.Healthcheck", None, "healthcheck"),
    ("docker", "Config.Healthcheck.Interval", 10**9, "healthcheck"),
    ("docker", "Config.Labels", None, "label io.megamoe.plan-hash"),
    ("docker", "Config.Labels", lambda old: {**old, "io.megamoe.profile": "x"}, "label io.megamoe.profile"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "path", "value", "field"), DRIFT, ids=[f"{e}-{p}-{i}" for i, (e, p, _, _)
                                                                         in enumerate(DRIFT)])  # fmt: skip
def test_one_changed_thing_is_drift_of_its_field(engine: str, path: str, value: Any, field: str) -> None:
    inspect = changed(engine, path, value)
    if path == "Args":  # as printed, Cmd is the same words; here Args alone tell
        inspect["Config"]["Cmd"] = None
    drifted = of(compare(planned(engine), inspect), "drift")
    assert field in drifted
    related = {"args command": "args ", "label io.megamoe.plan-hash": "label ", "args --data-parallel-size": "args "}
    assert {f for f in drifted if not f.startswith(related.get(field, field))} == set()


SAME: list[tuple[str, str, Any]] = [
    ("docker", "Args", swapped("0.9", ["0.90"])),
    ("docker", "Args", swapped("-tp", ["--tensor-parallel-size"])),
    ("docker", "Args", lambda old: [w for w in old[4:] if w != "serve"]),
    ("docker", "Args", lambda old: " ".join(old)),
    ("docker", "HostConfig.GroupAdd", ["992", "992"]),
    ("docker", "HostConfig.GroupAdd", [992]),
    ("docker", "RepoDigests", ["mirror.example/x@sha256:" + "3" * 64, IMAGE]),
    ("docker", "State", {"Running": True}),
    ("docker", "Name", "megamoe"),
    ("docker", "Mounts", with_entry({"Type": "volume", "Name": "0" * 64, "Destination": "/var/lib/x", "RW": True})),
    ("docker", "HostConfig.MemorySwap", -1),
    ("podman", "HostConfig.PidsLimit", 2048),
    ("podman", "Config.Entrypoint", "/usr/bin/tini -s --"),
]


@pytest.mark.parametrize(("engine", "path", "value"), SAME, ids=[f"{e}-{p}-{i}" for i, (e, p, _) in enumerate(SAME)])
def test_another_spelling_of_the_same_is_no_drift(engine: str, path: str, value: Any) -> None:
    inspect = changed(engine, path, value)
    if path == "Args":
        inspect["Config"]["Cmd"] = None
    assert of(compare(planned(engine), inspect), "drift") == set()


@pytest.mark.parametrize(("path", "value", "field"), [
    ("Config.Image", "registry.example/megamoe/reference:latest", "image digest"),
    ("State", {"Status": 3}, "state"),
    ("HostConfig.ShmSize", "64m", "shm_size"),
    ("HostConfig.CapAdd", "ALL", "cap_add"),
    ("HostConfig.Privileged", "false", "privileged"),
    ("Config.StopTimeout", "30", "stop_timeout"),
    ("HostConfig.Devices", {"0": "/dev/kfd"}, "devices"),
    ("HostConfig.Ulimits", {"memlock": -1}, "ulimits"),
    ("Config.Env", {"A": "1"}, "env"),
    ("Config.Env", with_entry("AITER_JIT_DIR=/x"), "env AITER_JIT_DIR"),
])  # fmt: skip
def test_what_no_engine_prints_is_unknown_and_not_the_same(path: str, value: Any, field: str) -> None:
    rows = compare(planned("docker"), changed("docker", path, value))
    assert of(rows, "unknown") == {field} and of(rows, "drift") == set()


@pytest.mark.parametrize(("device", "entry", "same"), [
    ("/dev/null", DEVICE | {"PathOnHost": "/dev/null", "PathInContainer": "/dev/null", "CgroupPermissions": "r"}, 0),
    ("/dev/null", DEVICE | {"PathOnHost": "/dev/null", "PathInContainer": "/dev/zero"}, 0),
    ("/dev/null:/dev/zero:rw", DEVICE | {"PathOnHost": "/dev/null", "PathInContainer": "/dev/zero",
                                         "CgroupPermissions": "rw"}, 1),
    ("/dev/dri", DEVICE | {"PathOnHost": "/dev/dri/card0", "PathInContainer": "/dev/dri/card0",
                           "CgroupPermissions": ""}, 1),
    ("/dev/dri", DEVICE | {"PathOnHost": "/dev/dri/card0", "PathInContainer": "/dev/x"}, 0),
])  # fmt: skip
def test_a_device_is_its_place_in_the_container_and_its_rights_too(device: str, entry: Any, same: int) -> None:
    rows = compare(planned("podman", devices=[device]), changed("podman", "HostConfig.Devices", [entry]))
    assert ("devices" in of(rows, "same")) is bool(same)


def test_the_images_environment_decides_what_was_added_by_hand() -> None:
    inspect = changed("docker", "Config.Env", with_entry("AITER_JIT_DIR=/x", "HSA_XNACK=1"))
    image = {"AITER_JIT_DIR": "/x"}
    assert of(compare(planned("docker"), inspect, image_env=image), "drift") == {"env HSA_XNACK"}


def test_what_the_images_set_themselves_is_never_called_drift() -> None:
    text = (Path(__file__).parents[3] / "docker" / "Dockerfile").read_text()
    names = {w.split("=")[0] for line in text.splitlines() for w in line.removeprefix("ENV ").split()[:1] if "=" in w}
    steering = {n for n in names if _STEERS.match(n)}
    assert "AITER_JIT_DIR" in steering and all(_OF_THE_IMAGE.search(n) for n in steering), steering


def test_without_facts_a_user_without_any_group_is_drift(tmp_path: Path) -> None:
    deploy = yaml.safe_load((Path(__file__).parents[2] / "cases" / "base.yml").read_text())
    deploy["container"]["user"] = "10001:10001"
    loaded = parse_deploy(yaml.safe_dump(deploy))
    spec = build(loaded.deploy, judge(loaded, {}).context.profile, {})
    states = {tuple(g) if g else g: {r.state for r in compare(spec, {"HostConfig": {"GroupAdd": g}})
                                     if r.field == "groups"} for g in (None, ["render"], ["44", "992"])}  # fmt: skip
    assert states == {None: {"drift"}, ("render",): {"drift"}, ("44", "992"): {"unknown"}}


def verdict(tmp_path: Path, inspect: Any) -> Outcome:
    (tmp_path / "d.yml").write_text(yaml.safe_dump(DEPLOYS["docker"]))
    (tmp_path / "i.json").write_text(json.dumps(inspect))
    return _outcome(str(tmp_path / "d.yml"), str(tmp_path / "i.json"), "")


def test_several_containers_are_told_apart_by_name_and_one_object_is_a_container(tmp_path: Path) -> None:
    other = {**printed("podman"), "Name": "other"}
    assert verdict(tmp_path, [other, printed("docker")]).exit_code is Exit.PASS
    assert verdict(tmp_path, printed("docker")).exit_code is Exit.PASS


def test_an_unknown_digest_is_said_aloud(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, [changed("docker", "Config.Image", "registry.example/megamoe/reference:latest")])
    assert (outcome.status, outcome.findings[0].code) == ("warn", "not_compared")


@pytest.mark.parametrize(("inspect", "code", "exit_code"), [
    ([], "inspect_shape", Exit.REFUSED),
    ([{"RootFS": {}, "Config": {"Env": ["PATH=/bin"]}, "RepoDigests": [IMAGE]}], "inspect_of_an_image", Exit.REFUSED),
    ([{"Name": "/megamoe"}], "inspect_empty", Exit.NO_EVIDENCE),
    ([{"Name": "/megamoe", "Config": None, "HostConfig": [], "State": "running"}], "inspect_empty", Exit.NO_EVIDENCE),
])  # fmt: skip
def test_what_tells_nothing_of_a_container_is_no_pass(tmp_path: Path, inspect: Any, code: str, exit_code: Exit) -> None:
    with pytest.raises(Problem) as caught:
        verdict(tmp_path, inspect)
    assert (caught.value.reasons[0].code, caught.value.exit_code) == (code, exit_code)


ENGINE = """#!/bin/sh
case "$1" in
image) {image} ;;
*) {container} ;;
esac
"""


def fake_engine(folder: Path, container: str, image: str = "exit 1") -> str:
    path = folder / "engine"
    path.write_text(ENGINE.format(container=container, image=image))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(("said", "code", "exit_code"), [
    ("Error: No such container: megamoe", "container_missing", Exit.CHECK_FAILED),
    ("Error: inspecting object: no such object: megamoe", "container_missing", Exit.CHECK_FAILED),
    ("Cannot connect to the Docker daemon at unix:///run/x.sock", "engine_unreachable", Exit.UNREACHABLE),
    ("permission denied while trying to connect to the socket", "engine_unreachable", Exit.UNREACHABLE),
    ("", "engine_unreachable", Exit.UNREACHABLE),
])  # fmt: skip
def test_an_engine_that_does_not_answer_is_not_a_missing_container(
    tmp_path: Path, said: str, code: str, exit_code: Exit
) -> None:
    engine = fake_engine(tmp_path, f"echo '{said}' >&2; exit 1")
    with pytest.raises(Problem) as caught:
        ask_engine(engine, "megamoe")
    assert (caught.value.reasons[0].code, caught.value.exit_code) == (code, exit_code)


def test_an_engine_that_is_not_installed_is_unreachable() -> None:
    with pytest.raises(Problem) as caught:
        ask_engine("no-such-engine", "megamoe")
    assert caught.value.exit_code is Exit.UNREACHABLE


def test_the_engine_is_asked_for_the_image_too_and_may_have_lost_it(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([printed("docker")]))
    image = {"RepoDigests": [IMAGE], "Config": {"Env": ["PATH=/bin", "A=b"]}}
    (tmp_path / "i.json").write_text(json.dumps([image]))
    engine = fake_engine(tmp_path, f"cat {tmp_path}/c.json", f"cat {tmp_path}/i.json")
    entry, env = ask_engine(engine, "megamoe")
    assert entry["RepoDigests"] == [IMAGE] and env == {"PATH": "/bin", "A": "b"}
    engine = fake_engine(tmp_path, f"cat {tmp_path}/c.json", "echo 'Error: No such image: x' >&2; exit 1")
    entry, env = ask_engine(engine, "megamoe")
    assert env is None and compare(planned("docker"), entry, image_env=env)
