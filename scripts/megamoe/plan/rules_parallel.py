"""Parallel layout, backend and model. What the fused path needs is asked of megamoe_atom.support, as the start does.

Sources: ROCm/ATOM config.py, engine_core_mgr.py, model_ops/moe.py; ROCm/FlyDSL kernels/mega_moe at the pinned commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megamoe_atom.problem import Problem
from megamoe_atom.settings import Settings, parse
from megamoe_atom.support import SupportInputs, of_edits, reasons_against

from megamoe.plan.effective import tokens_per_rank
from megamoe.plan.rule import Context, Hit, key, refuse, warn

MAX_TP = 8  # ROCm/ATOM config.py asserts 1..8
HEAD_SPLIT = 8  # ROCm/ATOM models/deepseek_v4.py: heads and output groups of both V4 models are multiples of 8
ADAPTER_READS = (
    "ATOM_MEGA_MTPR",
    "MORI_SHMEM_MODE",
    "MORI_SHMEM_HEAP_SIZE",
    "ATOM_USE_TRITON_MOE",
    "ATOM_USE_TRITON_MOE_DECODE",
    "COMPILE_ONLY",
    "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT",
    "MEGAMOE_ASYNC_COPY",
    "MEGAMOE_WITHOUT_EDITS",
)


def engine(c: Context) -> Iterator[Hit]:
    if c.profile.engine != c.deploy.engine:
        yield refuse(
            "profile_engine",
            f"engine is {c.deploy.engine!r}, profile {c.profile.name!r} is for engine {c.profile.engine!r}",
            "geometry and environment contract belong to that engine",
            f"set engine: {c.profile.engine}, or another profile",
            "engine",
            "model.profile",
        )
    if c.on_gpu and c.deploy.gpu.count == 0:
        yield refuse(
            "gpu_none",
            "gpu.count is 0 with engine atom",
            "ATOM needs one GPU per rank",
            "give the number of GPUs",
            "gpu.count",
            "engine",
        )
    if c.on_gpu and c.deploy.gpu.vram_gib < 1:
        yield refuse(
            "gpu_none",
            f"gpu.vram_gib is {c.deploy.gpu.vram_gib:g} with engine atom",
            "the memory budget cannot be judged",
            "give the memory of one GPU in GiB (288 for MI355X)",
            "gpu.vram_gib",
            "engine",
        )


@dataclass(frozen=True, slots=True)
class Told:
    """How a row of megamoe_atom.support is said in DEPLOY's words: the finding's code, the fix, and the keys."""

    code: str
    fix: str
    keys: tuple[str, ...]


_STANDARD = ", or args.moe_backend: standard"
FROM_SUPPORT = {
    "ep_off": Told(
        "mega_needs_expert_parallel",
        "set args.enable_expert_parallel: true" + _STANDARD,
        ("args.moe_backend", "args.enable_expert_parallel"),
    ),
    "dp_attention": Told(
        "mega_needs_dp_attention",
        "set args.enable_dp_attention: true" + _STANDARD,
        ("args.moe_backend", "args.enable_dp_attention"),
    ),
    "dp": Told("mega_world_size", "use tensor_parallel: 8", ("args.tensor_parallel", "args.data_parallel")),
    "ep_size": Told(
        "mega_world_size",
        "use 8 ranks per node and one replica per node",
        ("args.tensor_parallel", "args.data_parallel"),
    ),
    "expert_split": Told(
        "experts_not_divisible",
        "use a rank count that divides the experts",
        ("args.tensor_parallel", "args.data_parallel", "model.profile"),
    ),
    "pcp": Told(
        "mega_pcp", "set args.prefill_context_parallel: 1", ("args.prefill_context_parallel", "args.moe_backend")
    ),
    "tbo": Told("mega_tbo", "remove args.enable_tbo", ("args.enable_tbo", "args.moe_backend")),
    "eplb": Told("mega_eplb", "set args.eplb_enable: false", ("args.eplb_enable", "args.moe_backend")),
    "weight_format": Told(
        "mega_weights", "use the mxfp4 checkpoint" + _STANDARD, ("model.weights", "args.moe_backend")
    ),
    "arch": Told("arch", "set args.moe_backend: standard, or use MI355X", ("gpu.arch", "args.moe_backend")),
    # The start refuses kernels whose edits are not those that DEPLOY's environment asks for, so these are known here.
    "fixed_slot": Told(
        "mega_fixed_slot",
        "use more tokens per rank, or leave the edits publish_order and payload_wait in (env.MEGAMOE_WITHOUT_EDITS)",
        ("env.MEGAMOE_WITHOUT_EDITS", "args.max_num_batched_tokens", "model.profile", "args.tensor_parallel"),
    ),
    "swiglu_limit": Told(
        "mega_swiglu_limit",
        'leave the edit swiglu_limit in (env.MEGAMOE_WITHOUT_EDITS), or set env.MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT: "1"',
        ("env.MEGAMOE_WITHOUT_EDITS", "env.MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT", "model.profile"),
    ),
}
"""Rows of support.py that DEPLOY decides and that this module says."""


def support_inputs(c: Context) -> SupportInputs:
    """DEPLOY as the adapter will see the launch. What only the running process can know keeps a value that may run.

    The layout is the one that ATOM makes with DP attention and expert parallelism on: a missing switch is then one
    reason, and not also a wrong rank count.
    """
    a = c.args
    ranks = a.tensor_parallel * a.data_parallel
    tokens = tokens_per_rank(a)
    try:
        env = parse({name: c.env[name] for name in ADAPTER_READS if name in c.env})
    except Problem:
        env = Settings()  # rules_env and adapter_settings name the variable
    launch = SupportInputs(
        experts=c.profile.experts,
        topk=c.profile.topk,
        hidden=c.profile.hidden,
        padded_hidden=c.profile.hidden,
        inter=c.profile.inter,
        padded_inter=c.profile.inter,
        ep_enabled=a.enable_expert_parallel,
        ep_size=ranks,
        visible_gpus=ranks,
        pcp_size=a.prefill_context_parallel,
        tbo=a.enable_tbo is not None,
        eplb=a.eplb_enable,
        weight_format=c.deploy.model.weights,
        quant=c.profile.quant,
        mtpr=env.mtpr or tokens,
        max_num_batched_tokens=tokens,
        swiglu_limit=c.profile.swiglu_limit,
        accept_no_swiglu_limit=env.accept_no_swiglu_limit,
        shmem_mode=env.shmem_mode,
        heap_bytes=env.heap_bytes,
        triton_moe=env.triton_moe,
        triton_moe_decode=env.triton_moe_decode,
        compile_only=env.compile_only,
    )
    if not c.on_gpu:  # one process simulates the ranks in plain torch: no peer, no heap, no kernel
        return replace(launch, dp_size=max(2, ranks), fixed_slot_race_closed=True)
    launch = replace(launch, dp_size=ranks, dp_attention=a.enable_dp_attention, arch=c.deploy.gpu.arch)
    return of_edits(launch, env.kernel_edits)


def mega_support(c: Context) -> Iterator[Hit]:
    """Every reason of the adapter's own list that DEPLOY decides, before anything is started."""
    if not c.mega:
        return
    for reason in reasons_against(support_inputs(c)):
        told = FROM_SUPPORT.get(reason.code)
        if told is not None:
            what = f"{reason.what}, with args.moe_backend: mega"
            yield Hit(told.code, "error", what, reason.why, told.fix, key(*told.keys))


def adapter_settings(c: Context) -> Iterator[Hit]:
    """A MEGAMOE_* name or switch that the adapter would refuse at start."""
    switches = {name: value for name, value in c.env.items() if name.startswith("MEGAMOE_")}
    try:
        parse(switches)
    except Problem as problem:
        for reason in problem.reasons:
            name = next((n for n in switches if reason.what.startswith(n)), "")
            yield refuse("env_adapter", f"env.{reason.what}", reason.why, reason.fix, f"env.{name}" if name else "env")


def mega_layout(c: Context) -> Iterator[Hit]:
    """What the fused path needs of the launch beyond the adapter's own list."""
    if not c.mega:
        return
    a = c.args
    ranks = a.tensor_parallel * a.data_parallel
    if c.on_gpu and 1 < ranks <= 8 and ranks not in c.profile.ep_sizes:
        yield warn(
            "ep_size_not_validated",
            f"{ranks} ranks with moe_backend mega",
            f"tuning tables and accuracy runs exist for {', '.join(map(str, c.profile.ep_sizes))} only",
            "use 8 ranks",
            "args.tensor_parallel",
            "args.data_parallel",
        )
    if a.all2all_backend == "low-latency":
        yield refuse(
            "mega_all2all",
            "args.all2all_backend: low-latency with moe_backend mega",
            "it builds another mori operator next to the fused path from the same heap",
            "remove args.all2all_backend",
            "args.all2all_backend",
            "args.moe_backend",
        )
    if a.online_quant_config is not None:
        yield refuse(
            "mega_online_quant",
            "args.online_quant_config with moe_backend mega",
            "it re-quantises weights at load, and the fused path takes the checkpoint's mxfp4 experts only",
            "remove args.online_quant_config",
            "args.online_quant_config",
            "args.moe_backend",
        )
    if a.load_dummy is not None:
        yield refuse(
            "mega_dummy_routing",
            f"args.load_dummy: {a.load_dummy} with moe_backend mega",
            "made-up hash tables send a token to one expert several times, which the start refuses",
            "remove args.load_dummy",
            "args.load_dummy",
            "args.moe_backend",
        )


def any_backend(c: Context) -> Iterator[Hit]:
    a = c.args
    if a.tensor_parallel > MAX_TP:
        yield refuse(
            "tensor_parallel_range",
            f"args.tensor_parallel is {a.tensor_parallel}",
            "ATOM asserts 1 to 8",
            "use 8",
            "args.tensor_parallel",
        )
    if c.on_gpu and c.deploy.gpu.count and c.layout.ranks > c.deploy.gpu.count:
        yield refuse(
            "too_few_gpus",
            f"{c.layout.ranks} ranks (tensor {a.tensor_parallel} x data {a.data_parallel} x "
            f"context {a.prefill_context_parallel}) on {c.deploy.gpu.count} GPUs",
            "each rank owns one GPU",
            "lower args.tensor_parallel or args.data_parallel, or use a host with more GPUs",
            "args.tensor_parallel",
            "args.data_parallel",
            "args.prefill_context_parallel",
            "gpu.count",
        )
    elif c.on_gpu and c.layout.ranks < c.deploy.gpu.count:
        yield warn(
            "gpus_idle",
            f"{c.layout.ranks} ranks on {c.deploy.gpu.count} GPUs",
            "the other GPUs stay idle",
            "set gpu.count to what this deployment uses, or raise args.tensor_parallel",
            "args.tensor_parallel",
            "args.data_parallel",
            "gpu.count",
        )
    if a.enable_dp_attention and a.prefill_context_parallel != 1 and not c.mega:
        yield refuse(
            "dp_attention_pcp",
            f"args.enable_dp_attention with args.prefill_context_parallel {a.prefill_context_parallel}",
            "ATOM rejects the pair at start-up",
            "set args.prefill_context_parallel: 1",
            "args.enable_dp_attention",
            "args.prefill_context_parallel",
        )
    if c.on_gpu and not c.mega and c.layout.tp_size <= MAX_TP and HEAD_SPLIT % c.layout.tp_size:
        yield refuse(
            "heads_not_divisible",
            f"args.tensor_parallel is {a.tensor_parallel} without DP attention",
            "ATOM splits attention heads and output groups over the ranks and asserts that they divide: 128 and 16 "
            "for V4-Pro, 64 and 8 for V4-Flash",
            "use 1, 2, 4 or 8 ranks",
            "args.tensor_parallel",
            "args.enable_dp_attention",
            "model.profile",
        )
    if c.on_gpu and not c.mega and c.layout.ep_size > 1 and a.enable_dp_attention:
        rest = c.profile.experts % c.layout.ep_size
        if rest:
            yield refuse(
                "experts_not_divisible",
                f"{c.profile.experts} experts on {c.layout.ep_size} ranks leave {rest} over",
                "ATOM gives them to the last rank, while mori's exchange is sized for equal shares",
                "use a rank count that divides the experts",
                "args.tensor_parallel",
                "args.data_parallel",
                "model.profile",
            )
    if a.method is None and ("num_speculative_tokens" in a.model_fields_set or a.draft_model is not None):
        yield warn(
            "speculative_unused",
            "args.num_speculative_tokens or args.draft_model is given and args.method is not",
            "ATOM reads them with a method only: nothing is speculated",
            "give args.method, or remove them",
            "args.method",
            "args.num_speculative_tokens",
            "args.draft_model",
        )
    if not a.enable_dp_attention and a.enable_expert_parallel and a.data_parallel > 1:
        yield refuse(
            "dp_without_dp_attention",
            f"args.data_parallel {a.data_parallel} with expert parallel and without DP attention",
            "ATOM then keeps the expert group at one rank: the expert count is wrong",
            "set args.enable_dp_attention: true",
            "args.data_parallel",
            "args.enable_expert_parallel",
            "args.enable_dp_attention",
        )
    if a.method == "eagle3" and not a.draft_model:
        yield refuse(
            "draft_model_missing",
            "args.method: eagle3 without args.draft_model",
            "ATOM requires it",
            "give args.draft_model",
            "args.method",
            "args.draft_model",
        )
    if a.method == "mtp" and a.num_speculative_tokens > 4:
        yield refuse(
            "mtp_tokens",
            f"args.num_speculative_tokens is {a.num_speculative_tokens} with method mtp",
            "ATOM allows at most 4",
            "use 3",
            "args.num_speculative_tokens",
            "args.method",
        )
    if a.load_dummy is not None and not c.mega:
        yield warn(
            "dummy_weights",
            f"args.load_dummy is {a.load_dummy!r}",
            "the server answers 200 with nonsense; no accuracy gate can pass",
            "remove args.load_dummy for anything that serves",
            "args.load_dummy",
        )
    redundant = (a.eplb_config or {}).get("num_redundant_experts", 0)
    if a.eplb_enable and redundant not in (0, None) and not c.mega:
        yield warn(
            "eplb_redundant",
            f"args.eplb_config.num_redundant_experts is {redundant!r}",
            "replicas chosen differently per rank have been summed twice (0.63 became 0.42), silently",
            "set 0, or gate after a rebalance",
            "args.eplb_config",
            "args.eplb_enable",
        )
    if c.deploy.model.weights != c.profile.weights and not c.mega:
        yield warn(
            "weights_other",
            f"model.weights is {c.deploy.model.weights!r}, profile {c.profile.name!r} is {c.profile.weights}",
            "limits and memory budget are for the profile's format",
            "check that this is the right checkpoint (`megamoe verify-model`)",
            "model.weights",
            "model.profile",
        )


RULES = (engine, mega_support, mega_layout, adapter_settings, any_backend)
