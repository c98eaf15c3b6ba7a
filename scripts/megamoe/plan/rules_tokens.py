"""Token and sequence limits; the largest legal capacity comes from megamoe_atom.limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megamoe.plan import arithmetic
from megamoe.plan.effective import ENGINE_DEFAULT_MBT, ENGINE_DEFAULT_SEQS, tokens_per_rank
from megamoe.plan.rule import Context, Hit, refuse, warn

STANDARD_FIXED_AT = 16384  # ROCm/ATOM issue 1401: one of three buffer parameters of the standard path was fixed there


def power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def neighbours(value: int) -> tuple[int, int]:
    """The powers of two below (or equal) and above."""
    low = 1 << (value.bit_length() - 1)
    return low, low * 2


def largest_legal(c: Context) -> int | None:
    """Largest tokens per rank that the fused kernels' 32-bit arithmetic allows for this geometry and rank count."""
    ranks = c.ep_size if c.ep_size > 1 else c.args.tensor_parallel * c.args.data_parallel
    return arithmetic.largest_legal(c.profile, ranks)


def _largest_product(c: Context, tokens: int) -> tuple[int, int]:
    """(dp x tokens x row width, row width) of the widest activation: both gemm-1 halves, or top-k copies of a row."""
    width = max(2 * c.profile.inter, c.profile.topk * c.profile.hidden)
    return max(1, c.layout.dp_size) * tokens * width, width


def batched_tokens(c: Context) -> Iterator[Hit]:
    given = c.args.max_num_batched_tokens
    keys = ("args.max_num_batched_tokens", "args.moe_backend")
    mtpr = c.env.get("ATOM_MEGA_MTPR")
    if not c.mega:
        if (
            given is not None
            and given < 256
            and c.args.enable_expert_parallel
            and c.args.enable_dp_attention
            and c.on_gpu
        ):
            yield refuse(
                "mori_dispatch_small",
                f"args.max_num_batched_tokens is {given} with the standard backend and expert parallel",
                "mori's dispatch buffer below 256 tokens per rank wrote out of bounds: full speed, gsm8k 0.0000",
                "use 256 or more",
                *keys,
                "args.enable_expert_parallel",
            )
        tokens = tokens_per_rank(c.args)
        if c.on_gpu and tokens > STANDARD_FIXED_AT:
            size, width = _largest_product(c, tokens)
            yield warn(
                "tokens_standard_large",
                f"args.max_num_batched_tokens is {tokens}; {c.layout.dp_size} x {tokens} x {width} = {size}"
                + (", beyond 2**31" if size >= 1 << 31 else ""),
                f"above {STANDARD_FIXED_AT} routed output has been cut short, and products beyond 2**31 have ended in "
                "an illegal memory access during warm-up",
                f"use {STANDARD_FIXED_AT} or less, or gate it yourself",
                *keys,
                "model.profile",
                "args.tensor_parallel",
            )
        return
    if given is None:
        yield refuse(
            "tokens_not_given",
            "args.max_num_batched_tokens is not given with args.moe_backend: mega",
            f"the engine's default is {ENGINE_DEFAULT_MBT}, above the validated {c.profile.validated_mbt}; it is the "
            "capacity of the exchange, not a tuning knob",
            f"set {c.profile.validated_mbt}",
            *keys,
        )
        return
    if not power_of_two(given):
        low, high = neighbours(given)
        top = c.profile.validated_mbt
        offer = f"{low} or {high}" if high <= top else f"{min(low, top)}"
        yield refuse(
            "tokens_not_power_of_two",
            f"args.max_num_batched_tokens is {given}, not a power of two",
            "the fused kernels split packed indices by shifts, so the capacity per rank must be a power of two "
            "and the same on every rank",
            f"use {offer}; validated up to {top}",
            *keys,
        )
    limit = largest_legal(c)
    if limit is not None and given > limit:
        yield refuse(
            "tokens_above_int32",
            f"args.max_num_batched_tokens is {given}; {c.profile.name} on "
            f"{c.args.tensor_parallel * c.args.data_parallel} ranks allows {limit}",
            "a 32-bit argument overflows above it: struct.error, or rows that are silently read as zero; "
            f"the validated limit is {c.profile.validated_mbt}",
            (f"use {min(limit, c.profile.validated_mbt)}" if limit else "no capacity fits: use more ranks"),
            *keys,
            "model.profile",
            "args.tensor_parallel",
            "args.data_parallel",
        )
    elif given > c.profile.validated_mbt:
        yield warn(
            "tokens_above_validated",
            f"args.max_num_batched_tokens is {given}, above the validated limit {c.profile.validated_mbt}",
            f"the arithmetic allows {limit or given}, but accuracy was never measured there",
            f"use {c.profile.validated_mbt}, or gate it yourself",
            *keys,
            "model.profile",
        )
    if mtpr is not None and (
        not re.fullmatch("[0-9]+", mtpr) or not power_of_two(int(mtpr[:18])) or int(mtpr[:18]) != given
    ):
        yield refuse(
            "mtpr_differs",
            f"env.ATOM_MEGA_MTPR is {mtpr[:40]!r}, args.max_num_batched_tokens is {given}",
            "the capacity must be one constant on every rank and hold the largest step",
            "remove env.ATOM_MEGA_MTPR: the capacity is max_num_batched_tokens",
            "env.ATOM_MEGA_MTPR",
            *keys,
        )


def sequences(c: Context) -> Iterator[Hit]:
    a = c.args
    seqs, mbt = a.max_num_seqs, tokens_per_rank(a)
    if seqs is None:
        if c.on_gpu:
            yield refuse(
                "seqs_not_given",
                "args.max_num_seqs is not given",
                f"the engine's default {ENGINE_DEFAULT_SEQS} (and "
                "1024 elsewhere) takes gigabytes outside the KV accounting: out of memory under load",
                "set 256",
                "args.max_num_seqs",
            )
        return
    if c.on_gpu and seqs > 512 and a.gpu_memory_utilization >= 0.9:
        yield refuse(
            "seqs_too_many",
            f"args.max_num_seqs is {seqs} at gpu_memory_utilization {a.gpu_memory_utilization}",
            "17.9 GiB per rank outside the KV accounting were measured at 1024; the card has no room for it",
            "use 512 or fewer, or gpu_memory_utilization 0.85",
            "args.max_num_seqs",
            "args.gpu_memory_utilization",
        )
    if c.on_gpu and seqs >= 4096:
        yield refuse(
            "seqs_too_many",
            f"args.max_num_seqs is {seqs}",
            "4096 runs out of memory at start on 288 GiB GPUs",
            "use 256 to 1024",
            "args.max_num_seqs",
        )
    elif c.on_gpu and seqs > c.profile.validated_seqs:
        yield warn(
            "seqs_above_validated",
            f"args.max_num_seqs is {seqs}, above {c.profile.validated_seqs}",
            "no run with more is on record",
            "use 256 to 1024",
            "args.max_num_seqs",
        )
    per_seq = 1 + (a.num_speculative_tokens if a.method else 0)
    if seqs * per_seq > mbt:
        make = refuse if c.mega else warn
        yield make(
            "seqs_above_tokens",
            f"{seqs} sequences x {per_seq} tokens = {seqs * per_seq} per decode step, max_num_batched_tokens is {mbt}",
            "a decode step must fit the capacity; graph buckets above it fail",
            f"lower args.max_num_seqs to {mbt // per_seq}, or raise max_num_batched_tokens",
            "args.max_num_seqs",
            "args.max_num_batched_tokens",
            "args.num_speculative_tokens",
        )
    for size in a.cudagraph_capture_sizes or []:
        if size < 1 or size * per_seq > mbt:
            yield refuse(
                "graph_size",
                f"args.cudagraph_capture_sizes has {size}",
                f"a graph of {size} x {per_seq} tokens does not fit {mbt} tokens per rank, or is empty",
                "remove it",
                "args.cudagraph_capture_sizes",
                "args.max_num_batched_tokens",
            )


def lengths(c: Context) -> Iterator[Hit]:
    a = c.args
    mbt = tokens_per_rank(a)
    longest = c.profile.default_max_model_len
    if a.max_model_len is not None and longest is not None and a.max_model_len > longest:
        yield warn(
            "model_len_capped",
            f"args.max_model_len is {a.max_model_len}; the model has {longest}",
            "ATOM takes the smaller of the two",
            f"set {longest} or less",
            "args.max_model_len",
            "model.profile",
        )
    if a.enable_chunked_prefill is False and (a.max_model_len or longest or 0) > mbt:
        yield warn(
            "prompts_rejected",
            f"args.enable_chunked_prefill is false and requests may have {a.max_model_len or longest} tokens",
            f"prompts above max_num_batched_tokens {mbt} are rejected",
            "leave chunked prefill on",
            "args.enable_chunked_prefill",
            "args.max_model_len",
            "args.max_num_batched_tokens",
        )
    if c.on_gpu and a.kv_cache_dtype == "bf16" and c.profile.name.startswith("deepseek-v4"):
        yield Hit(
            "kv_bf16",
            "info",
            "args.kv_cache_dtype is bf16",
            "all accuracy runs on record for this model use fp8; bf16 takes twice the memory per token",
            "set fp8 to compare with them",
            (("args", "kv_cache_dtype"),),
        )


RULES = (batched_tokens, sequences, lengths)
