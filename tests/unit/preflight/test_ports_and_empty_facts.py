"""Taken ports in every form that facts give them, and facts that say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from megamoe.deploy.load import parse_deploy
from megamoe.preflight.command import _outcome
from megamoe.preflight.judge import ports
from megamoe_atom.problem import Exit, Problem

TEXT = (Path(__file__).parents[2] / "cases" / "base.yml").read_text()
DEPLOY = parse_deploy(TEXT).deploy


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"listening_ports": [22, 8000]}, "port 8000 is taken"),
        ({"listening_ports": ["22", "8000"]}, "port 8000 is taken"),
        ({"listening_ports": [{"port": 8000, "pid": 71}]}, "port 8000 by pid 71 is taken"),
        ({"port_8000": {"pid": 71, "container": "old"}}, "port 8000 by pid 71, container old is taken"),
        ({"listening_ports": [29500]}, "port 29500 is taken"),  # ATOM's data-parallel group
        ({"listening_ports": [8006]}, "port 8006 is taken"),
    ],
    ids=str,
)
def test_a_taken_port_blocks_in_whatever_form_it_is_listed(facts: dict[str, Any], shown: str) -> None:
    (finding,) = ports(facts, DEPLOY)
    assert (finding.code, finding.severity, finding.what) == ("PORT_IN_USE", "error", shown)


@pytest.mark.parametrize("listed", [[], [22], ["22", {"port": 80}], [float("nan"), None, -1, "x", 8000.5e9]], ids=str)
def test_other_ports_and_what_is_no_port_do_not(listed: list[Any]) -> None:
    assert ports({"listening_ports": listed, "port_x": {"pid": 1}}, DEPLOY) == []


@pytest.mark.parametrize("facts", [{}, {"colour": "blue"}, {"collected_at": 1, "hostname": "node-a"},
                                   {"kernel": "6.8.0"}, {"kfd_processes": []}], ids=str)
def test_facts_that_say_nothing_of_a_host_are_no_pass(tmp_path: Path, facts: dict[str, Any]) -> None:
    (tmp_path / "deploy.yml").write_text(TEXT)
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(Problem) as caught:
        _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False)
    assert caught.value.exit_code is Exit.NO_EVIDENCE
    (tmp_path / "facts.json").write_text('{"numa_balancing": 0}')
    assert _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False).exit_code is Exit.PASS


@pytest.mark.parametrize("name", [
    "amdgpu_initstate", "archs", "cdi_specs", "clock_offset_s", "clock_synchronised", "cmdline", "containers",
    "disk_docker", "disk_model", "dmesg", "driver_version", "engine_info", "engines", "env", "expected_gpus",
    "firmware_bundle", "gpus", "host", "image", "image_present", "kfd", "kfd_gpu_nodes", "listening_ports",
    "lspci_accelerators", "model_bytes", "numa_balancing", "pci", "podman_init", "port_8000", "probe", "ram_bytes",
    "rocm_smi_gpus", "shm", "shm_leftovers", "stale_locks", "torch_device_count", "unknown_because",
])  # fmt: skip
def test_one_known_fact_alone_is_judged(tmp_path: Path, name: str) -> None:
    (tmp_path / "deploy.yml").write_text(TEXT)
    (tmp_path / "facts.json").write_text(json.dumps({name: {"pid": 71} if name == "port_8000" else None}))
    _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False)  # raises when nothing was read


def test_facts_that_another_kind_of_deployment_needs_are_no_evidence_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "deploy.yml").write_text("""engine: reference
image: sha256:1111111111111111111111111111111111111111111111111111111111111111
model: {path: /models/demo, profile: rehearsal, weights: mxfp4}
gpu: {arch: cpu, count: 0, vram_gib: 0}
args: {port: 8000}
""")
    (tmp_path / "facts.json").write_text('{"numa_balancing": 0}')
    with pytest.raises(Problem) as caught:
        _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False)
    assert caught.value.exit_code is Exit.NO_EVIDENCE
    (tmp_path / "facts.json").write_text('{"listening_ports": [22]}')
    assert _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False).exit_code is Exit.PASS


def test_a_rootless_engine_blocks_where_its_version_is_unknown_too() -> None:
    from megamoe.preflight.engine import engine

    assert [f.code for f in engine({"engine_info": {"rootless": True}}, DEPLOY)] == [
        "UNKNOWN_ENGINE", "ENGINE_ROOTLESS"]  # fmt: skip
