"""Every reason against a launch: its code on the bad side, silence on the good side, all of them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from megamoe_atom.support import ANY_LAYER, FLYDSL_VERSIONS, SupportInputs, reasons_against

GOOD = SupportInputs()

# code -> (what breaks it, its nearest value that may run)
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ep_off": ({"ep_enabled": False}, {"ep_enabled": True}),
    "tp": ({"tp_size": 2}, {"tp_size": 1}),
    "dp": ({"dp_size": 1}, {"dp_size": 2}),
    "dp_attention": ({"dp_attention": False}, {"dp_attention": True}),
    "pcp": ({"pcp_size": 2}, {"pcp_size": 1}),
    "ep_size": ({"ep_size": 16, "visible_gpus": 16}, {"ep_size": 8}),
    "gpu_index": ({"ep_rank": 3, "gpu_index": 0}, {"ep_rank": 3, "gpu_index": 3}),
    "visible_gpus": ({"visible_gpus": 7}, {"visible_gpus": 8}),
    "mori": ({"mori_available": False}, {"mori_available": True}),
    "heap_mode": ({"shmem_mode": "vmm"}, {"shmem_mode": "static"}),
    "tbo": ({"tbo": True}, {"tbo": False}),
    "eplb": ({"eplb": True}, {"eplb": False}),
    "redundant_experts": ({"redundant_experts": 8}, {"redundant_experts": 0}),
    "fused_shared_experts": ({"fused_shared_experts": 1}, {"fused_shared_experts": 0}),
    "plugin": ({"plugin_mode": "vllm"}, {"plugin_mode": None}),
    "triton_moe": ({"triton_moe": True}, {"triton_moe": False}),
    "triton_moe_decode": ({"triton_moe_decode": True}, {"triton_moe_decode": False}),
    "expert_count": ({"local_experts": 49}, {"local_experts": 48}),
    "static_scales": ({"static_input_scales": True}, {"static_input_scales": False}),
    "bias": ({"bias": True}, {"bias": False}),
    "activation": ({"activation": "gelu"}, {"activation": "SiLU"}),
    "router_weight_on_input": ({"router_weight_on_input": True}, {"router_weight_on_input": False}),
    "weight_format": ({"weight_format": "fp8"}, {"weight_format": "mxfp4"}),
    "quant": ({"quant": "a4w4"}, {"quant": "a8w4"}),
    "swiglu_limit": (
        {"kernel_has_swiglu_limit": False},
        {"kernel_has_swiglu_limit": False, "accept_no_swiglu_limit": True},
    ),
    "swiglu_sign": ({"swiglu_limit": -10.0}, {"swiglu_limit": 0.0}),
    "padding": ({"padded_hidden": 7424}, {"padded_hidden": 7168}),
    "hidden_multiple": ({"hidden": 6912, "padded_hidden": 6912}, {"hidden": 6656, "padded_hidden": 6656}),
    "hidden_max": (
        {"hidden": 9216, "padded_hidden": 9216, "heap_bytes": 2**34},
        {"hidden": 8192, "padded_hidden": 8192},
    ),
    "inter_multiple": ({"inter": 2944, "padded_inter": 2944}, {"inter": 2816, "padded_inter": 2816}),
    "topk": ({"topk": 65, "mtpr": 2048, "max_num_batched_tokens": 2048, "heap_bytes": 2**36}, {"topk": 8}),
    "expert_split": ({"experts": 385}, {"experts": 392}),
    "mtpr": ({"mtpr": 8191, "max_num_batched_tokens": 8191}, {"mtpr": 4096, "max_num_batched_tokens": 4096}),
    "mtpr_too_small": ({"max_num_batched_tokens": 8193}, {"max_num_batched_tokens": 8000}),
    # 4,480,715,776 of MegaMoE and 1,024 of mori itself
    "heap_too_small": ({"heap_bytes": 4_480_716_799}, {"heap_bytes": 4_480_716_800}),
    "bound_L1": ({"mtpr": 16384, "heap_bytes": 2**34}, {"mtpr": 8192}),
    "fixed_slot": (
        {"mtpr": 1024, "max_num_batched_tokens": 1024},
        {"mtpr": 1024, "max_num_batched_tokens": 1024, "fixed_slot_race_closed": True},
    ),
    "arch": ({"arch": "gfx942"}, {"arch": "gfx950"}),
    "flydsl_version": ({"flydsl_version": "0.3.0"}, {"flydsl_version": "0.2.2"}),
    "cu_partition": ({"cu_count": 32}, {"cu_count": 256}),
    "xcd_swizzle": ({"cu_count": 228}, {"cu_count": 256}),
    "compile_only": ({"compile_only": True}, {"compile_only": False}),
    "flydsl_path": ({"kernels_path_given": False}, {"kernels_path_given": True}),
}


def codes(**changes: Any) -> list[str]:
    return [r.code for r in reasons_against(replace(GOOD, **changes))]


def test_deepseek_v4_pro_on_eight_mi355x_may_run() -> None:
    assert reasons_against(GOOD) == []


@pytest.mark.parametrize("code", SIDES)
def test_each_reason_is_given_on_its_bad_side(code: str) -> None:
    assert code in codes(**SIDES[code][0])


@pytest.mark.parametrize("code", SIDES)
def test_each_reason_is_silent_on_its_good_side(code: str) -> None:
    good = SIDES[code][1]
    if code == "topk":
        good = good | {"heap_bytes": 2**34, "mtpr": 4096, "max_num_batched_tokens": 4096}
    if code == "hidden_max":
        good = good | {"heap_bytes": 2**34}
    if code == "expert_split":
        good = good | {"heap_bytes": 2**34}
    assert codes(**good) == []


@pytest.mark.parametrize("version", FLYDSL_VERSIONS)
def test_each_proven_flydsl_version_may_run(version: str) -> None:
    assert codes(flydsl_version=version) == []


@pytest.mark.parametrize("version", ["0.2.1", "0.3.0", "0.3.4.1", "", "0.2.4rc1"])
def test_any_other_flydsl_version_is_refused(version: str) -> None:
    assert codes(flydsl_version=version) == ["flydsl_version"]


def test_all_reasons_that_can_hold_at_once_are_shown_together() -> None:
    everything: dict[str, Any] = {}
    exclusive = {
        "mtpr",
        "expert_split",
        "ep_size",
        "hidden_multiple",
        "fixed_slot",
        "topk",
        "bound_L1",
        "quant",
        "cu_partition",
        "swiglu_sign",
    }
    for code, (bad, _) in SIDES.items():
        if code not in exclusive:
            everything |= bad
    everything |= {"heap_bytes": 1, "padded_hidden": 9728}
    found = codes(**everything)
    assert set(SIDES) - exclusive <= set(found)


@pytest.mark.parametrize("code", SIDES)
def test_each_reason_says_what_why_and_how_to_fix_it(code: str) -> None:
    (reason,) = [r for r in reasons_against(replace(GOOD, **SIDES[code][0])) if r.code == code]
    assert all(len(text) >= 9 for text in (reason.what, reason.why, reason.fix))


@pytest.mark.parametrize("mode", ["isolation", "vmm"])
def test_a_heap_without_peer_pointers_is_refused_by_its_name(mode: str) -> None:
    (reason,) = reasons_against(replace(GOOD, shmem_mode=mode))
    assert reason.code == "heap_mode"
    assert mode in reason.what


def test_the_layer_that_fits_anywhere_fits() -> None:
    assert reasons_against(ANY_LAYER) == []
    assert [r.code for r in reasons_against(replace(ANY_LAYER, mtpr=2**16, max_num_batched_tokens=2**16))] == []


def test_the_swiglu_message_quotes_both_measured_accuracies() -> None:
    (reason,) = reasons_against(replace(GOOD, kernel_has_swiglu_limit=False))
    assert "0.9424" in reason.why
    assert "0.9522" in reason.why
    assert "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT" in reason.fix


def test_a_model_without_a_limit_needs_no_acknowledgement() -> None:
    assert codes(swiglu_limit=0.0, kernel_has_swiglu_limit=False) == []


@pytest.mark.parametrize("nonsense", [{"ep_size": 0}, {"topk": 0}, {"mtpr": 0}, {"hidden": 0, "padded_hidden": 0}])
def test_nonsense_sizes_are_refused_without_a_traceback(nonsense: dict[str, Any]) -> None:
    assert isinstance(reasons_against(replace(GOOD, **nonsense)), list)
