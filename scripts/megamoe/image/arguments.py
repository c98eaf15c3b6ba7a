"""ATOM's flags, read back into the arguments of DEPLOY, so that the plan's own rules judge what will be executed.

The inverse of megamoe.plan.effective.flags_of. Flag spellings: ROCm/ATOM atom/model_engine/arg_utils.py and
atom/entrypoints/openai/api_server.py at the pinned commit. A flag that DEPLOY does not have is passed on unjudged, and
said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megamoe_atom.problem import Problem

# flag without dashes, "-" for "_" -> DEPLOY argument, how to read it
_VALUES: dict[str, tuple[str, str]] = {
    "tensor-parallel-size": ("tensor_parallel", "int"),
    "tp": ("tensor_parallel", "int"),
    "data-parallel-size": ("data_parallel", "int"),
    "dp": ("data_parallel", "int"),
    "prefill-context-parallel-size": ("prefill_context_parallel", "int"),
    "pcp": ("prefill_context_parallel", "int"),
    "host": ("host", "text"),
    "server-port": ("port", "int"),
    "port": ("internal_port", "int"),
    "kv-cache-dtype": ("kv_cache_dtype", "text"),
    "index-cache-dtype": ("index_cache_dtype", "text"),
    "max-num-batched-tokens": ("max_num_batched_tokens", "int"),
    "max-num-seqs": ("max_num_seqs", "int"),
    "max-model-len": ("max_model_len", "int"),
    "gpu-memory-utilization": ("gpu_memory_utilization", "float"),
    "cudagraph-mode": ("cudagraph_mode", "text"),
    "cudagraph-capture-sizes": ("cudagraph_capture_sizes", "json"),
    "level": ("level", "int"),
    "block-size": ("block_size", "int"),
    "long-prefill-token-threshold": ("long_prefill_token_threshold", "int"),
    "attn-prefill-chunk-size": ("attn_prefill_chunk_size", "int"),
    "method": ("method", "text"),
    "num-speculative-tokens": ("num_speculative_tokens", "int"),
    "draft-model": ("draft_model", "text"),
    "all2all-backend": ("all2all_backend", "text"),
    "dp-load-balance": ("dp_load_balance", "text"),
    "eplb-config": ("eplb_config", "json"),
    "hf-overrides": ("hf_overrides", "json"),
    "online-quant-config": ("online_quant_config", "json"),
}
_SWITCHES = {
    "enable-dp-attention": "enable_dp_attention",
    "enable-expert-parallel": "enable_expert_parallel",
    "enforce-eager": "enforce_eager",
    "trust-remote-code": "trust_remote_code",
    "eplb-enable": "eplb_enable",
    "enable-eplb": "eplb_enable",
    "enable-prefix-caching": "enable_prefix_caching",
    "enable-chunked-prefill": "enable_chunked_prefill",
}
# Flags whose value may be left out, and what that means.
_OPTIONAL = {"load-dummy": ("load_dummy", "empty"), "enable-tbo": ("enable_tbo", "all")}


def one_spelling(flag: str) -> str:
    """The same name for every spelling of an option of ATOM (-tp, --tensor_parallel_size); others as they are."""
    known = {name: destination for name, (destination, _) in (_VALUES | _OPTIONAL).items()} | _SWITCHES
    destination = known.get(flag.lstrip("-").replace("_", "-"))
    return flag if destination is None else "--" + next(name for name, to in known.items() if to == destination)


@dataclass(slots=True)
class Read:
    """`args` as in DEPLOY, the model's path, and flags that DEPLOY does not have."""

    model: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    passed_on: list[str] = field(default_factory=list)


def _value(flag: str, text: str, kind: str) -> Any:
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "json":
                return json.loads(text)
    except ValueError as error:
        raise Problem(
            "flag_value",
            what=f"{flag} {text}: {error}",
            why="the engine would refuse it after minutes, or read it otherwise",
            fix=f"give {flag} a value of kind {kind}",
        ) from error
    return text


def read(argv: list[str], env: Mapping[str, str]) -> Read:
    """The arguments that ATOM will see. With the fused path's two switches in env, moe_backend is mega.

    Raises:
        Problem: flag_value, or flag_without_value.
    """
    found = Read()
    words = list(argv)
    while words:
        word = words.pop(0)
        flag, joined, inline = word.partition("=")
        name = flag.lstrip("-").replace("_", "-") if flag.startswith("-") else ""
        negated = name.removeprefix("no-") if name.startswith("no-") else None

        def take(flag: str = flag, joined: str = joined, inline: str = inline) -> str:
            if joined:
                return inline
            if not words:
                raise Problem(
                    "flag_without_value",
                    what=f"{flag} stands at the end of the command without a value",
                    why="the engine would stop at once",
                    fix=f"give {flag} a value, or remove it",
                )
            return words.pop(0)

        if name == "model":
            found.model = take()
        elif name in _VALUES:
            key, kind = _VALUES[name]
            found.args[key] = _value(flag, take(), kind)
        elif name in _SWITCHES:
            found.args[_SWITCHES[name]] = True
        elif negated in _SWITCHES:
            found.args[_SWITCHES[negated]] = False
        elif name in _OPTIONAL:
            key, default = _OPTIONAL[name]
            found.args[key] = (
                inline if joined else (words.pop(0) if words and not words[0].startswith("-") else default)
            )
        else:
            found.passed_on.append(word)
    on = ("1", "true", "yes", "on")
    if all(env.get(name, "").strip().lower() in on for name in ("ATOM_USE_FLYDSL", "ATOM_USE_FLYDSL_FUSED")):
        found.args["moe_backend"] = "mega"
    return found
