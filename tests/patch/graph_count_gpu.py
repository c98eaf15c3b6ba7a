#!/usr/bin/env python3
"""On any GPU: launches as graphs.py counts them against a counter on the device, through torch's own graph capture.

    PYTHONPATH=atom_patch python3 tests/patch/graph_count_gpu.py

The kernel is a stand-in that adds one on the device, as stage-1 advances its epoch. Capture and replay are done as in
ATOM's model_runner.py: an eager run of the same batch, torch.cuda.graph with a shared pool, then replays mixed with
eager steps. Prints JSON; exit 5 when torch sees no GPU.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from megamoe_atom.experts import Geometry, KernelPool, MegaExperts
from megamoe_atom.graphs import LaunchCounter
from megamoe_atom.layout import ConvertedLayer
from megamoe_atom.status import RankStatus, StatusWriter, read_status

LAYERS, HIDDEN, TOPK, MTPR = 61, 256, 2, 64


class CountingKernel:
    """MegaMoE's place: forward adds one to `epoch` on the device and returns its output buffer."""

    def __init__(self, **_arguments: Any) -> None:
        self.epoch = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._out = torch.zeros((MTPR, HIDDEN), dtype=torch.bfloat16, device="cuda")

    def forward(self, x: torch.Tensor, _weights: torch.Tensor, _ids: torch.Tensor) -> torch.Tensor:
        self.epoch += 1
        return self._out[: x.shape[0]]


def main() -> int:
    if not torch.cuda.is_available():
        print(json.dumps({"status": "not_run", "why": "torch sees no GPU"}))
        return 5
    with tempfile.TemporaryDirectory() as folder:
        status = RankStatus(rank=0, ep_size=1, geometry={}, mtpr=MTPR)
        writer = StatusWriter(Path(folder), status)
        launches = LaunchCounter(writer)
        launches.watch(torch.cuda.CUDAGraph)
        geometry = Geometry(0, 1, HIDDEN, 256, 4, TOPK, "a8w4", MTPR)
        w = torch.zeros(16, dtype=torch.uint8, device="cuda")
        layer = ConvertedLayer(w, w, w, w, (1, 1, 1), (1, 1, 1), True)
        pool = KernelPool(CountingKernel)
        layers = [MegaExperts(f"l{n}", geometry, layer, pool, clone=False, status=launches) for n in range(LAYERS)]
        epoch = layers[0].kernel().epoch
        ids = torch.tensor([[0, 1]], device="cuda").expand(MTPR, TOPK)
        x = torch.zeros((MTPR, HIDDEN), dtype=torch.bfloat16, device="cuda")
        weights = torch.full((MTPR, TOPK), 0.5, device="cuda")

        def step(tokens: int) -> None:
            for experts in layers:
                experts(hidden_states=x[:tokens], topk_weights=weights[:tokens], topk_ids=ids[:tokens])

        graphs, memory = {}, None
        for tokens in (64, 8, 1):
            step(tokens)
            torch.cuda.synchronize()
            graphs[tokens] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[tokens], memory):
                step(tokens)
            memory = memory or graphs[tokens].pool()
        torch.cuda.synchronize()
        after_capture = (int(epoch), status.launches)
        for n in range(200):
            graphs[(64, 8, 1)[n % 3]].replay()
            if n % 10 == 0:
                step(1 + n % MTPR)
        torch.cuda.synchronize()
        writer.write()
        counted = read_status(Path(folder) / "rank-0.json")
        body = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "after_capture": {"device": after_capture[0], "counted": after_capture[1]},
            "after_replays": {"device": int(epoch), "counted": counted.launches},
            "per_layer": sorted(set(counted.launches_per_layer.values())),
        }
        same = after_capture[0] == after_capture[1] and int(epoch) == counted.launches > after_capture[1]
        print(json.dumps({"status": "pass" if same else "fail", **body}))
        return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
