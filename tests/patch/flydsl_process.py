"""Runs FlyDSL's real code on a machine without a GPU and prints JSON. Called by test_real_flydsl.py and run_proof.py.

Usage: python flydsl_process.py FLYDSL_DIR ADAPTER_DIR layouts|ledger|load|runtime

layouts: our four layouts against upstream's functions, byte for byte (triton is a mock: only imported there).
ledger: the real MegaMoE constructor on meta tensors, with a symmetric heap that only counts, against limits.py: the
    heap, and all ordinary device memory that the constructor asks for.
load: our kernel loader on the real checkout, as it is and with one file changed.
runtime: startup.make_runtime on an edited checkout: the real class, found, judged and constructed as in a service.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import sys
import tempfile
import types
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

FLYDSL, ADAPTER, SCENARIO = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path[:0] = [str(FLYDSL), ADAPTER]

import torch  # noqa: E402 - after the path

torch.set_num_threads(1)


def layouts() -> dict[str, object]:
    sys.modules["triton"], sys.modules["triton.language"] = MagicMock(), MagicMock()
    from megamoe_atom import layout

    spec = importlib.util.spec_from_file_location("upstream_gemm", FLYDSL / "tests/kernels/utils/gemm_common_utils.py")
    gemm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gemm)
    spec = importlib.util.spec_from_file_location("upstream_utils", FLYDSL / "tests/utils.py")
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    generator = torch.Generator().manual_seed(8)
    compared, different = 0, []

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    def compare(name: str, shape: tuple[int, ...], ours: torch.Tensor, theirs: torch.Tensor) -> None:
        nonlocal compared
        compared += 1
        if not torch.equal(ours.reshape(-1), theirs.reshape(-1).view(torch.uint8)):
            different.append([name, list(shape)])

    for e in (1, 2, 3, 5):
        for inter in (64, 128, 256, 320, 768):
            for hidden in (256, 512, 768, 1024):
                x = draw(e, 2 * inter, hidden // 2)
                for up in (True, False):
                    compare(
                        f"w13 {up}", x.shape, layout.shuffle_w13(x, gate_up=up), gemm.shuffle_weight_w4(x, 16, up, True)
                    )
                s = draw(e, 2 * inter, hidden // 32)
                compare("w13 scale", s.shape, layout.shuffle_w13_scale(s),
                        gemm.shuffle_scale_w4(s.view(-1, hidden // 32), experts_cnt=e, gate_up=True))  # fmt: skip
                w2 = draw(e, hidden, inter // 2)
                compare("w2", w2.shape, layout.shuffle_w2(w2), utils.shuffle_weight(w2, layout=(16, 16)))
                s2 = draw(e, hidden, inter // 32)
                theirs, ours = gemm.e8m0_shuffle(s2.view(-1, inter // 32)), layout.shuffle_w2_scale(s2)
                # Upstream leaves pads uninitialised, so they are compared through the inverse, which drops them.
                compare("w2 scale", s2.shape, layout.unshuffle_w2_scale(theirs.view(torch.uint8), s2.shape), s2)
                compare("w2 scale inverse", s2.shape, layout.unshuffle_w2_scale(ours, s2.shape), s2)
                if inter % 256 == 0:
                    compare("w2 scale unpadded", s2.shape, ours, theirs)
    return {"compared": compared, "different": different}


class MetaTorch:
    """`torch` as two upstream modules see it: every device is "meta", so tensors have sizes and no memory.

    made: every tensor that a factory function gave out: a weak reference and its bytes.
    """

    made: ClassVar[list[tuple[weakref.ref[torch.Tensor], int]]] = []

    def __getattr__(self, name: str) -> object:
        value = getattr(torch, name)
        if name not in ("zeros", "ones", "empty", "full", "arange", "tensor"):
            return value

        def counted(*arguments: object, **named: object) -> torch.Tensor:
            t = value(*arguments, **named)
            if t.device.type == "meta":  # one helper makes an empty CPU tensor to ask a dtype's size
                self.made.append((weakref.ref(t), t.numel() * t.element_size()))
            return t

        return counted

    @staticmethod
    def device(*_args: object) -> torch.device:
        return torch.device("meta")


def meta_machine() -> list[int]:
    """FlyDSL's host code on meta tensors and one MI355X; returns the sizes that the symmetric heap is asked for."""
    heap: list[int] = []

    def create(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        t = torch.empty(shape, dtype=dtype, device="meta")
        heap.append(t.numel() * t.element_size())
        return t

    shmem = types.ModuleType("mori.shmem")
    shmem.mori_shmem_create_tensor = create
    shmem.shmem_barrier_all = lambda: None
    shmem.shmem_ptr_p2p = lambda *_a: 256
    for name in ("mori", "mori.ir", "mori.ir.flydsl"):
        sys.modules[name] = MagicMock()
    sys.modules["mori.shmem"] = sys.modules["mori"].shmem = shmem
    properties = SimpleNamespace(
        multi_processor_count=256, name="AMD Instinct MI355X", gcnArchName="gfx950:sramecc+:xnack-"
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda *_a: properties
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 8
    torch.cuda.synchronize = lambda *_a: None
    torch.cuda.current_stream = lambda *_a: SimpleNamespace(cuda_stream=0)
    for name in ("kernels.mega_moe.mega_moe", "kernels.comm.flydsl_dispatch_combine_intranode_op"):
        importlib.import_module(name).torch = MetaTorch()
    return heap


def ledger() -> dict[str, object]:
    from megamoe_atom import limits
    from megamoe_atom.experts import Geometry
    from megamoe_atom.layout import ConvertedLayer

    heap = meta_machine()
    rows = []
    shapes = {
        "V4-Pro": (limits.V4_PRO, range(7, 15)), "V4-Flash": (limits.V4_FLASH, range(7, 15)),
        "R1": (limits.R1, (13,)), "V4-Pro on 4 ranks": (dataclasses.replace(limits.V4_PRO, ep_size=4), (9, 12, 13)),
    }  # fmt: skip
    for model, (shape, powers) in shapes.items():
        for mtpr in (2**n for n in powers):
            g = shape.at(mtpr)
            heap.clear()
            MetaTorch.made.clear()
            e, h, i = g.local_experts, g.hidden, g.inter

            def meta(*shape: int) -> torch.Tensor:
                return torch.empty(shape, dtype=torch.uint8, device="meta")

            layer = ConvertedLayer(
                meta(e * i * h), meta(e * 2 * i * h // 32), meta(e * h * i // 2), meta(e * h * i // 32),
                (e, 2 * i, h // 2), (e, h, i // 2), True,
            )  # fmt: skip
            arguments = Geometry(1, g.ep_size, h, i, g.experts, g.topk, g.quant, mtpr).kernel_arguments(layer)
            instance = sys.modules["kernels.mega_moe"].MegaMoE(
                **arguments
            )  # with exactly the keywords that the adapter passes
            rows.append(
                {
                    "model": model, "mtpr": mtpr, "allocations": len(heap), "device_tensors": len(MetaTorch.made),
                    "heap": sum(-(-size // 256) * 256 for size in heap), "our_heap": limits.megamoe_heap_bytes(g),
                    "hbm": sum(size for _, size in MetaTorch.made), "our_hbm": limits.megamoe_hbm_bytes(g),
                    # The identity that fills tok_id_to_src, and a counter that is made twice.
                    "let_go": sum(size for ref, size in MetaTorch.made if ref() is None) == 4 * g.received + 4,
                }
            )  # fmt: skip
            del instance
    different = [r for r in rows if (r["heap"], r["hbm"], r["let_go"]) != (r["our_heap"], r["our_hbm"], True)]
    return {"rows": rows, "different": different, "unpinned": unpinned()}


def unpinned() -> list[str]:
    """Files of the checkout that have been imported and whose content nobody checks."""
    from megamoe_atom.kernel import pinned_files

    files = [Path(m.__file__).resolve() for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
    loaded = {f.relative_to(FLYDSL).as_posix() for f in files if f.is_relative_to(FLYDSL / "kernels")}
    assert "kernels/mega_moe/mega_moe.py" in loaded
    return sorted(loaded - set(pinned_files()[1]))


def load() -> dict[str, object]:
    from megamoe_atom.kernel import verify_files
    from megamoe_atom.problem import Problem

    found = verify_files(FLYDSL)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FLYDSL / "kernels", Path(folder) / "kernels")
        changed = Path(folder) / "kernels/mega_moe/epilogue.py"
        changed.write_bytes(changed.read_bytes() + b"\n")
        try:
            verify_files(Path(folder))
            code = "accepted"
        except Problem as problem:
            code = problem.code if "epilogue.py" in str(problem) and len(problem.reasons) == 1 else str(problem)
    return {"files": len(found), "changed_file": code}


def runtime() -> dict[str, object]:
    from megamoe_atom import limits, startup
    from megamoe_atom.layout import ConvertedLayer
    from megamoe_atom.problem import Problem

    heap = meta_machine()
    config = SimpleNamespace(
        tensor_parallel_size=1, enable_dp_attention=True, prefill_context_parallel_size=1,
        enable_expert_parallel=True, parallel_config=SimpleNamespace(data_parallel_size=8),
        enable_tbo=False, enable_tbo_decode=False,
        eplb_enable=False, plugin_config=None, max_num_batched_tokens=8192,
        hf_config=SimpleNamespace(n_shared_experts=1),
    )  # fmt: skip
    g = limits.V4_PRO

    def meta(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="meta")

    parallel = SimpleNamespace(use_ep=True, ep_size=8, ep_rank=3, use_all2all_kernels=True)
    layer = SimpleNamespace(
        layer_name="layers.0", moe_parallel_config=parallel, moe_config=SimpleNamespace(max_num_tokens=8192),
        global_num_experts=g.experts, local_num_experts=48, num_redundant_experts=0, num_fused_shared_experts=0,
        top_k=g.topk, has_bias=False, activation="ActivationType.Silu", apply_router_weight_on_input=False,
        swiglu_limit=10.0, w13_weight=meta(1),
    )  # fmt: skip
    method = SimpleNamespace(
        hidden_size=g.hidden, intermediate_size=g.inter, hidden_pad=0, intermediate_pad=0, static_input_scales=False,
        quant_type="QuantType.per_1x32",
    )  # fmt: skip
    converted = ConvertedLayer(
        meta(48 * g.inter * g.hidden), meta(48 * 2 * g.inter * g.hidden // 32), meta(48 * g.hidden * g.inter // 2),
        meta(48 * g.hidden * g.inter // 32), (48, 2 * g.inter, g.hidden // 2), (48, g.hidden, g.inter // 2), True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1", "ATOM_FLYDSL_KERNELS_PATH": str(FLYDSL),
            "MORI_SHMEM_HEAP_SIZE": "8G", "MEGAMOE_STATUS_DIR": folder, "MEGAMOE_SELFTEST": "0",
        }  # fmt: skip
        made = startup.make_runtime(config, environment)
        geometry = made.geometry(layer, method)
        experts = made.add_layer("layers.0", geometry, converted)
        kernel = experts.kernel()
        evidence = made.status.status
        small = dict(environment, MORI_SHMEM_HEAP_SIZE="4G")
        try:
            startup.make_runtime(config, small).geometry(layer, method)
            refused = []
        except Problem as problem:
            refused = [reason.code for reason in problem.reasons]
    return {
        "class": f"{type(kernel).__module__}.{type(kernel).__name__}",
        "file_below_the_checkout": Path(sys.modules[type(kernel).__module__].__file__).is_relative_to(FLYDSL.resolve()),
        "bound": kernel._s1_w1 is converted.w13 and kernel.w2_scale is converted.w2_scale,
        "swiglu_limit": geometry.swiglu_limit, "mtpr": kernel.mtpr, "rank": kernel.rank,
        "heap_used": evidence.heap_used_bytes == sum(-(-size // 256) * 256 for size in heap),
        "edits": len(evidence.kernel_edits), "small_heap": refused,
    }  # fmt: skip


SCENARIOS = {"layouts": layouts, "ledger": ledger, "load": load, "runtime": runtime}
print("\n" + json.dumps(SCENARIOS[SCENARIO]()))
