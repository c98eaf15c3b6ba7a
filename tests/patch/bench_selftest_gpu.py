#!/usr/bin/env python3
"""Times one rank's share of the self-test at V4-Pro's size on a GPU (torch only; the fused kernel itself is not run).

    PYTHONPATH=atom_patch python3 tests/patch/bench_selftest_gpu.py [LAYERS]

One layer of random weights stands for all: each capture has its own batch, as at start-up. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from megamoe_atom.experts import Geometry
from megamoe_atom.selftest import SelfTest, tokens_per_rank


def main() -> None:
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 61
    g = Geometry(0, 8, 7168, 3072, 384, 6, "a8w4", 8192, 10.0)
    e, h, i = g.experts_per_rank, g.hidden, g.inter

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")

    raw = (
        draw(0, 256, e, 2 * i, h // 2),
        draw(117, 121, e, 2 * i, h // 32),
        draw(0, 256, e, h, i // 2),
        draw(117, 121, e, h, i // 32),
    )
    SelfTest(group_sum=lambda t: t, local_ranks=(0,)).capture("warm", g, *raw)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    test = SelfTest(group_sum=lambda t: t, local_ranks=(0,))
    start = time.perf_counter()
    for n in range(layers):
        test.capture(f"layers.{n}", g, *raw)
    torch.cuda.synchronize()
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "layers": layers,
                "tokens": g.world_size * tokens_per_rank(g),
                "seconds": round(time.perf_counter() - start, 3),
                "peak_extra_mib": round((torch.cuda.max_memory_allocated() - base) / 2**20, 1),
                "kept_mib": round((torch.cuda.memory_allocated() - base) / 2**20, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
