"""Cases A1, A2, A3 and A10 of shared/cases/README.md as processes, and three more of each kind with twins.

The further ones come from public threads: podman and docker flags (Hal0ai/hal0#715, ROCm/mori#473), memory and heap
(ROCm/mori ParseSizeString, sgl-project/sglang#35619), parallel layout (ROCm/ATOM#1666).
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

BASE = yaml.safe_load(Path(__file__).with_name("base.yml").read_text())
PODMAN = {
    "engine": "podman",
    "ipc": "host",
    "shm_size": "64g",
    "init": True,
    "stop_timeout": 60,
    "devices": ["/dev/kfd", "/dev/dri"],
}


def megamoe(tmp_path: Path, verb: str, patch: dict[str, Any], *more: str) -> tuple[int, dict[str, Any], str]:
    deploy = copy.deepcopy(BASE)
    for section, values in patch.items():
        deploy[section] = {**deploy[section], **values}
    (tmp_path / "deploy.yml").write_text(yaml.safe_dump(deploy))
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", verb, "deploy.yml", *more, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    body = json.loads(done.stdout)
    assert body["exit_code"] == done.returncode and body["command"] == verb
    return done.returncode, body, done.stdout


def test_the_control_is_accepted(tmp_path: Path) -> None:
    code, body, _ = megamoe(tmp_path, "plan", {})
    assert (code, body["status"]) == (0, "pass")


def test_a1_mega_without_expert_parallel_is_refused_and_standard_is_accepted(tmp_path: Path) -> None:
    code, body, out = megamoe(tmp_path, "plan", {"args": {"enable_expert_parallel": False}})
    assert (code, body["status"]) == (2, "refused")
    assert "enable_expert_parallel: true" in out and "moe_backend" in out
    twin = {"args": {"enable_expert_parallel": False, "moe_backend": "standard"}}
    assert megamoe(tmp_path, "plan", twin)[0] == 0


def test_a2_tokens_must_be_a_power_of_two_with_mega_only(tmp_path: Path) -> None:
    code, _, out = megamoe(tmp_path, "plan", {"args": {"max_num_batched_tokens": 12000}})
    assert code == 2 and "power of two" in out and "8192" in out
    assert megamoe(tmp_path, "plan", {"args": {"max_num_batched_tokens": 8192}})[0] == 0
    assert megamoe(tmp_path, "plan", {"args": {"max_num_batched_tokens": 12000, "moe_backend": "standard"}})[0] == 0
    code, body, out = megamoe(tmp_path, "plan", {"args": {"max_num_batched_tokens": 16384}})
    assert body["status"] in ("warn", "refused") and "validated limit" in out


def test_a3_podman_refuses_host_ipc_with_shm_size_and_docker_warns(tmp_path: Path) -> None:
    code, _, out = megamoe(tmp_path, "plan", {"container": PODMAN})
    assert code == 2 and "ipc: host" in out and "shm_size" in out and "125" in out
    code, body, out = megamoe(tmp_path, "plan", {"container": {**PODMAN, "engine": "docker"}})
    assert (code, body["status"]) == (0, "warn") and "no effect" in out
    assert body["data"]["container"]["shm_size"] is None and "--shm-size" not in body["data"]["docker_run"]


PLANNED = {"container": {"ipc": "private", "shm_size": "64g"}, "args": {"max_num_seqs": 512}}
RUNNING = [
    {
        "Name": "/moe",
        "Image": "sha256:" + "2" * 64,
        "RepoDigests": ["registry.example/serve/moe@sha256:" + "3" * 64],
        "State": {"Status": "running", "ExitCode": 0},
        "Args": ["--max-num-seqs", "256"],
        "Config": {"Env": ["AITER_BF16_FP8_MOE_BOUND=0", "MORI_SHMEM_HEAP_SIZE=16G"]},
        "HostConfig": {"IpcMode": "private", "ShmSize": 67108864, "Init": None},
    }
]


def test_a10_names_every_field_that_drifted(tmp_path: Path) -> None:
    (tmp_path / "inspect.json").write_text(json.dumps(RUNNING))
    code, body, out = megamoe(tmp_path, "verify-deploy", PLANNED, "--inspect", "inspect.json")
    assert (code, body["status"]) == (1, "fail")
    drifted = {row["field"] for row in body["data"]["fields"] if row["state"] == "drift"}
    assert drifted == {"image digest", "args --max-num-seqs", "env ATOM_MOE_GU_ITLV", "shm_size (ShmSize)", "init"}
    assert "1" * 64 in out and "3" * 64 in out and "64 MiB" in out and "64 GiB" in out


def test_a10_twin_shortened_but_matching_is_no_drift(tmp_path: Path) -> None:
    same = copy.deepcopy(RUNNING)
    same[0]["RepoDigests"] = ["registry.example/serve/moe@sha256:" + "1" * 64]
    same[0]["Args"] = ["--max-num-seqs", "512"]
    same[0]["Config"]["Env"].append("ATOM_MOE_GU_ITLV=1")
    same[0]["HostConfig"] |= {"ShmSize": 64 << 30, "Init": True}
    (tmp_path / "inspect.json").write_text(json.dumps(same))
    code, body, _ = megamoe(tmp_path, "verify-deploy", PLANNED, "--inspect", "inspect.json")
    assert (code, body["data"]["drift"]) == (0, 0)
    assert body["data"]["unknown"] > 0  # what the shortened inspection lacks is not called equal


@pytest.mark.parametrize("podman", [False, True], ids=["docker", "podman"])
def test_a10_a_whole_inspection_made_from_the_plan_has_no_drift_and_no_unknown(tmp_path: Path, podman: bool) -> None:
    facts = {"host": {"dev": {"/dev/kfd": {"gid": 992}, "/dev/dri/renderD128": {"gid": 992}}}}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    spec = megamoe(tmp_path, "plan", PLANNED, "--facts", "facts.json")[1]["data"]["container"]
    whole = inspection(spec, podman)
    (tmp_path / "inspect.json").write_text(json.dumps([whole]))
    run = ("--inspect", "inspect.json", "--facts", "facts.json")
    code, body, _ = megamoe(tmp_path, "verify-deploy", PLANNED, *run)
    assert (code, body["status"], body["data"]["unknown"]) == (0, "pass", 0), body["findings"]
    for field, value in (("Privileged", True), ("GroupAdd", ["109"]), ("Devices", []), ("IpcMode", "host"),
                         ("SecurityOpt", ["label=disable"]), ("CapDrop", ["CAP_CHOWN"])):
        (tmp_path / "inspect.json").write_text(
            json.dumps([{**whole, "HostConfig": {**whole["HostConfig"], field: value}}])
        )
        assert megamoe(tmp_path, "verify-deploy", PLANNED, *run)[0] == 1, field


def inspection(spec: dict[str, Any], podman: bool) -> dict[str, Any]:
    """The shape that docker 20.10 or podman 4.3.1 printed for containers that were really made from a plan."""
    prefix = "RLIMIT_" if podman else ""
    return {
        "Name": spec["name"] if podman else "/" + spec["name"],
        "Image": "sha256:" + "2" * 64,
        "State": {"Status": "running"},
        **({"ImageDigest": spec["image"].split("@")[1]} if podman else {"RepoDigests": [spec["image"]]}),
        "Args": spec["command"],
        "Config": {
            "Env": ["PATH=/usr/bin", *(f"{k}={v}" for k, v in spec["env"].items())],
            "Labels": spec["labels"],
            "StopTimeout": spec["stop_timeout"],
            **({"CreateCommand": ["podman", "run", "--ipc", spec["ipc_mode"], spec["image"]]} if podman else {}),
        },
        "HostConfig": {
            "IpcMode": "shareable" if podman else spec["ipc_mode"],
            "ShmSize": spec["shm_size"],
            "Init": True,
            "NetworkMode": spec["network_mode"],
            "Devices": [{"PathOnHost": d} for d in spec["devices"]],
            "GroupAdd": spec["group_add"],
            "Ulimits": [
                {"Name": (prefix + n).upper() if podman else n, "Soft": v["soft"], "Hard": v["hard"]}
                for n, v in spec["ulimits"].items()
            ],
            "SecurityOpt": spec["security_opts"],
            "CapAdd": ["CAP_" + c if podman else c for c in spec["cap_add"]],
            "CapDrop": ["CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_NET_RAW"] if podman else None,
            "Privileged": False,
            "ReadonlyRootfs": False,
            "Binds": spec["volumes"],
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        },
    }


KINDS = [
    (
        "podman keeps groups only alone",
        {"container": {"engine": "podman", "group_add": ["keep-groups", "44"]}},
        {"container": {"engine": "podman", "group_add": ["keep-groups"]}},
        "keep_groups_alone",
    ),
    (
        "private ipc needs a size",
        {"container": {"ipc": "private"}},
        {"container": {"ipc": "private", "shm_size": "16g"}},
        "shm_default_64m",
    ),
    ("ranks are reaped", {"container": {"init": False}}, {"container": {"init": True}}, "init_off"),
    (
        "16Gi is 16 bytes to mori",
        {"env": {"MORI_SHMEM_HEAP_SIZE": "16Gi"}},
        {"env": {"MORI_SHMEM_HEAP_SIZE": "16GiB"}},
        "heap_size_malformed",
    ),
    (
        "the heap is outside the share",
        {"env": {"MORI_SHMEM_HEAP_SIZE": "40G"}, "args": {"gpu_memory_utilization": 0.9}},
        {"env": {"MORI_SHMEM_HEAP_SIZE": "40G"}, "args": {"gpu_memory_utilization": 0.65}},
        "memory_over_card",
    ),
    (
        "the default heap is too small",
        {"env": {"MORI_SHMEM_HEAP_SIZE": "4G"}},
        {"env": {"MORI_SHMEM_HEAP_SIZE": "5G"}},
        "heap_too_small",
    ),
    (
        "tensor parallel attention sums the output",
        {"args": {"enable_dp_attention": False}},
        {"args": {"enable_dp_attention": False, "enable_expert_parallel": False, "moe_backend": "standard"}},
        "mega_needs_dp_attention",
    ),
    (
        "two batches overwrite one buffer",
        {"args": {"enable_tbo": "all"}},
        {"args": {"enable_tbo": "all", "moe_backend": "standard"}},
        "mega_tbo",
    ),
    ("experts must divide", {"args": {"tensor_parallel": 7}, "gpu": {"count": 7}}, {}, "experts_not_divisible"),
]


@pytest.mark.parametrize(("bad", "twin", "code"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_further_inputs_of_these_kinds(tmp_path: Path, bad: dict[str, Any], twin: dict[str, Any], code: str) -> None:
    exit_code, body, _ = megamoe(tmp_path, "plan", bad)
    assert exit_code == 2 and code in {f["code"] for f in body["findings"]}
    assert megamoe(tmp_path, "plan", twin)[0] == 0
