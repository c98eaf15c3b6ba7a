"""The plan and the adapter's start judge one launch by one list: each of its rows is refused by both, or named here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import megamoe_atom.limits
import megamoe_atom.support
import pytest
import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.plan.judge import judge
from megamoe.plan.rules_parallel import FROM_SUPPORT, support_inputs
from megamoe_atom.support import reasons_against
from plan_support import codes, patched, plan

# Row of support.py -> (DEPLOY that breaks it, the plan's code). The last part is said by rules_tokens and rules_env.
BREAKS: dict[str, tuple[dict[str, Any], str]] = {
    "ep_off": ({"args__enable_expert_parallel": False}, "mega_needs_expert_parallel"),
    "dp_attention": ({"args__enable_dp_attention": False}, "mega_needs_dp_attention"),
    "dp": ({"args__tensor_parallel": 1}, "mega_world_size"),
    "ep_size": ({"args__data_parallel": 2}, "mega_world_size"),
    "expert_split": ({"args__tensor_parallel": 5}, "experts_not_divisible"),
    "pcp": ({"args__prefill_context_parallel": 2}, "mega_pcp"),
    "tbo": ({"args__enable_tbo": "all"}, "mega_tbo"),
    "eplb": ({"args__eplb_enable": True}, "mega_eplb"),
    "weight_format": ({"model__weights": "fp8"}, "mega_weights"),
    "arch": ({"gpu__arch": "gfx942"}, "arch"),
    "fixed_slot": (
        {"args__max_num_batched_tokens": 1024, "env__MEGAMOE_WITHOUT_EDITS": "publish_order"},
        "mega_fixed_slot",
    ),
    "swiglu_limit": ({"env__MEGAMOE_WITHOUT_EDITS": "swiglu_limit"}, "mega_swiglu_limit"),
    "mtpr": ({"args__max_num_batched_tokens": 12000}, "tokens_not_power_of_two"),
    "mtpr_too_small": ({"env__ATOM_MEGA_MTPR": "4096"}, "mtpr_differs"),
    "bound_": ({"args__max_num_batched_tokens": 16384}, "tokens_above_int32"),
    "heap_too_small": ({"env__MORI_SHMEM_HEAP_SIZE": "4G"}, "heap_too_small"),
    "heap_mode": ({"env__MORI_SHMEM_MODE": "vmm_heap"}, "heap_mode"),
    "triton_moe": ({"env__ATOM_USE_TRITON_MOE": "1"}, "env_preempts_mega"),
    "triton_moe_decode": ({"env__ATOM_USE_TRITON_MOE_DECODE": "1"}, "env_preempts_mega"),
    "compile_only": ({"env__COMPILE_ONLY": "1"}, "env_forbidden"),
}
ONLY_THE_PROCESS_KNOWS = {
    "mori",
    "visible_gpus",
    "gpu_index",
    "plugin",
    "fused_shared_experts",
    "redundant_experts",
    "expert_count",
    "static_scales",
    "bias",
    "activation",
    "router_weight_on_input",
    "flydsl_version",
    "cu_partition",
    "xcd_swizzle",
    "swiglu_limit",
    "swiglu_sign",
}
# The plan renders the kernels' path, counts each rank as one of data parallelism, and takes shapes from profiles.
NEVER_BROKEN_BY_DEPLOY = {
    "flydsl_path",
    "tp",
    "quant",
    "padding",
    "hidden_multiple",
    "hidden_max",
    "inter_multiple",
    "topk",
}


def rows() -> set[str]:
    """The codes that support.py and limits.py can give, read from their source; of an f-string, its fixed start."""
    found = set()
    for module in (megamoe_atom.support, megamoe_atom.limits):
        for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
            if name in ("refuse", "Reason") and all(not isinstance(a, ast.Name) or a.id != "code" for a in call.args):
                code = call.args[1 if name == "refuse" else 0]
                found.add(code.values[0].value if isinstance(code, ast.JoinedStr) else code.value)
    return found


def adapter_codes(**changes: Any) -> set[str]:
    context = judge(parse_deploy(yaml.safe_dump(patched(**changes))), {}).context
    return {reason.code for reason in reasons_against(support_inputs(context))}


def test_every_row_of_the_adapters_list_has_its_place() -> None:
    assert rows() == set(BREAKS) | ONLY_THE_PROCESS_KNOWS | NEVER_BROKEN_BY_DEPLOY
    assert set(FROM_SUPPORT) <= set(BREAKS)


@pytest.mark.parametrize("row", BREAKS)
def test_the_plan_and_the_start_refuse_the_same_launch(row: str) -> None:
    changes, code = BREAKS[row]
    assert any(found.startswith(row) for found in adapter_codes(**changes))
    outcome = plan(**changes)
    assert code in codes(outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"args__max_num_batched_tokens": 1024},
        {"env__MEGAMOE_WITHOUT_EDITS": "swiglu_limit", "env__MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT": "1"},
        {"env__MEGAMOE_WITHOUT_EDITS": "tile_wait, launch_epoch"},
    ],
    ids=["base", "fixed-slot with the edits", "the limit acknowledged", "edits that no row needs"],
)
def test_the_start_and_the_plan_accept_the_same_launch(changes: dict[str, Any]) -> None:
    assert adapter_codes(**changes) == set()
    assert codes(plan(**changes)) == set()


@pytest.mark.parametrize("profile", ["deepseek-v4-pro", "deepseek-v4-flash"])
def test_no_profile_breaks_a_row_of_shape(profile: str) -> None:
    assert not adapter_codes(model__profile=profile) & NEVER_BROKEN_BY_DEPLOY


def test_a_mistyped_setting_of_the_adapter_is_refused_before_the_start() -> None:
    outcome = plan(env__MEGAMOE_SELFTETS="0")
    assert codes(outcome) == {"env_adapter"}
    assert any("MEGAMOE_SELFTEST" in finding.fix for finding in outcome.findings)
    assert codes(plan(env__MEGAMOE_SELFTEST="maybe")) == {"env_adapter"}
    assert codes(plan(env__MEGAMOE_SELFTEST="0")) == set()
