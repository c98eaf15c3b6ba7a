"""Starts the engine: refuse early, load, prove, warm up, listen; on SIGTERM finish what runs and exit 0."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from megamoe_atom.problem import Exit, Problem
from megamoe_atom.support import reasons_against

from reference_engine.checkpoint import ModelConfig, read_config
from reference_engine.options import Options, parse, support_inputs

if TYPE_CHECKING:
    from reference_engine.moe import MoeStack
    from reference_engine.wire import Served

log = logging.getLogger("reference_engine")
MAX_WAITING = 1024
DRAIN_S = 30.0  # after the last connection closed, for sequences whose clients went away meanwhile


def bind(host: str, port: int) -> socket.socket:
    """Takes the port without listening on it: until the engine is ready, clients are refused, as with ATOM.

    Raises:
        Problem: in use (port_in_use), or not to be bound (port_bind); exit 4.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Problem(
                "port_in_use",
                exit_code=Exit.PRECONDITION,
                what=f"{host}:{port} is in use",
                why="the server could load for minutes and then not listen",
                fix=f"stop what listens there (ss -ltnp 'sport = :{port}'), or use another --server-port",
            ) from error
        raise Problem(
            "port_bind",
            exit_code=Exit.PRECONDITION,
            what=f"{host}:{port} cannot be bound: {error.strerror}",
            why="the server could load and then not listen",
            fix="use 0.0.0.0, or an address of this machine",
        ) from error
    return sock


def check(options: Options) -> tuple[ModelConfig, int]:
    """Everything about this launch that can be refused before weights are read.

    Returns:
        the model's configuration and the maximum context length in tokens.
    """
    config = read_config(options.model)
    limit = min(options.max_model_len or config.max_position_embeddings, config.max_position_embeddings)
    if not options.chunked_prefill and limit > options.max_num_batched_tokens:
        raise Problem(
            "prompt_never_fits",
            what=f"context of {limit} tokens without chunked prefill in steps of {options.max_num_batched_tokens}",
            why="a long prompt would wait for ever",
            fix="lower --max-model-len, or leave chunked prefill on",
        )
    if options.mega:
        launch = support_inputs(options.ranks, options.max_num_batched_tokens)
        reasons = reasons_against(replace(launch, experts=config.n_routed_experts, topk=config.num_experts_per_tok))
        if reasons:
            raise Problem.of(reasons)
    return config, limit


def threads(environment: Mapping[str, str]) -> int:
    """OMP_NUM_THREADS when set, else the cores this process may use."""
    asked = environment.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else len(os.sched_getaffinity(0))


@dataclass(slots=True)
class Engine:
    served: Served
    moe: MoeStack | None


def load(options: Options, config: ModelConfig, limit: int, on_failure: list[Callable[[], None]]) -> Engine:
    """Reads weights, converts experts, runs the self-test and a warm-up. Heavy imports happen here and not before."""
    import torch

    from reference_engine.checkpoint import Weights
    from reference_engine.metrics import Metrics
    from reference_engine.model import Chunk, KvCache, Model, dense_mlp
    from reference_engine.protocol import Limits
    from reference_engine.scheduler import Scheduler
    from reference_engine.text import Text
    from reference_engine.wire import HTTP_5XX_EVERY, Served

    torch.set_num_threads(threads(os.environ))
    # bf16 products run in hardware on newer CPUs and are emulated, slowly, on others.
    dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    started = time.monotonic()
    weights = Weights(options.model)
    moe = None
    if options.mega:
        from reference_engine.moe import MoeStack

        moe = MoeStack(
            config,
            weights,
            ranks=options.ranks,
            mtpr=options.max_num_batched_tokens,
            fault=options.fault,
            selftest=options.selftest,
        )
        mlps = [moe.mlp(layer) for layer in range(config.num_hidden_layers)]
    else:
        mlps = [dense_mlp(weights, layer, dtype) for layer in range(config.num_hidden_layers)]
    model = Model(config, weights, mlps, dtype, limit)
    log.info(
        "Model load done: %s, %s experts, %s (weights loaded in %.1fs)",
        options.model,
        "MegaMoE" if moe else "no",
        str(dtype).removeprefix("torch."),
        time.monotonic() - started,
    )
    cache = KvCache(
        config, options.max_num_seqs, limit, torch.float8_e4m3fn if options.kv_cache_dtype == "fp8" else torch.bfloat16
    )
    if moe is not None:
        moe.prove()
    started = time.monotonic()
    tokens = min(options.max_num_batched_tokens, limit)
    # Varied ids: equal rows make every routing decision equal, which proves the least.
    model.forward([Chunk(0, 0, [i % config.vocab_size for i in range(tokens)])], cache)
    log.info("warmup_model %.2f seconds with 1 reqs %d tokens", time.monotonic() - started, tokens)
    metrics = Metrics()
    text = Text(options.model)

    def failed() -> None:
        for callback in on_failure:
            callback()

    scheduler = Scheduler(
        model,
        cache,
        text,
        metrics,
        budget=options.max_num_batched_tokens,
        chunked=options.chunked_prefill,
        reuse_prefixes=options.prefix_caching,
        max_waiting=MAX_WAITING,
        on_failure=failed,
    )
    served = Served(
        scheduler,
        text,
        Limits(options.served_name, limit, config.vocab_size),
        metrics,
        moe.launches_total if moe is not None else lambda: 0,
        HTTP_5XX_EVERY if options.fault == "http_5xx" else 0,
    )
    return Engine(served, moe)


class _Terminated(BaseException):
    """SIGTERM before the server listens."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


def run(argv: list[str], environment: Mapping[str, str]) -> int:
    """The whole life of the process.

    Raises:
        Problem: the launch was refused.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        options = parse(argv, environment)
        config, limit = check(options)
        sock = bind(options.host, options.port)
        for flag in options.ignored:
            log.info("%s: accepted, no effect on a CPU", flag)
        if options.fault:
            log.warning("FAULT PLANTED for a rehearsal: %s", options.fault)
        on_failure: list[Callable[[], None]] = []
        engine = load(options, config, limit, on_failure)
        if options.fault == "never_ready":
            log.warning("planted fault never_ready: the port stays closed")
            while True:
                signal.pause()
        return _serve(options, engine, sock, on_failure)
    except _Terminated:
        log.info("SIGTERM before the server was ready; nothing was being served")
        return 0


def _serve(options: Options, engine: Engine, sock: socket.socket, on_failure: list[Callable[[], None]]) -> int:
    import uvicorn

    from reference_engine.wire import build_app

    server = uvicorn.Server(
        uvicorn.Config(
            build_app(engine.served), log_level="warning", access_log=False, timeout_keep_alive=75, lifespan="off"
        )
    )

    def stop() -> None:
        server.should_exit = True

    on_failure.append(stop)
    engine.served.scheduler.start()
    log.info("Starting server on %s:%d", options.host, options.port)
    # uvicorn has its own handlers while it runs, and raises the signal again afterwards: by then it has been obeyed.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    server.run(sockets=[sock])
    died = not engine.served.scheduler.alive
    drained = engine.served.scheduler.stop(DRAIN_S)
    if engine.moe is not None:
        engine.moe.write_status()
    if died:
        log.error("the engine failed; the traceback is above")
        return int(Exit.OUR_BUG)
    log.info(
        "drained: %s", "nothing was left running" if drained else f"sequences were still running after {DRAIN_S:.0f}s"
    )
    return 0 if drained else int(Exit.CHECK_FAILED)


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return run(sys.argv[1:] if argv is None else argv, os.environ)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr, flush=True)
        return int(problem.exit_code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
