"""Preflight: sources must agree, and no facts are our bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe.deploy.load import parse_deploy
from megamoe.preflight import collect_facts
from megamoe.preflight.judge import judge

TEXT = """engine: atom
image: registry.example/serve/moe@sha256:1111111111111111111111111111111111111111111111111111111111111111
model: {path: /models/demo-moe, profile: deepseek-v4-pro, weights: mxfp4}
gpu: {arch: gfx950, count: 8, vram_gib: 288}
args: {tensor_parallel: 8, port: 8000}
"""
DEPLOY = parse_deploy(TEXT).deploy
ADDRESSES = [f"0000:{5 + 16 * i:02x}:00.0" for i in range(8)]
GOOD: dict[str, Any] = {
    "lspci_accelerators": 8,
    "kfd_gpu_nodes": 8,
    "rocm_smi_gpus": 8,
    "numa_balancing": 0,
    "cmdline": "quiet iommu=pt",
    "kernel": "6.8.0-60-generic",
    "engine_info": {"os": "Ubuntu 24.04", "kernel": "6.8.0-60-generic", "rootless": False},
    "driver_version": "30.30.3",
    "firmware_bundle": ["01.26.00.02"],
    "ram_bytes": 3 << 40,
    "clock_synchronised": True,
    "disk_docker": {"free_bytes": 1 << 40},
    "disk_model": {"free_bytes": 0, "fstype": "xfs"},
    "model_bytes": 864721029744,
    "dmesg": ["amdgpu 0000:05:00.0: amdgpu: initialized"],
    "pci": [{"address": a, "device": "0x75a3"} for a in ADDRESSES],
    "kfd": [{"address": a, "arch": "gfx950"} for a in ADDRESSES],
    "listening_ports": [22],
    "shm": {"total_bytes": 1 << 37, "free_bytes": 1 << 37},
    "engines": {"docker": "Docker version 29.1.2, build 890dcca"},
    "gpus": [{"id": i, "vram_total_mb": 294896, "vram_used_mb": 283, "partition": "SPX"} for i in range(8)],
    "kfd_processes": [],
    "containers": [],
    "probe": {"open_kfd_rdwr": "OK"},
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"kfd_gpu_nodes": 7, "kfd": GOOD["kfd"][:7]}, "GPU_COUNT"),
        ({"listening_ports": [22, 8000]}, "PORT_IN_USE"),
        ({"listening_ports": [22, 8001]}, None),
        ({"gpus": [{**g, "partition": "CPX"} for g in GOOD["gpus"]]}, "PARTITION_MODE"),
        ({"kfd": [{"address": a, "arch": "gfx942"} for a in ADDRESSES]}, "GPU_ARCH"),
        ({"shm": {"total_bytes": 64 << 20, "free_bytes": 64 << 20}}, "SHM_TOO_SMALL"),
        ({"numa_balancing": 1}, "NUMA_BALANCING"),
        ({"numa_balancing": "1"}, "NUMA_BALANCING"),
        ({"numa_balancing": "0\n"}, None),
        ({"cmdline": "quiet iommu=off"}, "IOMMU_NOT_PT"),
        ({"env": {"HSA_OVERRIDE_GFX_VERSION": "9.4.2"}}, "GFX_OVERRIDE"),
        ({"probe": {**GOOD["probe"], "rocm_smi_exit": 2}}, "GPU_TOOL_FAILED"),
        ({"probe": {**GOOD["probe"], "rocm_smi_exit": 0}}, None),
        ({"probe": {"open_kfd_rdwr": "ENOENT"}}, "DEVICE_UNUSABLE"),
        ({"driver_version": "30.10.0"}, None),
        ({"driver_version": "6.8.5"}, "DRIVER_RELEASE"),
        ({"driver_version": 7}, "UNKNOWN_DRIVER"),
        ({"firmware_bundle": ["01.26.00.02", "01.25.17.07"]}, "FIRMWARE"),
        ({"firmware_bundle": ["01.20.00.00"]}, "FIRMWARE"),
        ({"ram_bytes": 1 << 40}, "RAM_SMALL"),
        ({"engines": {"docker": "Docker version 20.10.5"}}, "ENGINE_OLD"),
        ({"engines": {"docker": "Docker version 20.10.24+dfsg1, build 297e128"}}, None),
        ({"engines": {"docker": "unknown"}}, "UNKNOWN_ENGINE_VERSION"),
        ({"engines": {"podman": "podman version 5"}}, "ENGINE_MISSING"),
        ({"engine_info": {"os": "Docker Desktop", "kernel": "6.8.0-60-generic"}}, "ENGINE_NOT_HOST"),
        ({"engine_info": {"os": "Ubuntu", "kernel": "6.6.87-linuxkit"}}, "ENGINE_NOT_HOST"),
        ({"engine_info": {"rootless": True}}, "ENGINE_ROOTLESS"),
        ({"disk_docker": {"free_bytes": 30 << 30}}, "DISK_IMAGE"),
        ({"disk_docker": {"free_bytes": 30 << 30}, "image_present": True}, None),
        ({"model_bytes": 0}, "DISK_MODEL"),
        ({"model_bytes": 0, "disk_model": {"free_bytes": 1 << 40}}, "MODEL_NOT_COMPLETE"),
        ({"disk_model": {"free_bytes": 0, "fstype": "nfs4"}}, None),
        ({"gpus": [{**g, "memory_partition": "NPS2"} for g in GOOD["gpus"]]}, "MEMORY_PARTITION"),
        ({"gpus": [{**g, "ecc_uncorrectable": int(g["id"] == 3)} for g in GOOD["gpus"]]}, "GPU_HARDWARE"),
        ({"gpus": [{**g, "vram_total_mb": 262128} for g in GOOD["gpus"]]}, "VRAM_TOTAL"),
        ({"gpus": [{**g, "vram_used_mb": 46111, "runtime_free_mb": 294000} for g in GOOD["gpus"]]}, "VRAM_COUNTER"),
        (
            {"gpus": [{**g, "vram_used_mb": 46111, "runtime_free_mb": 240000} for g in GOOD["gpus"]]},
            "HOST_VRAM_STRANDED",
        ),
        ({"pci": [{"address": a, "device": "0x74a5"} for a in ADDRESSES]}, "GPU_ARCH"),
        ({"pci": [{"address": a, "device": "0x9999"} for a in ADDRESSES]}, "PCI_ID_UNKNOWN"),
        ({"archs": ["gfx950", "gfx1100"]}, "GPU_ARCH"),
        ({"archs": ["gfx950:sramecc+:xnack-"]}, None),
        ({"image": {"archs": ["gfx90a", "gfx942"]}}, "IMAGE_ARCH"),
        ({"image": {"archs": ["gfx942", "gfx950"]}}, None),
        ({"image": {"rocm_version": "7.2.0"}}, "ROCM_BASE_TOO_OLD"),
        ({"image": {"rocm_version": "7.2.4"}}, None),
        (
            {"dmesg": ["amdgpu 0000:85:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"]},
            "GPU_HARDWARE",
        ),
        ({"dmesg": ["amdgpu 0000:85:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block"]}, None),
        ({"dmesg": ["amdgpu: probe of 0000:c1:00.0 failed with error -22"]}, "GPU_MISSING"),
        ({"shm_leftovers": ["/dev/shm/nccl-AbCdEf"]}, "SHM_LEFTOVERS"),
        ({"stale_locks": ["/var/cache/megamoe/aa/tuned_fmoe.csv.lock"]}, "STALE_LOCKS"),
        ({"containers": [{"name": "other", "gpu": True}]}, "GPU_SHARED"),
        ({"containers": [{"name": "megamoe", "gpu": True}, {"name": "web", "gpu": False}]}, None),
        ({"clock_synchronised": False}, "CLOCK"),
        ({"clock_offset_s": 0.2, "clock_synchronised": None}, None),
        ({"clock_offset_s": -40}, "CLOCK"),
        ({"probe": {}, "host": {"dev": {"/dev/kfd": {"mode": "0600", "gid": 992}}}}, "DEVICE_MODE"),
        ({"probe": {}, "host": {"dev": {"/dev/dri/renderD128": {"mode": "0660", "gid": 992}}}}, "DEVICE_UNUSABLE"),
    ],
)
def test_one_change_of_a_good_host_gives_one_finding(change: dict[str, Any], code: str | None) -> None:
    assert [f.code for f in judge({**GOOD, **change}, DEPLOY)] == ([code] if code else [])


def test_seven_of_eight_names_the_pci_address() -> None:
    found = judge({**GOOD, "kfd_gpu_nodes": 7, "kfd": GOOD["kfd"][:7]}, DEPLOY)
    assert ADDRESSES[7] in found[0].what


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(
    LEAF,
    lambda c: (
        st.lists(c, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "gid",
                    "dev",
                    "groups",
                    "pid",
                    "alive",
                    "vram_mb",
                    "vram_used_mb",
                    "/dev/kfd",
                    "address",
                    "open_kfd_rdwr",
                    "container_groups",
                    "archs",
                    "device",
                    "mode",
                    "rootless",
                    "free_bytes",
                    "total_bytes",
                    "partition",
                    "gpu",
                ]
            ),
            c,
        )
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    facts=st.dictionaries(
        st.sampled_from(
            [
                *GOOD,
                "host",
                "image",
                "dmesg",
                "archs",
                "env",
                "expected_gpus",
                "torch_device_count",
                "amdgpu_initstate",
                "cdi_specs",
                "stale_locks",
                "shm_leftovers",
                "clock_offset_s",
            ]
        ),
        JSON,
    )
)
def test_no_facts_are_our_bug(facts: dict[str, Any]) -> None:
    assert isinstance(judge(facts, DEPLOY), list)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try to open a file as another user")
def test_a_node_is_really_opened_as_the_containers_user() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        node = Path(folder) / "kfd"
        node.touch()
        os.chown(node, 0, 105)
        node.chmod(0o660)
        opened_as(node)


NODE = {"mode": "0660", "uid": 0, "gid": 992}
DEV = {"/dev/kfd": NODE, "/dev/dri/renderD128": NODE}


@pytest.mark.parametrize(("probe", "dev", "user", "codes", "words"), [
    ({"open_kfd_rdwr": "OK", "container_groups": [1000, 992]}, DEV, "1000:1000", [], ""),
    ({"open_kfd_rdwr": "OK", "container_groups": [1000, 992]}, {**DEV, "/dev/dri/renderD128": {**NODE, "gid": 109}},
     "1000:1000", ["DEVICE_PERMISSION"], "109 (/dev/dri/renderD128)"),
    ({"container_groups": [1000, 44]}, {p: {**NODE, "mode": "0666"} for p in DEV}, "1000:1000",
     ["UNKNOWN_KFD_ACCESS"], ""),
    ({"container_groups": [0]}, DEV, "1000:0", ["DEVICE_PERMISSION"], "992"),
    ({"container_groups": [0]}, DEV, None, ["UNKNOWN_KFD_ACCESS"], ""),
    ({"open_kfd_rdwr": "EACCES", "container_groups": [992]}, DEV, "1000:1000", ["DEVICE_PERMISSION"], "user namespace"),
    ({"open_kfd_rdwr": "EACCES", "container_groups": [0]}, {"/dev/kfd": {"mode": "0600", "uid": 0, "gid": 0}},
     "1000:1000", ["DEVICE_MODE"], "udev"),
    ({"open_kfd_rdwr": "EPERM"}, DEV, "1000:1000", ["DEVICE_PERMISSION"], "container.devices"),
    ({"open_kfd_rdwr": "EINVAL"}, DEV, None, ["DEVICE_UNUSABLE"], "driver"),
])  # fmt: skip
def test_permissions_by_open_then_by_numbers_and_modes(
    probe: dict[str, Any], dev: dict[str, Any], user: str | None, codes: list[str], words: str
) -> None:
    from megamoe.preflight.permissions import permissions

    text = TEXT.replace("args:", f'container: {{user: "{user}"}}\nargs:') if user else TEXT
    found = permissions({"probe": probe, "host": {"dev": dev}}, parse_deploy(text).deploy)
    assert [f.code for f in found] == codes
    assert words in "".join(f.what + f.fix for f in found)


def opened_as(node: Path) -> None:
    assert collect_facts.open_as(str(node), 1000, 1000, [44, 105]) == "OK"
    assert collect_facts.open_as(str(node), 1000, 1000, [44]) == "EACCES"
    assert collect_facts.open_as(str(node), 0, 0, []) == "OK"
    assert collect_facts.open_as(str(node) + "-none", 0, 0, []) == "ENOENT"
    assert os.geteuid() == 0


@pytest.mark.parametrize(("facts", "wanted"), [
    ({"podman_init": False}, ["PODMAN_INIT_MISSING"]),
    ({"podman_init": True}, []),
    ({"engines": {"podman": "podman version 3.0.1"}}, ["ENGINE_OLD"]),
])  # fmt: skip
def test_podman_needs_its_init_and_a_version_that_knows_groups(facts: dict[str, Any], wanted: list[str]) -> None:
    from megamoe.preflight.engine import engine

    podman = parse_deploy(TEXT.replace("args:", "container: {engine: podman, security_opts: []}\nargs:")).deploy
    given = {"engines": {"podman": "podman version 4.3.1"}, **facts}
    assert [f.code for f in engine(given, podman)] == wanted


def test_a_cdi_name_needs_an_engine_and_a_spec_that_know_it() -> None:
    from megamoe.preflight.engine import engine

    cdi = parse_deploy(TEXT.replace("args:", "container: {devices: [amd.com/gpu=all]}\nargs:")).deploy
    new, old = {"docker": "Docker version 29.1.2"}, {"docker": "Docker version 20.10.24"}
    assert [f.code for f in engine({"engines": new, "cdi_specs": ["/etc/cdi/amd.json"]}, cdi)] == []
    assert [f.code for f in engine({"engines": new, "cdi_specs": []}, cdi)] == ["CDI_MISSING"]
    assert [f.code for f in engine({"engines": new}, cdi)] == ["UNKNOWN_CDI"]
    assert [f.code for f in engine({"engines": old, "cdi_specs": ["amd.json"]}, cdi)] == ["ENGINE_NO_CDI"]


def test_the_collector_runs_alone_and_says_what_it_could_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(Path(collect_facts.__file__))], capture_output=True, text=True, timeout=120
    )
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert isinstance(facts["unknown"], list)
    assert facts["probe"]["host_open_kfd_rdwr"]


@pytest.mark.parametrize(("vram_mb", "code"), [(12, "HOST_VRAM_STRANDED"), (44900, "GPU_BUSY")])
def test_a_process_that_only_looks_at_the_gpus_does_not_own_their_memory(vram_mb: int, code: str) -> None:
    facts = {**GOOD, "gpus": [{"id": 0, "vram_total_mb": 294896, "vram_used_mb": 46111, "partition": "SPX"}],
             "kfd_processes": [{"pid": 77, "name": "amd-smi", "vram_mb": vram_mb, "alive": True}]}  # fmt: skip
    found = {f.code: f for f in judge(facts, DEPLOY)}
    assert code in found and ("77" in found[code].what) is (code == "GPU_BUSY")


@pytest.mark.parametrize("how", [{"gpu": True}, {"gpus": [0]}, {"devices": ["/dev/kfd:/dev/kfd"]}], ids=str)
def test_a_container_with_gpu_devices_is_seen_however_it_is_listed(how: dict[str, Any]) -> None:
    codes = {f.code for f in judge({**GOOD, "containers": [{"name": "other", **how}]}, DEPLOY)}
    assert "GPU_SHARED" in codes
    assert "GPU_SHARED" not in {f.code for f in judge({**GOOD, "containers": [{"name": "other"}]}, DEPLOY)}


@pytest.mark.parametrize(
    ("script", "ended", "cards"),
    [
        pytest.param("echo '{\"card0\": {}, \"card1\": {}}'", 0, 2, id="it answers"),
        pytest.param("echo '{\"card0\": {}}'; exit 2", 2, None, id="it fails, so what it said does not count"),
        pytest.param("kill -SEGV $$", -11, None, id="it crashes"),
        pytest.param(None, None, None, id="it is not there"),
    ],
)
def test_how_the_gpu_tool_ended_is_a_fact(
    script: str | None, ended: int | None, cards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "rocm-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "rocm-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = collect_facts.collect()
    assert facts["probe"].get("rocm_smi_exit") == ended
    assert facts.get("rocm_smi_gpus") == cards
