"""Compiles stage-1 of production geometries for gfx950 (8 ranks, rank 0, 256 CUs) and writes the code objects.

FlyDSL's cache cannot hold stage-1, so a build that wants it linted makes it so: `megamoe kernels lint OUT` reads it.
A script of its own, as it runs in flydsl's Python, which may have no command line of ours.

Usage: python compile_stage1.py ATOM_PATCH FLYDSL OUT MODEL:TOKENS:LIMIT...   (MODEL: pro or flash; LIMIT: 0 for none)

The real constructor runs on tensors without memory, its launcher on tensors of one element: the compiler sees dtypes
and ranks only. The lane's stand-in HIP hands over the code object; nothing is executed. Needs flydsl 0.2.2 to 0.2.4.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ADAPTER, FLYDSL, OUT, *SPECS = sys.argv[1:]
sys.path[:0] = [FLYDSL, ADAPTER]
from kernel_lane.capture import rocm  # noqa: E402 - after the path

WORK = tempfile.TemporaryDirectory()
os.environ |= {
    "ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950", "CU_NUM": "256", "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
    "ROCM_PATH": str(rocm.make_tree(Path(WORK.name) / "rocm")),
}  # fmt: skip

import torch  # noqa: E402 - after the environment
from kernel_lane.capture import hip, upstream  # noqa: E402
from megamoe_atom import limits  # noqa: E402

torch.set_num_threads(1)
MODELS = {"pro": limits.V4_PRO, "flash": limits.V4_FLASH}


class MetaTorch:
    """`torch` as two upstream modules see it: tensors have sizes and no memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(*_args: object) -> torch.device:
        return torch.device("meta")


class MetaHeap:
    def create(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def peer(self, pointer: int, mine: int, other: int) -> int:
        return 256


def stand_in(t: torch.Tensor) -> torch.Tensor:
    """A tensor of one element (none, if t has none) with t's dtype and number of dimensions."""
    shape = [1] * t.dim() if t.numel() else [0]
    raw = torch.uint8 if t.element_size() == 1 else t.dtype
    return torch.zeros(shape, dtype=raw).view(t.dtype)


def main() -> None:
    launches: list[hip.Launch] = []
    device = hip.StandIn(launches.append)  # kept: the library calls back into it
    upstream.install_torch(256)
    upstream.install_mori(MetaHeap())
    mega = importlib.import_module(upstream.MODULES[0])
    for name in upstream.MODULES:
        importlib.import_module(name).torch = MetaTorch()  # type: ignore[attr-defined]
    import flydsl.expr as fx

    Path(OUT).mkdir(parents=True, exist_ok=True)
    for spec in SPECS:
        model, tokens, limit = spec.split(":")
        g = MODELS[model]
        h, i, e, k = g.hidden, g.inter, g.experts, g.topk
        epr = e // 8

        def meta(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.uint8, device="meta")

        more = {"swiglu_limit": float(limit)} if float(limit) else {}
        op = mega.MegaMoE(
            rank=0, world_size=8, model_dim=h, inter_dim=i, experts=e, topk=k, quant="a8w4", w1=meta(epr * i * h),
            w1_scale=meta(epr * 2 * i * h // 32), w2=meta(epr * h * i // 2), w2_scale=meta(epr * h * i // 32),
            max_tok_per_rank=int(tokens), **more,
        )  # fmt: skip
        tiles = (op._s1_trb, op._s1_se) if op._s1_compact else (op._s1_sti, op._s1_se_atom)
        tensors = (op._s1_out, op._s1_agv(op._s1_rx), op._s1_w1, op._s1_scale_i32, op._s1_w1_scale, *tiles,
                   op._s1_op.wts_em, op._s1_nv, op._s1_bias, op._s1_osd)  # fmt: skip
        sizes = [fx.Int32(n) for n in (op._s1_nvm, 2 * i, h, op._s1_max_blocks)]
        stream = fx.Stream(SimpleNamespace(cuda_stream=0))
        op._s1_mega(*map(stand_in, tensors), *sizes, *[fx.Int64(0)] * 3, fx.Int32(1), *[fx.Int64(0)] * 4, stream)
        if device.failure is not None:
            raise device.failure
        (Path(OUT) / f"{spec.replace(':', '_')}.hsaco").write_bytes(launches[-1].code)


main()
