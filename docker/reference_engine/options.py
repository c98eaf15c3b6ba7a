"""The command line with ATOM's spelling, and every refusal that needs no weights.

Source of names and defaults: ROCm/ATOM e3f9eb45c atom/model_engine/arg_utils.py and entrypoints/openai/api_server.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from megamoe_atom.problem import Problem, Reason
from megamoe_atom.settings import Settings
from megamoe_atom.settings import parse as adapter_settings
from megamoe_atom.support import ANY_LAYER, SupportInputs, reasons_against

from reference_engine import faults

# Accepted because a launch of ATOM names them; a CPU engine has nothing that they could change. (flag, takes a value)
NO_EFFECT: tuple[tuple[tuple[str, ...], bool], ...] = (
    (("--trust-remote-code",), False),
    (("--enforce-eager",), False),
    (("--block-size",), True),
    (("--gpu-memory-utilization",), True),
    (("--cudagraph-capture-sizes",), True),
    (("--cudagraph-mode",), True),
    (("--level",), True),
    (("--all2all-backend",), True),
    (("--dp-load-balance",), True),
    (("--port",), True),
    (("--index-cache-dtype",), True),
)
# Would change results or behaviour here and is not implemented: refused, never ignored.
REFUSED: tuple[tuple[str, ...], ...] = (
    ("--method",),
    ("--num-speculative-tokens",),
    ("--enable-tbo",),
    ("--eplb-enable", "--enable-eplb"),
    ("--eplb-config",),
    ("--load_dummy",),
    ("--online_quant_config",),
    ("--hf-overrides",),
    ("--long-prefill-token-threshold",),
    ("--default-chat-template-kwargs",),
    ("--request-log",),
)


@dataclass(frozen=True, slots=True)
class Options:
    """A launch that may start. Counts are in tokens or sequences, as in ATOM."""

    model: Path
    served_name: str
    host: str
    port: int
    ranks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int | None
    kv_cache_dtype: str
    prefix_caching: bool
    chunked_prefill: bool
    mega: bool
    selftest: bool
    fault: str | None
    ignored: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Problem(
            "usage", what=message, why="the launch could not be understood", fix="see python -m reference_engine --help"
        )


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m reference_engine",
        allow_abbrev=False,
        description="CPU engine with ATOM's outside; MoE layers go through the megamoe_atom adapter.",
    )
    add = parser.add_argument
    add("--model", required=True, help="model directory made by reference_engine.prepare_model")
    add("--host", default="0.0.0.0")
    add("--server-port", type=int, default=8000)
    add("-tp", "--tensor-parallel-size", type=int, default=1, dest="tp")
    add("-dp", "--data-parallel-size", type=int, default=1, dest="dp")
    add("-pcp", "--prefill-context-parallel-size", type=int, default=1, dest="pcp")
    add("--enable-dp-attention", action="store_true")
    add("--enable-expert-parallel", action="store_true")
    add("--max-num-batched-tokens", type=int, default=16384)
    add("--max-num-seqs", type=int, default=512)
    add("--max-model-len", type=int, default=None)
    add("--kv-cache-dtype", "--kv_cache_dtype", choices=("bf16", "fp8"), default="bf16", dest="kv_cache_dtype")
    add("--enable_prefix_caching", action=argparse.BooleanOptionalAction, default=True)
    add("--enable_chunked_prefill", action=argparse.BooleanOptionalAction, default=True)
    add(
        "--moe-backend",
        choices=("standard", "mega"),
        default=None,
        help="default: mega when ATOM_USE_FLYDSL=1 and ATOM_USE_FLYDSL_FUSED=1, else standard (dense maths)",
    )
    for names, takes_value in NO_EFFECT:
        form: dict[str, Any] = {"nargs": "?"} if takes_value else {"action": "store_const", "const": ""}
        dest = "ignored_" + names[0].strip("-")
        add(*names, help="accepted, no effect on a CPU", dest=dest, default=None, **form)
    for names in REFUSED:
        add(*names, nargs="?", const="", default=None, help=argparse.SUPPRESS, dest="refused_" + names[0].strip("-"))
    return parser


def support_inputs(ranks: int, mbt: int, *, expert_parallel: bool = True, dp_attention: bool = True) -> SupportInputs:
    """This launch for the adapter's own list of reasons.

    The ranks are simulated in one process of plain torch: no peer, no heap, no GPU and no FlyDSL, so those rows keep
    values that may run, and so do the shapes, which the reference kernel checks itself. One rank shares with nobody.
    """
    return replace(
        ANY_LAYER,
        experts=ranks,
        ep_enabled=expert_parallel,
        ep_size=ranks,
        visible_gpus=ranks,
        dp_size=max(2, ranks),
        dp_attention=dp_attention or ranks == 1,
        mtpr=mbt,
        max_num_batched_tokens=mbt,
    )


def parse(argv: list[str], environment: Mapping[str, str]) -> Options:
    """Turns arguments and environment into options.

    Raises:
        Problem: all reasons why this launch may not start, together (exit 2).
    """
    args = vars(_parser().parse_args(argv))
    fault = faults.planted(environment)
    reasons: list[Reason] = []

    def refuse(code: str, what: str, why: str, fix: str) -> None:
        reasons.append(Reason(code, what, why, fix))

    for key, value in args.items():
        if key.startswith("refused_") and value is not None:
            refuse(
                "flag_unsupported",
                f"--{key.removeprefix('refused_')} is not implemented by the reference engine",
                "ignoring it would serve something else than was asked for",
                "leave it out here",
            )
    for name in ("tp", "dp", "pcp", "max_num_batched_tokens", "max_num_seqs", "max_model_len"):
        if args[name] is not None and args[name] < 1:
            refuse(
                "not_positive",
                f"{name.replace('_', '-')} is {args[name]}",
                "it counts something there must be",
                "use 1 or more",
            )
    if not 0 < args["server_port"] < 65536:
        refuse("port_range", f"--server-port {args['server_port']}", "ports are 1 to 65535", "use 8000")
    if args["tp"] > 8:
        refuse("tp_range", f"-tp {args['tp']}", "ATOM accepts 1 to 8, the GPUs of one node", "use at most 8")
    if args["pcp"] > 1:
        refuse(
            "flag_unsupported",
            f"-pcp {args['pcp']}",
            "prefill context parallelism is not implemented here",
            "use -pcp 1",
        )
    try:
        settings = adapter_settings(environment)
    except Problem as problem:
        reasons += problem.reasons
        settings = Settings()
    mega = args["moe_backend"] == "mega" or (settings.requested and args["moe_backend"] is None)
    ranks = args["tp"] * args["dp"]
    mbt = args["max_num_batched_tokens"]
    if mega and ranks > 0 and mbt > 0:
        reasons += reasons_against(
            support_inputs(
                ranks,
                mbt,
                expert_parallel=args["enable_expert_parallel"],
                dp_attention=args["enable_dp_attention"],
            )
        )
    if mbt > 0 and not args["enable_chunked_prefill"] and args["max_model_len"] and args["max_model_len"] > mbt:
        refuse(
            "prompt_never_fits",
            f"--max-model-len {args['max_model_len']} > --max-num-batched-tokens {mbt} without chunked prefill",
            "a long prompt would wait for ever",
            "lower --max-model-len, or leave chunked prefill on",
        )
    if fault in ("gate_up_mispaired", "expert_zeroed") and not mega:
        refuse(
            "fault_needs_mega",
            f"{faults.VARIABLE}={fault} with the dense maths",
            "the fault sits in the experts' weights",
            "set ATOM_USE_FLYDSL=1 and ATOM_USE_FLYDSL_FUSED=1",
        )
    if reasons:
        raise Problem.of(reasons)
    return Options(
        model=Path(args["model"]),
        served_name=args["model"].rstrip("/") or "/",
        host=args["host"],
        port=args["server_port"],
        ranks=ranks,
        max_num_batched_tokens=mbt,
        max_num_seqs=args["max_num_seqs"],
        max_model_len=args["max_model_len"],
        kv_cache_dtype=args["kv_cache_dtype"],
        prefix_caching=args["enable_prefix_caching"],
        chunked_prefill=args["enable_chunked_prefill"],
        mega=mega,
        selftest=settings.selftest,
        fault=fault,
        ignored=tuple(
            "--" + k.removeprefix("ignored_") for k, v in args.items() if k.startswith("ignored_") and v is not None
        ),
    )
