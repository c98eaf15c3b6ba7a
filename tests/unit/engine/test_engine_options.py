"""What a launch may say, and what is refused before anything is loaded."""

from __future__ import annotations

import pytest
from megamoe_atom.problem import Exit, Problem
from reference_engine.options import parse

MEGA = {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1"}
GOOD = [
    "--model",
    "/m/",
    "-tp",
    "2",
    "--enable-dp-attention",
    "--enable-expert-parallel",
    "--max-num-batched-tokens",
    "512",
]


def test_the_two_variables_together_switch_megamoe_on() -> None:
    assert parse(GOOD, MEGA).mega
    assert not parse(GOOD, {"ATOM_USE_FLYDSL": "1"}).mega
    assert not parse(GOOD, {}).mega


def test_the_standard_backend_wins_over_the_variables() -> None:
    assert not parse([*GOOD, "--moe-backend", "standard"], MEGA).mega


def test_the_served_name_is_the_model_path_without_a_trailing_slash() -> None:
    assert parse(GOOD, {}).served_name == "/m"


def test_flags_of_a_gpu_launch_are_accepted_and_named() -> None:
    options = parse(
        [
            *GOOD,
            "--gpu-memory-utilization",
            "0.85",
            "--enforce-eager",
            "--kv_cache_dtype",
            "fp8",
            "--no-enable_prefix_caching",
        ],
        MEGA,
    )
    assert options.ignored == ("--enforce-eager", "--gpu-memory-utilization")
    assert options.kv_cache_dtype == "fp8" and not options.prefix_caching and options.chunked_prefill


@pytest.mark.parametrize(
    ("argv", "environment", "code"),
    [
        pytest.param([], {}, "usage", id="no model"),
        pytest.param([*GOOD, "--no-such-flag"], {}, "usage", id="unknown flag"),
        pytest.param([*GOOD, "--max-num-batched-tokens", "500"], MEGA, "mtpr", id="budget 500 with MegaMoE"),
        pytest.param([*GOOD, "--max-num-batched-tokens", "0"], {}, "not_positive", id="budget 0"),
        pytest.param(["--model", "/m", "-tp", "2", "--enable-dp-attention"], MEGA, "ep_off", id="expert parallel off"),
        pytest.param(
            ["--model", "/m", "-tp", "2", "--enable-expert-parallel"], MEGA, "dp_attention", id="DP attention off"
        ),
        pytest.param([*GOOD, "-dp", "8"], MEGA, "ep_size", id="16 ranks"),
        pytest.param([*GOOD, "-tp", "9"], {}, "tp_range", id="tp 9"),
        pytest.param([*GOOD, "--enable-tbo"], {}, "flag_unsupported", id="two-batch overlap"),
        pytest.param([*GOOD, "--server-port", "70000"], {}, "port_range", id="port 70000"),
        pytest.param(GOOD, {**MEGA, "MEGAMOE_REHEARSAL_FAULT": "typo"}, "fault_unknown", id="unknown fault"),
        pytest.param(
            GOOD, {"MEGAMOE_REHEARSAL_FAULT": "expert_zeroed"}, "fault_needs_mega", id="expert fault without experts"
        ),
        pytest.param(GOOD, {**MEGA, "MEGAMOE_SELFTEST": "maybe"}, "env_switch", id="self-test maybe"),
        pytest.param(GOOD, {**MEGA, "MEGAMOE_SELFTETS": "0"}, "env_unknown", id="a mistyped setting"),
    ],
)
def test_a_bad_launch_is_refused_with_a_fix(argv: list[str], environment: dict[str, str], code: str) -> None:
    with pytest.raises(Problem) as caught:
        parse(argv, environment)
    assert code in [reason.code for reason in caught.value.reasons]
    assert caught.value.exit_code is Exit.REFUSED
    assert all(reason.what and reason.why and reason.fix for reason in caught.value.reasons)


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(Problem) as caught:
        parse(["--model", "/m", "-tp", "2", "--max-num-batched-tokens", "500"], MEGA)
    assert {r.code for r in caught.value.reasons} == {"ep_off", "dp_attention", "mtpr"}


def test_a_budget_that_is_no_power_of_two_is_fine_without_megamoe() -> None:
    assert parse([*GOOD, "--max-num-batched-tokens", "500"], {}).max_num_batched_tokens == 500
