"""The whole stack in one process: ATOM's edited moe.py, the adapter, FlyDSL's host code, its kernels executed.

Only the edges are stubs: aiter's and mori's modules, and the GPU (kernel_lane.capture). Two ranks of an EP group, two
layers that share one kernel instance, an unequal prefill and decode steps, the weight hook called twice.

Usage: python stack_process.py EDITED_ATOM FLYDSL TESTS_PATCH LIMIT   (called by test_whole_stack.py; prints JSON)
LIMIT: the layers' SwiGLU limit; 0 for the kernels of a plain checkout, which have none.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

TREE, FLYDSL, TESTS_PATCH, LIMIT = sys.argv[1:]
sys.path.insert(0, TESTS_PATCH)
sys.argv[1:] = [TREE, "not_requested"]  # atom_process then only sets ATOM up
os.environ |= {"ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950"}

import atom_process as atom  # noqa: E402 - after the arguments
import torch  # noqa: E402
from kernel_lane.capture import upstream  # noqa: E402
from kernel_lane.capture.cases import find  # noqa: E402
from kernel_lane.capture.session import Session, place_form  # noqa: E402
from megamoe_atom import factory, kernel, reference  # noqa: E402

WORLD, CASE = 2, find("w2")
STEPS = ((5, 8), (1, 1), (1, 3))  # tokens per rank: an unequal prefill, two decode steps
NAMES = ("layers.0.ffn.experts", "layers.1.ffn.experts")


def set_up() -> None:
    """Sizes of the lane's case w2, two ranks."""
    os.environ |= {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1"}
    atom.WORLD = atom.DP.world_size = atom.EP.world_size = WORLD
    atom.HIDDEN, atom.INTER, atom.EXPERTS, atom.TOPK = CASE.hidden, CASE.inter, CASE.experts, CASE.topk
    atom.MTPR, atom.LIMIT = CASE.mtpr, float(LIMIT)


def main() -> dict[str, Any]:
    set_up()
    session = Session(Path(FLYDSL), WORLD, CASE.cu)
    place_form(CASE)
    layers: dict[tuple[str, int], Any] = {}
    calls = []

    def build(**arguments: Any) -> Any:
        calls.append(arguments["rank"])
        return session.megamoe(**arguments)

    def make(rank: int) -> None:
        atom.RANK.now = upstream.here.rank = rank
        atom.atom_config._current_atom_config = atom.config(max_num_batched_tokens=CASE.mtpr)
        factory._runtime = factory.Runtime(
            build=build, swiglu_in_kernel=kernel.accepts_swiglu_limit(session.megamoe), clone=False,
            initialise_shmem=lambda: atom.EP.device_communicator.all2all_manager,
        )  # fmt: skip
        for n, name in enumerate(NAMES):
            layer = layers[name, rank] = atom.make_layer(name)
            atom.fill(layer, 100 * n + rank)
            if atom.LIMIT:  # gate and up 16 times as large, so that about half of them are beyond a limit of 10
                layer.w13_weight_scale.data.view(torch.uint8).add_(4)
            layer.quant_method.process_weights_after_loading(layer)  # deepseek_v4.load_weights
            layer.process_weights_after_loading()  # then the loader
            layer.quant_method.process_weights_after_loading(layer)
            layer.quant_method.init_prepare_finalize(layer)

    with session.recorder.watch():
        for rank in range(WORLD):
            make(rank)
    batches = make_batches()
    outputs: dict[tuple[int, str, int], torch.Tensor] = {}

    def work(rank: int) -> Any:
        def body() -> None:
            atom.RANK.now = rank
            for step, rows in enumerate(batches):
                x, ids, weights = rows[rank]
                for name in NAMES:
                    logits = torch.cat((ids.float(), weights), dim=-1)
                    with torch.inference_mode():
                        got = layers[name, rank].forward_impl(x.clone(), logits)
                    outputs[step, name, rank] = got.clone()

        return body

    session.run([work(r) for r in range(WORLD)])
    differing, compared = compare(layers, batches, outputs)
    unlimited, _ = compare(layers, batches, outputs, swiglu_limit=0.0)
    return {
        "method": type(layers[NAMES[0], 0].quant_method).__name__,
        "kernel": f"{session.megamoe.__module__}.{session.megamoe.__name__}",
        "instances": calls,
        "raw_weights_left": sum(layers[key].w13_weight.numel() for key in layers),
        "launch_steps": sum("launches" in s for s in session.recorder.steps),
        "instructions": session.recorder.instructions,
        "compared": compared,
        "differing": differing,
        "differing_without_limit": unlimited,
    }


def make_batches() -> list[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Per step and rank: x bf16 [n, H], distinct ids [n, K], float32 weights [n, K]."""
    g = torch.Generator().manual_seed(7)
    rows = []
    for tokens in STEPS:
        row = []
        for n in tokens:
            ids = torch.stack([torch.randperm(CASE.experts, generator=g)[: CASE.topk] for _ in range(n)]).to(
                torch.int32
            )
            weights = torch.rand((n, CASE.topk), generator=g) + 0.1
            row.append(
                (torch.randn((n, CASE.hidden), generator=g).bfloat16(), ids, weights / weights.sum(-1, keepdim=True))
            )
        rows.append(row)
    return rows


def compare(layers: Any, batches: Any, outputs: Any, **changed: Any) -> tuple[int, int]:
    """Output values that differ from the reference over the same converted weights, and how many were compared.

    changed: constructor arguments in the place of the layer's own.
    """
    group = reference.ReferenceGroup(WORLD)
    differing = compared = 0
    for name in NAMES:
        for rank in range(WORLD):
            experts = layers[name, rank].quant_method.fused_experts
            partial(reference.MegaMoE, group=group, accumulate=torch.float64)(
                **experts.geometry.kernel_arguments(experts.layer) | changed
            )
        for step, rows in enumerate(batches):
            for rank, want in enumerate(group.forward(rows)):
                got = outputs[step, name, rank]
                compared += want.numel()
                differing += int((got.view(torch.int16) != want.view(torch.int16)).sum())
    return differing, compared


print("\n" + json.dumps(main()))
