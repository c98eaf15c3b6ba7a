"""Compiles MegaMoE's kernels for gfx950 as the adapter launches them, on a machine without a GPU, and prints JSON.

Usage: python flydsl_compile.py FLYDSL_DIR ADAPTER_DIR MODEL MTPR TOKENS...

FlyDSL's real host code runs below the adapter's KernelPool and MegaExperts: the constructor's keywords, the 1-D uint8
weights and the forward's tensors are the ones of a service. The proof lane's stand-in HIP receives the launches and
executes nothing, so results are meaningless and only the code objects are read: registers, LDS, spills, symbols.
Needs flydsl 0.2.2 to 0.2.4, a C compiler and ld.lld of LLVM 20 or newer.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLYDSL, ADAPTER, MODEL, MTPR = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
TOKENS = [int(n) for n in sys.argv[5:]]
sys.path[:0] = [str(FLYDSL), ADAPTER]
WORK = tempfile.TemporaryDirectory()
CUS = 256
os.environ |= {
    "ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950", "CU_NUM": str(CUS), "ROCM_PATH": f"{WORK.name}/rocm",
    "FLYDSL_RUNTIME_CACHE_DIR": f"{WORK.name}/cache",
}  # fmt: skip
os.environ.pop("COMPILE_ONLY", None)

import numpy as np  # noqa: E402 - after the environment
import torch  # noqa: E402
from kernel_lane import elf  # noqa: E402
from kernel_lane.capture import rocm, upstream  # noqa: E402
from kernel_lane.capture.hip import Launch, StandIn  # noqa: E402
from megamoe_atom import limits  # noqa: E402
from megamoe_atom.experts import Geometry, KernelPool, MegaExperts  # noqa: E402
from megamoe_atom.kernel import accepts_swiglu_limit  # noqa: E402
from megamoe_atom.layout import ConvertedLayer  # noqa: E402
from megamoe_atom.warmup import prewarm_batch  # noqa: E402

torch.set_num_threads(1)
MODELS = {"V4-Pro": limits.V4_PRO, "V4-Flash": limits.V4_FLASH}


def untouched(shape: Any, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Zeros in pages that the system provides on first write: gigabytes here cost no memory."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


class LazyTorch(upstream.CpuTorch):
    """As two upstream modules see torch; their large buffers stay untouched."""

    @staticmethod
    def zeros(*shape: Any, dtype: torch.dtype | None = None, device: object = None) -> torch.Tensor:
        first = shape[0] if len(shape) == 1 else shape
        return untouched(first, dtype or torch.get_default_dtype())


class Heap:
    """A symmetric heap of one rank: a peer's pointer is our own, which nothing reads here."""

    def create(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return untouched(shape, dtype)

    def peer(self, pointer: int, mine: int, other: int) -> int:
        return pointer


def main() -> None:
    rocm.make_tree(Path(os.environ["ROCM_PATH"]))
    found: dict[str, dict[str, Any]] = {}
    now = {"tokens": 0, "order": 0}

    def receive(launch: Launch) -> None:
        digest = hashlib.sha256(launch.code).hexdigest()
        kernel, now["order"] = launch.kernel, now["order"] + 1
        row = found.setdefault(
            digest,
            {
                "kernel": kernel.name, "vgpr": kernel.vgprs, "agpr": kernel.agprs, "sgpr": kernel.sgprs,
                "lds": kernel.lds, "scratch": kernel.scratch, "vgpr_spills": kernel.vgpr_spills,
                "sgpr_spills": kernel.sgpr_spills, "bytes": len(launch.code), "grid": list(launch.grid),
                "block": list(launch.block), "target": elf.read(launch.code).target,
                "undefined": list(elf.read(launch.code).undefined), "tokens": [], "place": now["order"],
            },
        )  # fmt: skip
        row["tokens"].append(now["tokens"])

    hip = StandIn(receive)
    upstream.install_torch(CUS)
    upstream.install_mori(Heap())
    megamoe = upstream.load(FLYDSL)
    for name in upstream.MODULES:
        sys.modules[name].torch = LazyTorch()  # type: ignore[attr-defined]
    g = MODELS[MODEL].at(MTPR)
    e, h, i = g.local_experts, g.hidden, g.inter
    limit = 10.0 if accepts_swiglu_limit(megamoe) else 0.0
    geometry = Geometry(0, g.ep_size, h, i, g.experts, g.topk, g.quant, MTPR, limit)
    layer = ConvertedLayer(
        untouched(e * i * h), untouched(e * 2 * i * h // 32), untouched(e * h * i // 2), untouched(e * h * i // 32),
        (e, 2 * i, h // 2), (e, h, i // 2), geometry.gate_up,
    )  # fmt: skip
    experts = MegaExperts("layers.0", geometry, layer, KernelPool(megamoe), clone=False)
    seconds = {}
    for tokens in TOKENS:
        now["tokens"], now["order"] = tokens, 0
        x, weights, ids = prewarm_batch(geometry, tokens, torch.device("cpu"))
        start = time.monotonic()
        experts.run(x, weights, ids)
        seconds[tokens] = round(time.monotonic() - start, 1)
        if hip.failure is not None:
            raise hip.failure
    import flydsl

    body = {"flydsl": flydsl.__version__, "linker": rocm.linker_version(), "seconds": seconds}
    print("\n" + json.dumps(body | {"kernels": sorted(found.values(), key=lambda r: (r["place"], r["tokens"]))}))


main()
