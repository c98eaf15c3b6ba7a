"""What DEPLOY means once profile defaults and mega's environment are added: engine arguments and environment."""

from __future__ import annotations

import json
from dataclasses import dataclass

from megamoe.deploy.profiles import Profile
from megamoe.deploy.schema import Args, Deploy
from megamoe.deploy.sizes import mori_bytes

KERNELS_PATH = "/opt/megamoe/flydsl"  # where the image keeps the FlyDSL checkout
STATUS_DIR_IN_CONTAINER = "/run/megamoe/status"
CACHE_DIR_IN_CONTAINER = "/var/cache/megamoe"
# The switch of the pinned pull request. Source: ROCm/ATOM pull 1666.
MEGA_ENV = {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1", "ATOM_FLYDSL_KERNELS_PATH": KERNELS_PATH}
ENGINE_DEFAULT_MBT = 16384  # ROCm/ATOM atom/model_engine/arg_utils.py, as all defaults below
ENGINE_DEFAULT_SEQS = 512


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel layout as ATOM arrives at it. Source: ROCm/ATOM engine_core_mgr.py, model_ops/moe.py."""

    ranks: int  # GPU processes
    dp_size: int
    tp_size: int
    ep_size: int  # 1 when experts are not distributed


def layout_of(args: Args) -> Layout:
    """With DP attention ATOM turns tp*dp ranks into that many data-parallel ranks of tensor-parallel size 1."""
    ranks = args.tensor_parallel * args.data_parallel * args.prefill_context_parallel
    if args.enable_dp_attention:
        flat = args.tensor_parallel * args.data_parallel
        return Layout(ranks, flat, 1, flat if args.enable_expert_parallel else 1)
    return Layout(
        ranks, args.data_parallel, args.tensor_parallel, args.tensor_parallel if args.enable_expert_parallel else 1
    )


def tokens_per_rank(args: Args) -> int:
    """max_num_batched_tokens as the engine sees it."""
    return args.max_num_batched_tokens or ENGINE_DEFAULT_MBT


def env_of(deploy: Deploy, profile: Profile) -> dict[str, str]:
    """The container's environment: sorted, text only, sizes as plain bytes (mori misreads some units)."""
    env = {**profile.env_default, **{key: str(value) for key, value in deploy.env.items()}}
    if deploy.args.moe_backend == "mega":
        env = {**MEGA_ENV, **env}
    heap = mori_bytes(env["MORI_SHMEM_HEAP_SIZE"]) if "MORI_SHMEM_HEAP_SIZE" in env else None
    if heap is not None:
        env["MORI_SHMEM_HEAP_SIZE"] = str(heap)
    env.setdefault("MEGAMOE_STATUS_DIR", STATUS_DIR_IN_CONTAINER)
    return dict(sorted(env.items()))


def flags_of(deploy: Deploy) -> list[str]:
    """Engine flags, in a fixed order. Spellings: ROCm/ATOM atom/model_engine/arg_utils.py and api_server.py."""
    args = deploy.args
    flags = [
        "--model",
        deploy.model.path,
        "--host",
        args.host,
        "--server-port",
        str(args.port),
        "--port",
        str(args.internal_port),
        "-tp",
        str(args.tensor_parallel),
    ]
    if args.data_parallel != 1:
        flags += ["-dp", str(args.data_parallel)]
    if args.prefill_context_parallel != 1:
        flags += ["-pcp", str(args.prefill_context_parallel)]
    for given, flag in (
        (args.enable_dp_attention, "--enable-dp-attention"),
        (args.enable_expert_parallel, "--enable-expert-parallel"),
        (args.enforce_eager, "--enforce-eager"),
        (args.trust_remote_code, "--trust-remote-code"),
        (args.eplb_enable, "--eplb-enable"),
    ):
        if given:
            flags.append(flag)
    flags += ["--kv_cache_dtype", args.kv_cache_dtype]
    sizes = args.cudagraph_capture_sizes
    for value, flag in (
        (args.index_cache_dtype, "--index-cache-dtype"),
        (args.max_num_batched_tokens, "--max-num-batched-tokens"),
        (args.max_num_seqs, "--max-num-seqs"),
        (args.max_model_len, "--max-model-len"),
        (args.gpu_memory_utilization, "--gpu-memory-utilization"),
        (args.cudagraph_mode, "--cudagraph-mode"),
        ("[" + ",".join(map(str, sizes)) + "]" if sizes is not None else None, "--cudagraph-capture-sizes"),
        (args.level, "--level"),
        (args.block_size, "--block-size"),
        (args.long_prefill_token_threshold, "--long-prefill-token-threshold"),
        (args.attn_prefill_chunk_size, "--attn-prefill-chunk-size"),
        (args.method, "--method"),
        (args.num_speculative_tokens if args.method else None, "--num-speculative-tokens"),
        (args.draft_model, "--draft-model"),
        (args.enable_tbo, "--enable-tbo"),
        (args.all2all_backend, "--all2all-backend"),
        (args.dp_load_balance, "--dp-load-balance"),
        (args.load_dummy, "--load_dummy"),
    ):
        if value is not None:
            flags += [flag, str(value)]
    for switch, name in (
        (args.enable_prefix_caching, "enable_prefix_caching"),
        (args.enable_chunked_prefill, "enable_chunked_prefill"),
    ):
        if switch is not None:
            flags.append(f"--{name}" if switch else f"--no-{name}")
    for mapping, flag in (
        (args.eplb_config, "--eplb-config"),
        (args.hf_overrides, "--hf-overrides"),
        (args.online_quant_config, "--online_quant_config"),
    ):
        if mapping is not None:
            flags += [flag, json.dumps(mapping, sort_keys=True, separators=(",", ":"))]
    return flags
