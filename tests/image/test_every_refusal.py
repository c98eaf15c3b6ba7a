"""Every refusal of `serve` is sprung: here, or in test_launch where it takes more than flags and environment."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import megamoe.cli
import pytest
from launch_support import codes
from megamoe.image import launch
from megamoe.plan.rules_parallel import FROM_SUPPORT
from megamoe_atom.problem import Exit

TESTS = Path(__file__).parent
STANDARD = {"ATOM_USE_FLYDSL": None, "ATOM_USE_FLYDSL_FUSED": None}


@dataclass(frozen=True, slots=True)
class Row:
    """The validated launch with flags added, flags (and their values) taken away, and variables set or unset."""

    code: str
    why: str
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    env: dict[str, str | None] = field(default_factory=dict)


def tokens(count: int) -> tuple[str, ...]:
    return ("--max-num-batched-tokens", str(count))


REFUSED = (
    # ---- environment
    Row("env_forbidden", "every launch would compile and not run", env={"COMPILE_ONLY": "1"}),
    Row("env_forbidden", "attention would return zeros", env={"ATOM_V4_BYPASS_ATTN": "1"}),
    Row("heap_mode", "a heap mode inherited from another recipe", env={"MORI_SHMEM_MODE": "ISOLATION"}),
    Row("heap_mode", "the mode that mori's documentation misspells", env={"MORI_SHMEM_MODE": "static"}),
    Row("heap_too_small", "a heap that the buffers do not fit in", env={"MORI_SHMEM_HEAP_SIZE": "1G"}),
    Row("memory_over_card", "a heap that does not fit on the card", env={"MORI_SHMEM_HEAP_SIZE": "120G"}),
    Row("heap_size_malformed", "a heap that mori misreads", env={"MORI_SHMEM_HEAP_SIZE": "5,5G"}),
    Row("heap_not_given", "no heap", env={"MORI_SHMEM_HEAP_SIZE": None}),
    Row("env_contract_missing", "the model's contract is broken", env={"ATOM_MOE_GU_ITLV": None}),
    Row("env_contract", "the contract says the opposite", env={"AITER_BF16_FP8_MOE_BOUND": "512"}),
    Row("env_gfx_override", "another architecture is pretended", env={"HSA_OVERRIDE_GFX_VERSION": "9.4.2"}),
    Row("visible_devices", "fewer GPUs than ranks", env={"HIP_VISIBLE_DEVICES": "0,1"}),
    Row("visible_devices", "GPUs in another order", env={"ROCR_VISIBLE_DEVICES": "1,0,2,3,4,5,6,7"}),
    Row("env_preempts_mega", "another MoE path is taken first", env={"ATOM_USE_TRITON_MOE": "1"}),
    Row("env_contradicts_backend", "half of the fused path", env={"ATOM_USE_FLYDSL_FUSED": "0"}),
    Row("kernels_path", "kernels of a relative path", env={"ATOM_FLYDSL_KERNELS_PATH": "flydsl"}),
    Row("env_adapter", "a switch that is neither on nor off", env={"MEGAMOE_SELFTEST": "maybe"}),
    Row("env_adapter", "a setting that nothing reads", env={"MEGAMOE_SELFTESTS": "0"}),
    Row("env_dual_capacity", "a second capacity", env={"SGLANG_MORI_DECODE_MTPR": "128"}),
    Row("env_fake_routing", "routing made up for speed", env={"FORCE_EXPERT_BALANCE": "1"}),
    Row("env_online_tuning", "tuning while serving", env={"AITER_ONLINE_TUNE": "1"}),
    Row("env_truncates", "rows beyond it would be dropped", env={"MORI_MAX_RECV_TOKENS": "1024"}),
    Row("env_secret", "a secret that anyone can read", env={"ATOM_API_KEY": "abc"}),
    Row("env_name", "a name that no program can read", env={"ATOM_USE-X": "1"}),
    Row("env_value", "two lines", env={"ATOM_LOG": "a\nb"}),
    Row("mtpr_differs", "another capacity than the tokens", env={"ATOM_MEGA_MTPR": "4096"}),
    Row("mega_swiglu_limit", "kernels without the limit", env={"MEGAMOE_WITHOUT_EDITS": "swiglu_limit"}),
    Row("mega_fixed_slot", "kernels with the race", tokens(64), env={"MEGAMOE_WITHOUT_EDITS": "publish_order"}),
    Row("profile_engine", "a profile of another engine", env={"MEGAMOE_PROFILE": "rehearsal"}),
    # ---- flags
    Row("tokens_above_int32", "32-bit offsets overflow", tokens(16384)),
    Row("tokens_not_power_of_two", "no power of two", tokens(6000)),
    Row("tokens_not_given", "the engine's default would be taken", drop=("--max-num-batched-tokens",)),
    Row("seqs_not_given", "the engine's default would be taken", drop=("--max-num-seqs",)),
    Row("seqs_too_many", "runs out of memory at start", ("--max-num-seqs", "4096")),
    Row("seqs_above_tokens", "a decode step that does not fit", ("--max-num-seqs", "1024", *tokens(512))),
    Row("graph_size", "a graph that does not fit", ("--cudagraph-capture-sizes", "[16384]")),
    Row("mori_dispatch_small", "mori writes out of bounds", tokens(128), env=STANDARD),
    Row("mega_dummy_routing", "dummy weights", ("--load_dummy",)),
    Row("mega_tbo", "two-batch overlap", ("--enable-tbo",)),
    Row("mega_eplb", "expert balancing", ("--eplb-enable",)),
    Row("eplb_key", "a key of no such name", ("--eplb-enable", "--eplb-config", '{"windw": 1}'), env=STANDARD),
    Row("eplb_value", "below the least value", ("--eplb-enable", "--eplb-config", '{"load_window_size": 0}')),
    Row("eplb_slots", "slots that do not divide", ("--eplb-enable", "--eplb-config", '{"num_redundant_experts": 3}')),
    Row("mega_all2all", "another operator of the same heap", ("--all2all-backend", "low-latency")),
    Row("mega_online_quant", "weights quantised again", ("--online_quant_config", '{"a": 1}')),
    Row("mega_pcp", "tokens replicated", ("-pcp", "2")),
    Row("mega_world_size", "one rank", ("-tp", "1")),
    Row("mega_needs_dp_attention", "tensor-parallel attention", drop=("--enable-dp-attention",)),
    Row("mega_needs_expert_parallel", "experts on every rank", drop=("--enable-expert-parallel",)),
    Row("experts_not_divisible", "seven ranks", ("-tp", "7")),
    Row("heads_not_divisible", "attention heads over six ranks", ("-tp", "6", "--moe-backend", "standard"),
        drop=("--enable-dp-attention",), env=STANDARD),
    Row("tensor_parallel_range", "sixteen ranks", ("-tp", "16")),
    Row("too_few_gpus", "sixteen ranks", ("-dp", "2")),
    Row("dp_attention_pcp", "a pair that ATOM rejects", ("-pcp", "2"), env=STANDARD),
    Row("dp_without_dp_attention", "an expert group of one", ("-dp", "2"), ("--enable-dp-attention",), STANDARD),
    Row("draft_model_missing", "no draft model", ("--method", "eagle3")),
    Row("mtp_tokens", "more than ATOM allows", ("--method", "mtp", "--num-speculative-tokens", "5")),
    Row("weights_over_share", "no room for KV", ("--gpu-memory-utilization", "0.3")),
    Row("flag_value", "not a number", ("--max-num-seqs", "many")),
    Row("flag_value", "out of range", ("--gpu-memory-utilization", "1.5")),
    Row("flag_value", "no such type", ("--kv-cache-dtype=fp5",)),
    Row("flag_without_value", "a value was forgotten", ("--port",)),
)
ELSEWHERE = {
    "arch", "device_error", "device_group", "device_missing", "file_drift", "file_unreadable", "gpu_none",
    "model_missing", "model_not_given", "not_writable", "package_added", "package_drift", "profile_not_found",
    "profile_unknown", "shm_small", "stack_lock_unreadable", "stand_in_image",
}  # fmt: skip
"""Need a damaged container, and are sprung in test_launch."""
NEVER = {
    "mega_weights": "the entrypoint takes the weights' format from the profile; `megamoe verify-model` reads shards",
}


@pytest.mark.parametrize("row", REFUSED, ids=[f"{row.code}: {row.why}" for row in REFUSED])
def test_a_launch_that_must_not_serve_is_refused_by_its_code(box: SimpleNamespace, row: Row) -> None:
    for flag in row.drop:
        at = box.flags.index(flag)
        takes_value = not box.flags[at + 1].startswith("-")
        del box.flags[at : at + 1 + takes_value]
    box.flags += row.add
    box.env = {name: value for name, value in (box.env | row.env).items() if value is not None}
    assert row.code in codes(box)
    assert launch.outcome(box.flags, box.env, box.root).exit_code is Exit.REFUSED


def refusals() -> set[str]:
    """Codes of errors in the source of the rules that `serve` applies, and of what it judges by itself."""
    root = Path(megamoe.cli.__file__).parent
    rules = {inspect.getsourcefile(rule) for rule in launch._RULES}
    own = ("image/launch.py", "image/arguments.py", "version/identity.py", "deploy/profiles.py")
    text = "".join(Path(str(path)).read_text() for path in rules | {root / name for name in own})
    found = set(re.findall(r'\b(?:refuse|make|_error|Problem)\(\s*"([a-z0-9_]+)"', text))
    found |= set(re.findall(r'Finding\(\s*"([a-z0-9_]+)",\s*"error"', text)) | {t.code for t in FROM_SUPPORT.values()}
    return found - {"watch_missing"}  # of `megamoe version --record`, when the image is built


def test_no_refusal_is_without_its_test() -> None:
    sprung = {row.code for row in REFUSED}
    assert not sprung & (ELSEWHERE | set(NEVER)) and not ELSEWHERE & set(NEVER)
    assert refusals() == sprung | ELSEWHERE | set(NEVER)
    text = (TESTS / "test_launch.py").read_text()
    assert [code for code in sorted(ELSEWHERE) if f'"{code}"' not in text] == []
