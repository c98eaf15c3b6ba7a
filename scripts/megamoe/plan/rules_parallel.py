"""Parallel layout, backend and model: what the fused path needs of ATOM's configuration.

Sources: ROCm/ATOM config.py, engine_core_mgr.py, model_ops/moe.py; ROCm/FlyDSL kernels/mega_moe at the pinned commits.
"""

from __future__ import annotations

from collections.abc import Iterator

from megamoe.plan.rule import Context, Hit, refuse, warn

MAX_TP = 8  # ROCm/ATOM config.py asserts 1..8


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
    if c.on_gpu and c.deploy.gpu.vram_gib == 0:
        yield refuse(
            "gpu_none",
            "gpu.vram_gib is 0 with engine atom",
            "the memory budget cannot be judged",
            "give the memory of one GPU in GiB (288 for MI355X)",
            "gpu.vram_gib",
            "engine",
        )
    if c.mega and c.on_gpu and c.deploy.gpu.arch not in c.profile.archs:
        yield refuse(
            "arch",
            f"gpu.arch is {c.deploy.gpu.arch!r} with moe_backend mega",
            f"the fused kernels are validated on {', '.join(c.profile.archs)} only; on gfx942 the compiler aborts, "
            "and with fewer compute units the grid barrier never completes",
            "set args.moe_backend: standard, or use MI355X",
            "gpu.arch",
            "args.moe_backend",
        )


def mega_layout(c: Context) -> Iterator[Hit]:
    """Every precondition of the fused path that the parallel layout decides."""
    if not c.mega:
        return
    a = c.args
    if not a.enable_expert_parallel:
        yield refuse(
            "mega_needs_expert_parallel",
            "args.moe_backend: mega with args.enable_expert_parallel: false",
            "MegaMoE is the expert-parallel step; without expert parallel every rank holds another expert count",
            "set args.enable_expert_parallel: true, or args.moe_backend: standard",
            "args.moe_backend",
            "args.enable_expert_parallel",
        )
    if not a.enable_dp_attention and c.on_gpu:
        yield refuse(
            "mega_needs_dp_attention",
            "args.moe_backend: mega with args.enable_dp_attention: false",
            "with tensor-parallel attention the tokens are replicated and the routed output is summed once per "
            "rank: wrong answers, no error",
            "set args.enable_dp_attention: true, or args.moe_backend: standard",
            "args.moe_backend",
            "args.enable_dp_attention",
        )
    world = a.tensor_parallel * a.data_parallel
    if c.on_gpu and world > 8:
        yield refuse(
            "mega_world_size",
            f"{a.tensor_parallel} x {a.data_parallel} = {world} ranks with moe_backend mega",
            "MegaMoE v1 works inside one node: at most 8 ranks",
            "use 8 ranks per node and one replica per node",
            "args.tensor_parallel",
            "args.data_parallel",
        )
    elif c.on_gpu and world == 1:
        yield refuse(
            "mega_world_size",
            "1 rank with moe_backend mega",
            "there is nothing to dispatch; ATOM then does not "
            "use its all-to-all path and the fused step is never reached",
            "use tensor_parallel: 8",
            "args.tensor_parallel",
            "args.data_parallel",
        )
    elif c.on_gpu and world not in c.profile.ep_sizes:
        yield warn(
            "ep_size_not_validated",
            f"{world} ranks with moe_backend mega",
            f"tuning tables and accuracy runs exist for {', '.join(map(str, c.profile.ep_sizes))} only",
            "use 8 ranks",
            "args.tensor_parallel",
            "args.data_parallel",
        )
    if a.prefill_context_parallel != 1:
        yield refuse(
            "mega_pcp",
            f"args.prefill_context_parallel is {a.prefill_context_parallel} with moe_backend mega",
            "ranks would see parts of one sequence; ATOM rejects it with DP attention",
            "set args.prefill_context_parallel: 1",
            "args.prefill_context_parallel",
            "args.moe_backend",
        )
    if world and c.profile.experts % world:
        yield refuse(
            "experts_not_divisible",
            f"{c.profile.experts} experts on {world} ranks",
            "each rank must own the same number of experts",
            "use a rank count that divides the experts",
            "args.tensor_parallel",
            "args.data_parallel",
            "model.profile",
        )
    if a.enable_tbo is not None:
        yield refuse(
            "mega_tbo",
            f"args.enable_tbo: {a.enable_tbo} with moe_backend mega",
            "both micro-batches would share one set of buffers: the second overwrites the first",
            "remove args.enable_tbo",
            "args.enable_tbo",
            "args.moe_backend",
        )
    if a.eplb_enable:
        yield refuse(
            "mega_eplb",
            "args.eplb_enable: true with moe_backend mega",
            "expert weights are converted in place "
            "and cannot migrate; ATOM's rebalancing then divides by zero or moves nothing",
            "set args.eplb_enable: false",
            "args.eplb_enable",
            "args.moe_backend",
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
    if c.deploy.model.weights != "mxfp4":
        yield refuse(
            "mega_weights",
            f"model.weights is {c.deploy.model.weights!r} with moe_backend mega",
            "the fused kernels read fp4 experts with e8m0 scales; other bytes give fluent nonsense",
            "use the mxfp4 checkpoint, or args.moe_backend: standard",
            "model.weights",
            "args.moe_backend",
        )
    if a.load_dummy == "zero" and (a.max_num_batched_tokens or 0) < 2048:
        yield refuse(
            "mega_dummy_routing",
            "args.load_dummy: zero with fewer than 2048 tokens per rank",
            "all tokens choose the same expert six times and overflow its fixed slots",
            "use load_dummy: xavier with max_num_batched_tokens >= 2048",
            "args.load_dummy",
            "args.max_num_batched_tokens",
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
    if a.load_dummy is not None:
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


RULES = (engine, mega_layout, any_backend)
