"""Preflight: sources must agree, and no facts are our bug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe.deploy.load import parse_deploy
from megamoe.preflight import collect_facts
from megamoe.preflight.judge import judge

DEPLOY = parse_deploy("""engine: atom
image: registry.example/serve/moe@sha256:1111111111111111111111111111111111111111111111111111111111111111
model: {path: /models/demo-moe, profile: deepseek-v4-pro, weights: mxfp4}
gpu: {arch: gfx950, count: 8, vram_gib: 288}
args: {tensor_parallel: 8, port: 8000}
""").deploy
ADDRESSES = [f"0000:{5 + 16 * i:02x}:00.0" for i in range(8)]
GOOD: dict[str, Any] = {
    "lspci_accelerators": 8, "kfd_gpu_nodes": 8, "rocm_smi_gpus": 8, "numa_balancing": 0, "cmdline": "quiet iommu=pt",
    "pci": [{"address": a} for a in ADDRESSES], "kfd": [{"address": a, "arch": "gfx950"} for a in ADDRESSES],
    "listening_ports": [22], "shm": {"total_bytes": 1 << 37, "free_bytes": 1 << 37}, "engines": {"docker": "29"},
    "gpus": [{"id": i, "vram_total_mb": 294896, "vram_used_mb": 283, "partition": "SPX"} for i in range(8)],
    "kfd_processes": [], "containers": [], "probe": {"open_kfd_rdwr": "OK"}}


@pytest.mark.parametrize(("change", "code"), [
    ({}, None),
    ({"kfd_gpu_nodes": 7, "kfd": GOOD["kfd"][:7]}, "GPU_COUNT"),
    ({"listening_ports": [22, 8000]}, "PORT_IN_USE"),
    ({"listening_ports": [22, 8001]}, None),
    ({"gpus": [{**g, "partition": "CPX"} for g in GOOD["gpus"]]}, "PARTITION_MODE"),
    ({"kfd": [{"address": a, "arch": "gfx942"} for a in ADDRESSES]}, "GPU_ARCH"),
    ({"shm": {"total_bytes": 64 << 20, "free_bytes": 64 << 20}}, "SHM_TOO_SMALL"),
    ({"numa_balancing": 1}, "NUMA_BALANCING"),
    ({"cmdline": "quiet iommu=off"}, "IOMMU_NOT_PT"),
    ({"probe": {"open_kfd_rdwr": "ENOENT"}}, "DEVICE_UNUSABLE"),
])
def test_one_change_of_a_good_host_gives_one_finding(change: dict[str, Any], code: str | None) -> None:
    assert [f.code for f in judge({**GOOD, **change}, DEPLOY)] == ([code] if code else [])


def test_seven_of_eight_names_the_pci_address() -> None:
    found = judge({**GOOD, "kfd_gpu_nodes": 7, "kfd": GOOD["kfd"][:7]}, DEPLOY)
    assert ADDRESSES[7] in found[0].what


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(LEAF, lambda c: st.lists(c, max_size=4) | st.dictionaries(st.sampled_from(
                        ["id", "gid", "dev", "groups", "pid", "alive", "vram_mb", "vram_used_mb", "/dev/kfd", "address",
                         "open_kfd_rdwr", "container_groups", "free_bytes", "total_bytes", "partition", "gpu"]), c))


@settings(max_examples=150, deadline=None)
@given(facts=st.dictionaries(st.sampled_from([*GOOD, "host", "image", "dmesg", "archs", "env", "expected_gpus",
                                              "torch_device_count", "amdgpu_initstate"]), JSON))
def test_no_facts_are_our_bug(facts: dict[str, Any]) -> None:
    assert isinstance(judge(facts, DEPLOY), list)


def test_the_collector_runs_alone_and_says_what_it_could_not_know() -> None:
    done = subprocess.run([sys.executable, "-I", str(Path(collect_facts.__file__))], capture_output=True, text=True,
                          timeout=120)
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert isinstance(facts["unknown"], list)
    assert facts["probe"]["host_open_kfd_rdwr"]
