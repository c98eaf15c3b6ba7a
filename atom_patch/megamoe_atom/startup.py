"""Makes the process's runtime from ATOM's config and the environment. The only module that touches aiter and FlyDSL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megamoe_atom.factory import Runtime
from megamoe_atom.problem import Exit, Problem, Reason

PATH_VARIABLE = "ATOM_FLYDSL_KERNELS_PATH"
ACCEPT_VARIABLE = "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT"
SELFTEST_VARIABLE = "MEGAMOE_SELFTEST"


def config_reasons(config: Any, environment: Mapping[str, str]) -> list[Reason]:
    """Why this launch may not use MegaMoE, as far as ATOM's own config and environment tell."""
    reasons: list[Reason] = []

    def refuse(code: str, what: str, why: str, fix: str) -> None:
        reasons.append(Reason(code, what, why, fix))

    if not getattr(config, "enable_dp_attention", False):
        refuse(
            "dp_attention",
            "DP attention is off",
            "under TP each rank holds the same tokens, so the summed output would be ep_size times too large",
            "pass --enable-dp-attention --enable-expert-parallel",
        )
    if getattr(config, "eplb_enable", False):
        refuse(
            "eplb",
            "EPLB is on",
            "it moves raw expert weights, which MegaMoE converts and empties",
            "drop --eplb-enable",
        )
    if getattr(config, "enable_tbo", False) or getattr(config, "enable_tbo_decode", False):
        refuse(
            "tbo",
            "two-batch overlap is on",
            "both halves share one output buffer, and two spinning kernels starve each other",
            "drop --enable-tbo",
        )
    if int(getattr(config, "prefill_context_parallel_size", 1) or 1) > 1:
        refuse("pcp", "prefill context parallelism is on", "tokens would be replicated over it", "drop -pcp")
    for name, values in (("MORI_SHMEM_MODE", ("ISOLATION", "VMM_HEAP")), ("COMPILE_ONLY", ("1",))):
        value = environment.get(name, "")
        if value.upper() in values:
            refuse(
                name.lower(),
                f"{name}={value}",
                "peers' buffers cannot be addressed in this mode" if name.startswith("MORI") else "no kernel would run",
                f"unset {name}",
            )
    for name in ("ATOM_USE_TRITON_MOE", "ATOM_USE_TRITON_MOE_DECODE"):
        if environment.get(name, "0") not in ("", "0"):
            refuse(
                "triton_moe", f"{name} is set", "Triton's path and MegaMoE cannot both run the experts", f"unset {name}"
            )
    if not environment.get(PATH_VARIABLE):
        refuse(
            "flydsl_path", f"{PATH_VARIABLE} is not set", "the kernels come from that checkout", f"set {PATH_VARIABLE}"
        )
    return reasons


def ep_group() -> Any:
    from aiter.dist.parallel_state import get_ep_group

    return get_ep_group()


def initialise_shmem() -> Any:
    """Touches ATOM's all2all manager, whose first access initialises mori's symmetric heap on every rank."""
    manager = ep_group().device_communicator.all2all_manager
    if manager is None:
        raise Problem(
            "shmem",
            what="ATOM made no all2all manager for the EP group",
            why="MegaMoE's buffers live in mori's symmetric heap, which that manager initialises",
            fix="install mori, and launch with DP attention and expert parallel",
            exit_code=Exit.PRECONDITION,
        )
    return manager


def ep_sum(t: Any) -> Any:
    """Sum over the EP group: an all-reduce of torch.distributed, not of aiter, whose custom one may round to bf16."""
    import torch.distributed as dist

    dist.all_reduce(t, group=ep_group().device_group)
    return t


def make_runtime(config: Any, environment: Mapping[str, str] | None = None) -> Runtime:
    """Raises Problem with every reason at once when this launch may not use MegaMoE."""
    env = os.environ if environment is None else environment
    reasons = config_reasons(config, env)
    if reasons:
        raise Problem.of(reasons)
    from megamoe_atom.kernel import accepts_swiglu_limit, load_megamoe
    from megamoe_atom.selftest import SelfTest

    megamoe = load_megamoe(Path(env[PATH_VARIABLE]))
    selftest = None
    if env.get(SELFTEST_VARIABLE, "1") != "0":
        selftest = SelfTest(group_sum=ep_sum, local_ranks=(int(ep_group().rank_in_group),))
    # Without a shared expert the routed output itself leaves the block, and the next layer would overwrite it.
    shared = int(getattr(getattr(config, "hf_config", None), "n_shared_experts", 0) or 0)
    return Runtime(
        build=megamoe,
        initialise_shmem=initialise_shmem,
        swiglu_in_kernel=accepts_swiglu_limit(megamoe),
        clone=shared == 0,
        selftest=selftest,
        accept_no_swiglu_limit=env.get(ACCEPT_VARIABLE, "0") == "1",
    )
