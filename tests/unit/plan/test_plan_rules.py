"""Every reason of `plan`, with a twin that must be accepted."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from megamoe.deploy.load import parse_deploy
from megamoe.deploy.sizes import mori_bytes, mori_bytes_as_parsed
from megamoe.plan.fit import fit_outcome
from megamoe.plan.judge import outcome_of
from megamoe_atom.problem import Exit, Problem
from plan_support import DROP, codes, patched, plan


def test_the_base_plan_is_accepted_without_a_warning() -> None:
    outcome = plan()
    assert outcome.status == "pass", outcome.findings
    env = outcome.data["env"]
    assert env["ATOM_USE_FLYDSL"] == env["ATOM_USE_FLYDSL_FUSED"] == "1"
    assert env["ATOM_FLYDSL_KERNELS_PATH"] == "/opt/megamoe/flydsl"
    assert env["MORI_SHMEM_HEAP_SIZE"] == str(16 << 30)


REFUSED = [
    ({"args__enable_expert_parallel": False}, "mega_needs_expert_parallel"),
    ({"args__enable_dp_attention": False}, "mega_needs_dp_attention"),
    ({"args__max_num_batched_tokens": 12000}, "tokens_not_power_of_two"),
    ({"args__max_num_batched_tokens": 16384}, "tokens_above_int32"),
    ({"args__max_num_batched_tokens": DROP}, "tokens_not_given"),
    ({"args__max_num_seqs": DROP}, "seqs_not_given"),
    ({"args__max_num_seqs": 512, "args__max_num_batched_tokens": 256}, "seqs_above_tokens"),
    ({"args__enable_tbo": "prefill"}, "mega_tbo"),
    ({"args__eplb_enable": True}, "mega_eplb"),
    ({"args__prefill_context_parallel": 2}, "mega_pcp"),
    ({"args__data_parallel": 2}, "mega_world_size"),
    ({"args__tensor_parallel": 5}, "experts_not_divisible"),
    ({"args__online_quant_config": {"global_quant_config": "mxfp4"}}, "mega_online_quant"),
    ({"gpu__arch": "gfx942"}, "arch"),
    ({"gpu__count": 4}, "too_few_gpus"),
    ({"model__weights": "fp8"}, "mega_weights"),
    ({"model__profile": "deepseek-v4-prod"}, "profile_unknown"),
    ({"model__path": "deepseek-ai/DeepSeek-V4-Pro"}, "path_not_absolute"),
    ({"env__ATOM_MOE_GU_ITLV": DROP}, "env_contract_missing"),
    ({"env__AITER_BF16_FP8_MOE_BOUND": "256"}, "env_contract"),
    ({"env__MORI_SHMEM_MODE": "ISOLATION"}, "heap_mode"),
    ({"env__MORI_SHMEM_MODE": "vmm_heap"}, "heap_mode"),
    ({"env__MORI_SHMEM_HEAP_SIZE": "16Gi"}, "heap_size_malformed"),
    ({"env__MORI_SHMEM_HEAP_SIZE": "1.5G"}, "heap_size_malformed"),
    ({"env__MORI_SHMEM_HEAP_SIZE": "4G"}, "heap_too_small"),
    ({"env__MORI_SHMEM_HEAP_SIZE": DROP}, "heap_not_given"),
    ({"env__MORI_SHMEM_HEAP_SIZE": "40G", "args__gpu_memory_utilization": 0.9}, "memory_over_card"),
    ({"args__gpu_memory_utilization": 0.45}, "weights_over_share"),
    ({"env__ATOM_USE_FLYDSL": "0"}, "env_contradicts_backend"),
    ({"env__ATOM_USE_TRITON_MOE": "1"}, "env_preempts_mega"),
    ({"env__ATOM_MEGA_MTPR": "4096"}, "mtpr_differs"),
    ({"env__HIP_VISIBLE_DEVICES": "0,1,2,3"}, "visible_devices"),
    ({"env__HF_TOKEN": "hf_canary"}, "env_secret"),
    ({"image": "registry.example/serve/moe:latest"}, "image_not_pinned"),
    ({"image": "registry.example/serve/moe:v1@sha256:" + "1" * 64}, "image_tag_and_digest"),
    ({"container__engine": "podman", "container__shm_size": "64g"}, "podman_ipc_host_shm_size"),
    ({"container__ipc": "private"}, "shm_default_64m"),
    ({"container__init": False}, "init_off"),
    ({"container__stop_timeout": 10}, "stop_timeout_short"),
    ({"container__devices": ["/dev/dri"]}, "device_missing"),
    ({"container__group_add": ["keep-groups"]}, "keep_groups_docker"),
    ({"container__user": "moe"}, "user_not_numeric"),
    ({"container__ports": ["8000:8000"]}, "ports_with_host"),
    ({"container__volumes": ["/c:/root/.cache/atom"]}, "cache_not_keyed"),
    ({"args__port": 8006}, "port_taken"),
    ({"env__AITER_ONLINE_TUNE": "1"}, "env_online_tuning"),
    ({"env__SGLANG_MEGA_DECODE_MTPR": "128"}, "env_dual_capacity"),
    ({"env__MORI_EP_FIXED_SLOT": "true"}, "env_dual_capacity"),
    ({"env__ATOM_FAKE_EPLB": "1"}, "env_fake_routing"),
    ({"env__MOE_FORCE_LOAD_BALANCE": "1"}, "env_fake_routing"),
    ({"env__MORI_MAX_INPUT_TOKENS": "64"}, "env_truncates"),
    ({"args__eplb_config": {"placement": [[0, 0]]}}, "eplb_key"),
    ({"args__eplb_config": {"rebalance_interval": 10}}, "eplb_value"),
    ({"args__eplb_config": {"num_redundant_experts": -1}}, "eplb_value"),
    ({"args__eplb_config": {"num_redundant_experts": 3}}, "eplb_slots"),
    ({"container__volumes": ["/srv/patch:/app/ATOM"]}, "volume_over_code"),
    ({"container__volumes": ["/p/x.py:/usr/lib/python3.12/dist-packages/aiter/x.py:ro"]}, "volume_over_code"),
    ({"container__volumes": ["/c:/root/.triton/cache"]}, "cache_not_keyed"),
    ({"container__volumes": ["/:/host"]}, "host_root_mounted"),
    ({"container__volumes": ["/srv/a:/data", "/srv/b:/data/"]}, "volume_twice"),
    ({"container__volumes": ["/srv/c:/var/cache/megamoe"], "container__cache_dir": "/srv/own"}, "volume_twice"),
    ({"container__tmpfs": ["/run/megamoe/status:uid=10001"]}, "volume_twice"),
    ({"container__tmpfs": ["/data/"], "container__volumes": ["/srv/a:/data"]}, "volume_twice"),
    ({"container__tmpfs": ["/tmp:size=1g", "/tmp"]}, "volume_twice"),
    ({"container__tmpfs": ["tmp"]}, "tmpfs_malformed"),
    ({"container__tmpfs": ["/:size=1g"]}, "tmpfs_malformed"),
    ({"container__tmpfs": ["/app/ATOM"]}, "volume_over_code"),
    ({"container__tmpfs": ["/usr"]}, "volume_over_code"),
    ({"container__tmpfs": ["/etc:size=1m"]}, "volume_over_code"),
    (
        {"container__engine": "podman", "container__ipc": "container:x", "container__shm_size": "1g"},
        "podman_ipc_host_shm_size",
    ),
    ({"container__network_mode": "container:x", "container__ports": ["8000:8000"]}, "ports_with_host"),
]
# (a, b): what a changes takes away what b needs. A changed layout has other sums, an unknown profile no contract.
TAKES_AWAY = {
    *(
        (a, "weights_over_share")
        for a in ("mega_needs_dp_attention", "mega_pcp", "mega_world_size", "experts_not_divisible", "profile_unknown")
    ),
    *((a, "heap_too_small") for a in ("seqs_above_tokens", "experts_not_divisible", "profile_unknown")),
    *((a, "memory_over_card") for a in ("experts_not_divisible",)),
    *(
        ("profile_unknown", b)
        for b in ("tokens_above_int32", "experts_not_divisible", "env_contract", "env_contract_missing", "eplb_slots")
    ),
    ("experts_not_divisible", "tokens_above_int32"),
    ("experts_not_divisible", "eplb_slots"),
    ("mega_world_size", "eplb_slots"),
    ("tokens_not_given", "mtpr_differs"),
    ("podman_ipc_host_shm_size", "shm_default_64m"),
    ("podman_ipc_host_shm_size", "keep_groups_docker"),
    ("shm_default_64m", "podman_ipc_host_shm_size"),
}


@pytest.mark.parametrize(("changes", "code"), REFUSED, ids=[f"{c} {i}" for i, (_, c) in enumerate(REFUSED)])
def test_a_plan_that_cannot_work_is_refused_with_its_reason(changes: dict[str, Any], code: str) -> None:
    outcome = plan(**changes)
    assert (outcome.status, outcome.exit_code) == ("refused", Exit.REFUSED)
    assert code in codes(outcome)
    assert "hf_canary" not in str(outcome)


ACCEPTED = [
    {"args__enable_expert_parallel": False, "args__moe_backend": "standard"},
    {"args__max_num_batched_tokens": 12000, "args__moe_backend": "standard"},
    {"args__max_num_batched_tokens": 4096},
    {"env__MORI_SHMEM_MODE": "static_heap"},
    {"env__MORI_SHMEM_HEAP_SIZE": "17179869184"},
    {"env__MORI_SHMEM_HEAP_SIZE": 17179869184},
    {"env__MORI_SHMEM_HEAP_SIZE": "16GiB"},
    {"env__MORI_SHMEM_HEAP_SIZE": "8g"},
    {"env__MORI_SHMEM_HEAP_SIZE": "16G", "args__gpu_memory_utilization": 0.85},
    {"container__ipc": "private", "container__shm_size": "64g"},
    {"container__engine": "podman"},
    {"container__engine": "podman", "container__rootless": True, "container__group_add": ["keep-groups"]},
    {"container__cache_dir": "/var/cache/moe"},
    {"image": "sha256:" + "1" * 64},
    {"env__AITER_ONLINE_TUNE": "0", "env__FLYDSL_AUTOTUNE_CACHE_DIR": "/var/cache/megamoe/tune"},
    {"env__MORI_MAX_INPUT_TOKENS": "65536"},
    {
        "args__moe_backend": "standard",
        "args__eplb_enable": True,
        "args__eplb_config": {"num_redundant_experts": 8, "placement_policy": "biased"},
    },
    {"container__volumes": ["/srv/prompts:/data/prompts:ro", "/c/" + "1" * 64 + ":/root/.triton/cache"]},
    {"container__ipc": "private", "container__tmpfs": ["/dev/shm:size=64g"]},
    {"container__tmpfs": ["/tmp:size=64m", "/run"], "container__volumes": ["/srv/prompts:/tmp/prompts:ro"]},
    {"args__moe_backend": "standard", "args__max_num_batched_tokens": 16384},
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_the_twin_is_accepted(changes: dict[str, Any]) -> None:
    outcome = plan(**changes)
    assert outcome.exit_code is Exit.PASS, [f.what for f in outcome.findings]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(REFUSED), unique_by=lambda entry: str(entry[0]), min_size=2, max_size=12))
def test_all_reasons_appear_whatever_their_combination(entries: list[tuple[dict[str, Any], str]]) -> None:
    merged: dict[str, Any] = {}
    wanted: set[str] = set()
    for changes, code in entries:
        if not changes.keys() & merged.keys():
            merged |= changes
            wanted.add(code)
    wanted -= {hidden for taker, hidden in TAKES_AWAY if taker in wanted}
    assert wanted <= codes(plan(**merged))


def test_a_fault_of_form_does_not_hide_the_other_reasons() -> None:
    raw = patched(args__tensor_parallel="8", container__init=False)
    raw["args"]["max_num_bached_tokens"] = 1
    outcome = outcome_of(parse_deploy(yaml.safe_dump(raw)), {})
    assert {"deploy_value", "deploy_key_unknown", "init_off"} <= codes(outcome)
    assert any("args.max_num_batched_tokens?" in f.fix for f in outcome.findings)
    assert "mega_world_size" not in codes(outcome)


def test_docker_with_host_ipc_warns_and_renders_no_shm_size() -> None:
    outcome = plan(container__shm_size="64g")
    assert outcome.status == "warn" and codes(outcome, "warn") == {"shm_size_no_effect"}
    assert outcome.data["container"]["shm_size"] is None
    assert "shm" not in outcome.data["docker_run"] and "shm_size" not in outcome.data["compose"]


def test_facts_turn_groups_into_numbers_and_names_never_reach_the_engine() -> None:
    facts = {
        "host": {
            "groups": {"video": 44, "render": 992},
            "dev": {"/dev/kfd": {"gid": 992}, "/dev/dri/renderD128": {"gid": 992}},
        }
    }
    with_facts = plan(facts, container__group_add=["video", "render"]).data
    assert with_facts["container"]["group_add"] == ["44", "992"]
    without = plan().data
    assert without["container"]["group_add"] == []
    assert '"$(stat -c %g /dev/kfd)"' in without["docker_run"]
    assert with_facts["plan_hash"] != "" and plan(facts).data["plan_hash"] == without["plan_hash"]


def test_the_run_line_is_shell_quoted_and_the_compose_file_says_the_same() -> None:
    data = plan(env__NOTE="a b'$(c)").data
    words = shlex.split(data["docker_run"].replace("\\\n", ""))
    assert "NOTE=a b'$(c)" in words
    tail = words[words.index(data["container"]["image"]) + 1 :]
    assert tail == data["container"]["command"]
    service = yaml.safe_load(data["compose"])["services"]["moe"]
    assert service["command"] == data["container"]["command"]
    assert service["environment"]["NOTE"] == "a b'$$(c)"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        p
        for p in REFUSED
        if p[1]
        not in {
            "image_not_pinned",
            "image_tag_and_digest",
            "profile_unknown",
            "path_not_absolute",
            "weights_over_share",
            "env_secret",
            "user_not_numeric",
            "cache_not_keyed",
            "volume_over_code",
            "volume_twice",
            "tmpfs_malformed",
            "host_root_mounted",
        }
    ],
    ids=str,
)
def test_fit_finds_a_plan_that_the_same_rules_accept(changes: dict[str, Any], code: str) -> None:
    outcome = fit_outcome(parse_deploy(yaml.safe_dump(patched(**changes))), {})
    assert outcome.exit_code is Exit.PASS, (outcome.summary, outcome.findings)
    assert outcome.data["changes"] or code == "experts_not_divisible"
    assert outcome_of(parse_deploy(json.dumps(outcome.data["deploy"])), {}).exit_code is Exit.PASS


@pytest.mark.parametrize(
    ("text", "meant", "read"),
    [
        ("16G", 16 << 30, 16 << 30),
        ("16GB", 16 << 30, 16 << 30),
        ("16GiB", 16 << 30, 16 << 30),
        ("16g", 16 << 30, 16 << 30),
        ("16Gi", None, 16),
        ("16T", None, 16),
        ("1e10", None, 1),
        ("1.5G", None, 1 << 30),
        ("", None, 0),
        ("G", None, None),
    ],
)
def test_sizes_are_read_as_mori_reads_them(text: str, meant: int | None, read: int | None) -> None:
    assert (mori_bytes(text), mori_bytes_as_parsed(text)) == (meant, read)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    key=st.sampled_from(
        [(s, k) for s, v in patched().items() if isinstance(v, dict) for k in v] + [(s, None) for s in patched()]
    ),
    value=_VALUES,
)
@example(key=("gpu", "vram_gib"), value=8.2e-127)  # not zero, and less than a byte
def test_no_value_of_any_key_gives_a_traceback(key: tuple[str, str | None], value: Any) -> None:
    raw = patched()
    if key[1] is None:
        raw[key[0]] = value
    else:
        raw[key[0]][key[1]] = value
    try:
        outcome_of(parse_deploy(yaml.safe_dump(raw, allow_unicode=True)), {"host": value})
    except Problem as problem:
        assert problem.exit_code is Exit.REFUSED


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | st.integers(0, 900).map(lambda n: yaml.safe_dump(patched())[:n]))
def test_no_text_gives_a_traceback(text: str) -> None:
    try:
        outcome_of(parse_deploy(text), {})
    except Problem as problem:
        assert problem.exit_code is Exit.REFUSED


@pytest.mark.parametrize(("path", "words"), [
    ("models/demo", "relative"), ("/", "whole host"), ("/models/../etc", "'..'"), ("/models/a:b", "':'"),
    ("/models/a,ro", "','"), ("/models/demo ", "blanks"), ("/models/de\x1bmo", "control"),
])  # fmt: skip
def test_a_path_that_cannot_be_mounted_says_which_of_its_parts_is_wrong(path: str, words: str) -> None:
    found = [f for f in plan(model__path=path).findings if f.code == "path_not_absolute"]
    assert len(found) == 1 and words in found[0].why
    assert not plan(model__path="/models/demo moe-4.1_x").findings  # a blank inside is quoted


@pytest.mark.parametrize(("changes", "code"), [
    ({"host": "a\nPASS: all good"}, "deploy_value"),
    ({"container__labels": {"team": "a\x1b[31m"}}, "deploy_value"),
    ({"container__labels": {"a\x9b": "b"}}, "deploy_value"),
    ({"container__tmpfs": ["/tmp:size=1g\r"]}, "deploy_value"),
    ({"env__NOTE": "a\x1b[31m"}, "env_value"),
    ({"env__NOTE": "a\nb"}, "env_value"),
])  # fmt: skip
def test_a_value_that_a_terminal_would_act_on_is_refused_once(changes: dict[str, Any], code: str) -> None:
    assert [f.code for f in plan(**changes).findings if f.severity == "error"] == [code]


def test_text_of_any_language_is_no_control_character() -> None:
    assert not plan(host="knoten-ä", container__labels={"équipe": "日本 → x"}, env__NOTE="ü 中").findings


def test_podmans_health_checks_are_rendered_alike_and_said_to_need_systemd() -> None:
    docker, podman = plan(), plan(container__engine="podman")
    assert [f.severity for f in podman.findings if f.code == "podman_health_timer"] == ["info"]
    assert podman.status == "pass" and "podman_health_timer" not in codes(docker)
    lines = [[x for x in o.data["docker_run"].splitlines() if "--health" in x] for o in (docker, podman)]
    assert len(lines[0]) == 5 and lines[0] == lines[1]
    assert podman.data["docker_run"].startswith("mkdir -p ") and "podman run" in podman.data["docker_run"]
