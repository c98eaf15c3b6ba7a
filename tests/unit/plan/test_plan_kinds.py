"""Inputs of the kinds that the cases stand for, each with the code that must name it, and twins that are accepted."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.plan.catalogue import explain
from megamoe.plan.fit import fit_outcome
from megamoe.plan.judge import outcome_of
from megamoe_atom.problem import Exit
from plan_support import codes, patched, plan

STANDARD = {"args__moe_backend": "standard", "args__enable_dp_attention": False, "args__enable_expert_parallel": False}
NODES = {path: {"mode": "0660", "uid": 0, "gid": 992} for path in ("/dev/kfd", "/dev/dri/renderD128")}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({**STANDARD, "args__tensor_parallel": 7}, "heads_not_divisible"),
        ({"args__moe_backend": "standard", "args__tensor_parallel": 7}, "experts_not_divisible"),
        ({"env__ARCH": "gfx942"}, "env_gfx_override"),
        ({"env__FLYDSL_GPU_ARCH": "gfx942"}, "env_gfx_override"),
        ({"args__moe_backend": "standard", "env__HSA_OVERRIDE_GFX_VERSION": "9.4.2"}, "env_gfx_override"),
        ({"env__ATOM_MEGA_MTPR": "\uff18\uff11\uff19\uff12"}, "mtpr_differs"),  # full-width digits
        ({"container__devices": ["/dev/kfd:/dev/foo", "/dev/dri"]}, "device_missing"),
        ({"container__devices": ["/dev/kfd", "/dev/dri:/dev/dri:r"]}, "device_rights"),
        ({"container__devices": ["/dev/kfd", "/dev/dri", "/dev/../etc"]}, "device_malformed"),
        ({"container__devices": ["amd.com/gpu=0"]}, "device_missing"),
        ({"container__user": "9999999999"}, "user_not_numeric"),
        ({"container__group_add": [-1]}, "group_number"),
        ({"container__group_add": [2147483648]}, "group_number"),
        ({"container__cap_add": ["SYS_PTRCE"]}, "cap_unknown"),
        ({"container__cap_add": ["CAP_SYS_PTRACE"], "container__cap_drop": ["SYS_PTRACE"]}, "cap_both"),
        ({"container__cap_drop": ["SYS_PTRACE"]}, "cap_both"),  # the profile adds it
        ({"container__security_opts": ["secomp=unconfined"]}, "security_opt"),
        ({"container__ulimits": {"memlock": -5}}, "ulimit_order"),
        ({"container__volumes": ["/data/ds:/data/ds:roo"]}, "volume_malformed"),
        ({"container__volumes": ["/data/ds:/data/ds:ro,rw"]}, "volume_malformed"),
        ({"container__volumes": ["/data/ds:/data/ds:ro,U"]}, "volume_malformed"),  # podman's, with docker
        ({"container__volumes": ["/data/x:/"]}, "volume_over_code"),
        ({"container__volumes": ["/usr:/usr:ro"]}, "volume_over_code"),
        ({"model__path": "/usr"}, "path_not_absolute"),
        ({"container__network_mode": "bridge", "container__ports": ["8000:8000", "8000:8000"]}, "port_malformed"),
        ({"container__network_mode": "bridge", "args__host": "127.0.0.1"}, "host_address"),
        ({"args__host": ""}, "host_address"),
    ],
    ids=str,
)
def test_an_input_of_the_same_kind_is_refused(changes: dict[str, Any], code: str) -> None:
    outcome = plan(**changes)
    assert outcome.exit_code is Exit.REFUSED
    assert code in codes(outcome), outcome.findings


@pytest.mark.parametrize(
    "changes",
    [
        {**STANDARD, "args__tensor_parallel": 8},
        {"args__tensor_parallel": 4, "args__data_parallel": 2},
        {"env__ARCH": "gfx950", "env__FLYDSL_GPU_ARCH": "gfx950"},
        {"env__MORI_GPU_ARCHS": "gfx942;gfx950"},
        {"container__devices": ["/dev/kfd", "/dev/dri/"]},
        {"container__devices": ["amd.com/gpu=all"]},
        {"container__devices": [f"amd.com/gpu={n}" for n in range(8)]},
        {"container__volumes": ["/etc:/host-etc:ro,z"]},
        {"container__engine": "podman", "container__volumes": ["/data/ds:/data/ds:ro,Z,U"]},
        {"container__cap_add": ["CAP_SYS_PTRACE", "SYS_NICE"]},
        {"container__security_opts": ["seccomp=/etc/docker/moe.json", "no-new-privileges"]},
        {"args__host": "127.0.0.1"},
    ],
    ids=str,
)
def test_its_healthy_twin_is_accepted(changes: dict[str, Any]) -> None:
    assert not codes(plan(**changes))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"args__port": 80}, "port_privileged"),
        ({"args__host": "10.0.0.5"}, "host_address"),
        ({"args__num_speculative_tokens": 3}, "speculative_unused"),
    ],
    ids=str,
)
def test_what_may_be_meant_is_a_warning(changes: dict[str, Any], code: str) -> None:
    outcome = plan(**changes)
    assert outcome.exit_code is Exit.PASS
    assert code in codes(outcome, "warn")


@pytest.mark.parametrize(
    ("group_add", "user", "mode", "refused"),
    [
        pytest.param([], "1000:1000", "0660", True, id="nobody lets the user in"),
        pytest.param([], None, "0660", True, id="the image's own user is not root"),
        pytest.param([], "0", "0660", False, id="root needs no group"),
        pytest.param([], "1000:1000", "0666", False, id="anybody may open the nodes"),
        pytest.param([992], "1000:1000", "0660", False, id="the right number"),
        pytest.param([109], "1000:1000", "0660", True, id="another number"),
    ],
)
def test_an_empty_list_of_groups_is_judged_by_the_facts(
    group_add: list[int], user: str | None, mode: str, refused: bool
) -> None:
    facts = {"host": {"groups": {"render": 992}, "dev": {path: {**node, "mode": mode} for path, node in NODES.items()}}}
    outcome = plan(facts, container__group_add=group_add, container__user=user)
    assert (codes(outcome) == {"group_mismatch"}) is refused
    if refused:
        assert any("992" in f.fix for f in outcome.findings)


@pytest.mark.parametrize(
    ("draft", "mounted"),
    [("/models/eagle", True), ("/models/demo-moe/eagle", False), ("/data/eagle", False)],
)
def test_a_draft_model_is_mounted_once(draft: str, mounted: bool) -> None:
    outcome = plan(args__method="eagle3", args__draft_model=draft, container__volumes=["/data:/data:ro"])
    assert (f"{draft}:{draft}:ro" in outcome.data["container"]["volumes"]) is mounted


@pytest.mark.parametrize(
    ("written", "meant", "fix"),
    [
        ("port: 8000", "port: 010", "leading zero"),
        ("port: 8000", "port: 0x1F40", "decimal"),
        ("port: 8000", "port: 8_000", "decimal"),
        ("port: 8000", "port: 99999999999999999999999", "plain decimal number that fits"),
        ("port: 8000", 'port: "8000"', "without quotes"),
        ("port: 8000", "port: 8000.0", "write 8000"),
        ("enable_dp_attention: true", "enable_dp_attention: yes", "write true:"),
        ("init: true", "init: off", "write false:"),
        ("init: true", 'init: "true"', "without quotes"),
        ("gpu_memory_utilization: 0.8", "gpu_memory_utilization: .nan", "plain decimal number that fits"),
        ("tensor_parallel: 8", "tp: 8", "did you mean args.tensor_parallel?"),
        ("max_num_batched_tokens: 8192", "mtpr: 8192", "did you mean args.max_num_batched_tokens?"),
        ("max_num_seqs: 256", "maxNumSeqs: 256", "did you mean args.max_num_seqs?"),
        ("port: 8000", "server_port: 8000", "did you mean args.port?"),
    ],
)
def test_a_slip_of_yaml_or_of_another_tools_word_gets_the_fix_that_helps(written: str, meant: str, fix: str) -> None:
    text = yaml.safe_dump(patched())
    assert written in text
    outcome = outcome_of(parse_deploy(text.replace(written, meant)), {})
    assert outcome.exit_code is Exit.REFUSED
    assert [f.fix for f in outcome.findings if fix in f.fix], outcome.findings


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"args__tensor_parallel": 16}, {"args.tensor_parallel": 8}),
        ({"args__data_parallel": 2}, {"args.data_parallel": 1}),
        ({"args__tensor_parallel": 1}, {"args.tensor_parallel": 8}),
        ({"args__max_num_batched_tokens": 32768}, {"args.max_num_batched_tokens": 8192}),
        ({"args__max_num_batched_tokens": 8191}, {"args.max_num_batched_tokens": 8192}),
        ({"args__max_num_batched_tokens": 5000}, {"args.max_num_batched_tokens": 4096}),
        ({"args__max_num_seqs": 4096}, {"args.max_num_seqs": 1024}),
        ({"args__port": 29500}, {"args.port": 8000}),
        ({**STANDARD, "args__tensor_parallel": 7}, {"args.tensor_parallel": 8}),
        ({"container__devices": ["amd.com/gpu=0"]}, {"container.devices": ["amd.com/gpu=all"]}),
        ({"container__devices": ["/dev/infiniband", "/dev/dri"], "container__ulimits": {"memlock": -1}},
         {"container.devices": ["/dev/kfd", "/dev/dri", "/dev/infiniband"]}),
        ({"container__engine": "podman", "container__rootless": True}, {"container.group_add": ["keep-groups"]}),
    ],
    ids=str,
)  # fmt: skip
def test_fit_changes_nothing_that_the_plan_does_not_need(changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    outcome = fit_outcome(parse_deploy(yaml.safe_dump(patched(**changes))), {})
    assert outcome.exit_code is Exit.PASS
    assert {row["key"]: row["to"] for row in outcome.data["changes"]} == wanted
    assert not codes(outcome_of(parse_deploy(yaml.safe_dump(outcome.data["deploy"])), {}))


def test_fit_says_that_a_file_it_does_not_understand_has_no_nearest_plan() -> None:
    outcome = fit_outcome(parse_deploy(yaml.safe_dump(patched(args__tp=8))), {})
    assert outcome.exit_code is Exit.REFUSED
    assert "no nearest plan" in outcome.summary


@pytest.mark.parametrize("spelled", ["HEAP_TOO_SMALL", "heap-too-small", "Heap_Too_Small"])
def test_a_code_is_explained_in_any_letter_case(spelled: str) -> None:
    assert explain(spelled).data["code"] == "heap_too_small"


ROOTLESS = {"container__engine": "podman", "container__rootless": True, "container__group_add": ["keep-groups"]}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (ROOTLESS, "unlimited (the profile's default)"),
        ({**ROOTLESS, "container__ulimits": {"memlock": -1}}, "unlimited"),
        ({**ROOTLESS, "container__ulimits": {"memlock": {"soft": 8, "hard": 1 << 40}}}, "1099511627776 bytes"),
        ({**ROOTLESS, "container__ulimits": {"memlock": 65536}}, None),
        ({**ROOTLESS, "container__ulimits": {"stack": 67108864}}, None),
        ({**ROOTLESS, "container__ulimits": {}}, None),
        ({**ROOTLESS, "container__rootless": False, "container__group_add": ["44"]}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_rootless_engine_that_is_to_raise_memlock_is_warned_of_with_the_remedy(
    changes: dict[str, Any], shown: str | None
) -> None:
    outcome = plan(**changes)
    assert outcome.exit_code is Exit.PASS, outcome.findings
    found = [f for f in outcome.findings if f.code == "memlock_rootless"]
    assert [(f.severity, f.what.partition("memlock limit is ")[2]) for f in found] == (
        [("warn", shown)] if shown else []
    )
    assert all("ulimit -Hl" in f.fix for f in found)
