#!/usr/bin/env python3
"""Compiles ahead of time, without a GPU, every MegaMoE kernel that FlyDSL's disk cache can hold.

    bake.py --kernels DIR --out DIR [--profile NAME]... [--arch gfx950] [--cu 256] [--verify]
        [--linked on --bitcode FILE [--rank N]... | --look DIR --bitcode FILE [--rank N]...]

FlyDSL's real host code is run: MegaMoE's constructor, with the arguments that the adapter passes, on meta tensors
(sizes without memory), then the compile of each stage-2 tile of each power of two up to the profile's token limit, and
of the quantiser. Stage 1 and combine link mori's device functions, and FlyDSL keeps no such object on disk: they are
listed in aot.json as compiled at start. With --linked on they are compiled too, against mori's device bitcode, by the
adapter's own calls for every rank and token bucket; this takes a FlyDSL whose compiler has the edit keep_linked (an
opt-in of the build), and what it makes was never loaded on a GPU.

--look DIR, behind a bake without it: the same calls, on the cache just made. What it holds they must find there; what
a service would compile at its start is compiled, and written to DIR, for the linter alone.

OUT gets <hash>/ (the cache) and aot.json. <hash> covers all that the cache depends on: FlyDSL's installed files, the
kernel sources, the profiles' shapes, architecture, compute units and the bitcode (FlyDSL's own key leaves it out).
Exit 1 when nothing was compiled. What was compiled is judged by `megamoe kernels lint OUT`, which the build runs behind
this: an entry that it cannot read, or one with an undefined symbol (it links, and cannot be loaded on a GPU), ends the
build.
--verify asks for the same kernels again, in FlyDSL's run-only mode, where a kernel that is not found is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

UNCACHED = {
    "stage 1": "one per rank and token limit; links mori's device functions",
    "combine": "one per rank and launch geometry; links mori's device functions",
}


class MetaTorch:
    """`torch` as two of FlyDSL's modules see it: every device is "meta"."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def device(*_args: object) -> Any:
        import torch

        return torch.device("meta")


class UntouchedTorch(MetaTorch):
    """The same, for code that runs: tensors of the CPU in pages that the system provides on the first write."""

    @staticmethod
    def device(*_args: object) -> Any:
        import torch

        return torch.device("cpu")

    @staticmethod
    def zeros(*shape: Any, dtype: Any = None, device: object = None) -> Any:
        import torch

        return untouched(shape[0] if len(shape) == 1 else shape, dtype or torch.get_default_dtype())


def untouched(shape: Any, dtype: Any) -> Any:
    """Zeros of a shape (a number or a tuple): gigabytes that nobody reads cost no memory."""
    import numpy as np
    import torch

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


def stand_in_hardware(cu: int, bitcode: Path | None) -> None:
    """What the host code asks of a GPU and of mori, answered for an MI355X; nothing of it reaches a compiled kernel.

    bitcode: None replaces mori's device functions, which nothing is linked with then; else they are mori's own.
    """
    import torch

    cuda: Any = torch.cuda
    properties = types.SimpleNamespace(multi_processor_count=cu, name="AMD Instinct MI355X", gcnArchName="gfx950")
    cuda.get_device_properties = lambda *_a, **_k: properties
    cuda.current_device = lambda: 0
    cuda.synchronize = lambda *_a: None
    cuda.current_stream = lambda *_a: types.SimpleNamespace(cuda_stream=0)
    shmem: Any = types.ModuleType("mori.shmem")
    shmem.shmem_barrier_all = lambda: None
    if bitcode is None:
        for name in ("mori", "mori.ir", "mori.ir.flydsl"):
            sys.modules[name] = MagicMock()
        shmem.mori_shmem_create_tensor = lambda shape, dtype: torch.empty(shape, dtype=dtype, device="meta")
        shmem.shmem_ptr_p2p = lambda *_a: 256
    else:
        importlib.import_module("mori")  # imports nothing native by itself
        shmem.mori_shmem_create_tensor = untouched
        shmem.shmem_ptr_p2p = lambda pointer, *_a: pointer
    replaced: Any = sys.modules["mori"]
    sys.modules["mori.shmem"] = replaced.shmem = shmem


def small(tensor: Any) -> Any:
    """A CPU tensor of the same dtype and rank: all that the compiler's signature depends on. Empty stays empty."""
    import torch

    shape = (0,) if tensor.numel() == 0 else (1,) * tensor.dim()
    return (
        torch.zeros(shape, dtype=torch.uint8).expand(shape).to(tensor.dtype)
        if tensor.numel()
        else torch.zeros(shape, dtype=tensor.dtype)
    )


def bake_profile(profile: Any, mega: Any) -> list[dict[str, Any]]:
    """Compiles one profile's kernels into the cache; a row per kernel asked for."""
    import flydsl.expr as fx
    import torch
    from megamoe_atom.experts import Geometry
    from megamoe_atom.layout import ConvertedLayer

    world = max(profile.ep_sizes)
    epr, h, i = profile.experts // world, profile.hidden, profile.inter

    def meta(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.uint8, device="meta")

    layer = ConvertedLayer(
        meta(epr * i * h), meta(epr * 2 * i * h // 32), meta(epr * h * i // 2), meta(epr * h * i // 32),
        (epr, 2 * i, h // 2), (epr, h, i // 2), True,
    )  # fmt: skip
    geometry = Geometry(
        0, world, h, i, profile.experts, profile.topk, profile.quant, profile.validated_mbt, profile.swiglu_limit
    )
    arguments = geometry.kernel_arguments(layer)
    op = mega.MegaMoE(**arguments)
    rows: list[dict[str, Any]] = []
    buckets: dict[tuple[int, ...], list[int]] = {}
    tokens = 1
    while tokens <= profile.validated_mbt:
        buckets.setdefault(tuple(op._g2_select_tile(tokens)), []).append(tokens)
        tokens *= 2
    s1 = op._s1_output
    for tile, of in buckets.items():
        started = time.monotonic()
        launch = op._g2_ensure_launch_fn(tile)
        tensors = [op._g2_dummy_out, s1.a2.view(-1), op.w2, s1.a2_scale, op.w2_scale, s1.sorted_token_ids,
                   s1.sorted_expert_ids, s1.sorted_weights, s1.num_valid_ids, op._g2_dummy_bias]  # fmt: skip
        launch(*map(small, tensors), *(fx.Int64(256) for _ in range(5)), *(fx.Int32(1) for _ in range(4)), fx.Stream(0))
        rows.append(
            {
                "kernel": "stage 2 with combine's scatter",
                "tile": tile,
                "tokens": of,
                "seconds": time.monotonic() - started,
            }
        )
    started = time.monotonic()
    op.quantize(torch.zeros((1, h), dtype=torch.bfloat16))
    rows.append({"kernel": "quantiser", "tile": None, "tokens": "all", "seconds": time.monotonic() - started})
    for row in rows:
        row["profile"] = profile.name
    return rows


def bake_linked(profile: Any, mega: Any, ranks: list[int] | None) -> list[dict[str, Any]]:
    """Every kernel of every rank and token bucket, by the calls that a service makes; only what links mori is new."""
    import torch
    from megamoe_atom.experts import Geometry, KernelPool, MegaExperts
    from megamoe_atom.layout import ConvertedLayer
    from megamoe_atom.warmup import prewarm_batch, token_buckets

    world = max(profile.ep_sizes)
    e, h, i = profile.experts // world, profile.hidden, profile.inter
    w13, w13_scale, w2, w2_scale = (
        untouched(n, torch.uint8) for n in (e * i * h, e * 2 * i * h // 32, e * h * i // 2, e * h * i // 32)
    )
    layer = ConvertedLayer(w13, w13_scale, w2, w2_scale, (e, 2 * i, h // 2), (e, h, i // 2), True)
    cuda: Any = torch.cuda
    rows = []
    for rank in range(world) if ranks is None else ranks:
        cuda.current_device = lambda rank=rank: rank
        geometry = Geometry(
            rank, world, h, i, profile.experts, profile.topk, profile.quant, profile.validated_mbt, profile.swiglu_limit
        )
        experts = MegaExperts("layers.0", geometry, layer, KernelPool(mega.MegaMoE), clone=False)
        started = time.monotonic()
        for tokens in token_buckets(geometry.mtpr):
            experts.run(*prewarm_batch(geometry, tokens, torch.device("cpu")))
        rows.append(
            {
                "kernel": f"stage 1 and combine of rank {rank}",
                "tile": None,
                "tokens": "all",
                "seconds": time.monotonic() - started,
                "profile": profile.name,
            }
        )
    return rows


def keep_texts(jit: Any) -> list[str]:
    """What FlyDSL compiles from now on, as the MLIR text that holds the code object; grows with each kernel.

    jit: the module flydsl.compiler.jit_function. What it reads from its cache is made by another way and is not here.
    """
    texts: list[str] = []
    made = jit.CompiledArtifact

    def artifact(module: Any, *more: Any, **named: Any) -> Any:
        texts.append(str(module))
        return made(module, *more, **named)

    jit.CompiledArtifact = artifact
    return texts


def tree_hash(root: Path, pattern: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(
                f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
            )
    return digest.hexdigest()


def depends_on(kernels: Path, profiles: list[Any], arch: str, cu: int, bitcode: Path | None) -> dict[str, Any]:
    """All that decides whether a cached kernel may be loaded."""
    import flydsl

    linked = {} if bitcode is None else {"bitcode": hashlib.sha256(bitcode.read_bytes()).hexdigest()}
    return linked | {
        "flydsl": tree_hash(Path(flydsl.__file__).parent, "*"),
        "kernels": tree_hash(kernels / "kernels", "*"),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "arch": arch,
        "compute_units": cu,
        "shapes": [
            [p.name, p.hidden, p.inter, p.experts, p.topk, p.quant, p.validated_mbt, list(p.ep_sizes)] for p in profiles
        ],
    }


def looked(
    folder: Path, rows: list[dict[str, Any]], texts: list[str], recorded: dict[str, Any], key: str, entries: int
) -> int:
    """Writes what a look compiled, and refuses a cache that a service would have to add to."""
    if (recorded["cache"], recorded["kernels"]) != (key, entries):
        baked = f"{recorded['kernels']} in {recorded['cache']}"
        print(f"error: {entries} kernels in {key}, baked were {baked}", file=sys.stderr)
        print("  why: a service asks for kernels that were not baked, and would compile as peers wait", file=sys.stderr)
        print("  fix: compare the calls of megamoe_atom/experts.py with bake_profile", file=sys.stderr)
        return 1
    if not texts:
        print("error: nothing was compiled beyond the cache", file=sys.stderr)
        print("  why: what a service compiles at its start would be served without having been linted", file=sys.stderr)
        print("  fix: see what FlyDSL said above; it may make its kernels in another way now", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for n, text in enumerate(texts):
        (folder / f"{n:03}.mlir").write_text(text, encoding="utf-8")
    for row in rows:
        print(f"{row['profile']:20} {row['kernel']:32} {row['tokens']!s:44} {row['seconds']:6.1f} s")
    print(f"{len(texts)} kernels are compiled at start, written to {folder}; all else was found in the cache")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile MegaMoE's cacheable kernels without a GPU.")
    parser.add_argument("--kernels", type=Path, required=True, help="the FlyDSL tree that holds kernels/")
    parser.add_argument("--out", type=Path, required=True, help="gets <hash>/ and aot.json")
    parser.add_argument("--profile", action="append", help="default: every profile of engine atom")
    parser.add_argument("--arch", default="gfx950")
    parser.add_argument("--cu", type=int, default=256, help="compute units; part of the kernels' names")
    parser.add_argument("--linked", choices=("on", "off"), default="off", help="bake stage 1 and combine, too")
    parser.add_argument("--bitcode", type=Path, default=Path("unset"), help="mori's device functions (code object 6)")
    parser.add_argument("--look", type=Path, help="compile what is left for the start into this folder, to be linted")
    parser.add_argument("--rank", type=int, action="append", help="of what links mori: this rank's alone; default: all")
    parser.add_argument("--verify", action="store_true", help="every kernel is found in OUT's cache; compiles nothing")
    options = parser.parse_args()

    from megamoe.deploy.profiles import load_profile, names

    bitcode: Path | None = options.bitcode if options.linked == "on" or options.look else None
    if bitcode is not None and not bitcode.is_file():
        print(f"error: {bitcode} does not exist", file=sys.stderr)
        print("  why: stage 1 and combine are linked with mori's device functions", file=sys.stderr)
        print("  fix: the step mori-bitcode makes it, where hipcc is; or build without KEEP_LINKED", file=sys.stderr)
        return 1
    profiles = [p for n in (options.profile or names()) if (p := load_profile(n)).engine == "atom"]
    kept_bitcode = None if options.look else bitcode  # a look is at the cache of a bake that links nothing
    needs = depends_on(options.kernels, profiles, options.arch, options.cu, kept_bitcode)
    key = hashlib.sha256(json.dumps(needs, sort_keys=True).encode()).hexdigest()[:16]
    cache = options.out / key
    # Before flydsl is imported: it reads these once.
    os.environ |= {
        "COMPILE_ONLY": "1",
        "ARCH": options.arch,
        "FLYDSL_GPU_ARCH": options.arch,
        "CU_NUM": str(options.cu),
        "FLYDSL_RUNTIME_CACHE_DIR": str(cache),
    }
    if options.verify:
        os.environ["FLYDSL_RUNTIME_RUN_ONLY"] = "1"
    if bitcode is not None:
        os.environ["MORI_SHMEM_BC"] = str(bitcode)
    sys.path.insert(0, str(options.kernels))
    stand_in_hardware(options.cu, bitcode)
    mega: Any = importlib.import_module("kernels.mega_moe.mega_moe")
    comm: Any = importlib.import_module("kernels.comm.flydsl_dispatch_combine_intranode_op")
    texts: list[str] = []
    if bitcode is None:
        mega.torch = comm.torch = MetaTorch()
        rows = [row for profile in profiles for row in bake_profile(profile, mega)]
    else:
        mega.torch = comm.torch = UntouchedTorch()
        comm.FlyDSLDispatchCombineIntraNodeOp._check_tensor_device = lambda *_a, **_k: None
        # Combine asks for a callable at once, which would load the object on a GPU; here it is compiled and kept.
        jit: Any = importlib.import_module("flydsl.compiler.jit_function")
        jit._compile_impl = lambda function, *arguments: function(*arguments) or (lambda *_a: None)
        texts = keep_texts(jit)
        rows = [row for profile in profiles for row in bake_linked(profile, mega, options.rank)]
    entries = sorted(cache.rglob("*.pkl"))
    for lock in cache.rglob("*.lock"):
        lock.unlink()
    if options.look:
        return looked(options.look, rows, texts, json.loads((options.out / "aot.json").read_text()), key, len(entries))
    if options.verify:
        recorded = json.loads((options.out / "aot.json").read_text())
        if (recorded["cache"], recorded["kernels"]) != (key, len(entries)):
            print(f"error: {len(entries)} kernels in {key}, recorded are {recorded['kernels']} in {recorded['cache']}")
            return 1
        print(f"a second process found all {len(entries)} kernels in {len(rows)} runs and compiled none")
        return 0
    if not entries:
        print(f"error: nothing was written to {cache}", file=sys.stderr)
        print("  why: every kernel would be compiled at the first call, while its peers wait", file=sys.stderr)
        print("  fix: see what FlyDSL said above; its cache conditions may have changed", file=sys.stderr)
        return 1
    for entry in entries:
        entry.chmod(0o644)  # FlyDSL makes it for its own user alone; another one serves
    report = {
        "schema_version": 1,
        "cache": key,
        "kernels": len(entries),
        "depends_on": needs,
        "baked": [{k: v for k, v in row.items() if k != "seconds"} for row in rows],
        "compiled_at_start": UNCACHED if bitcode is None else {},
    }
    (options.out / "aot.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    for row in rows:
        print(f"{row['profile']:20} {row['kernel']:32} {row['tokens']!s:44} {row['seconds']:6.1f} s")
    print(f"{len(entries)} kernels, cache {key}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
