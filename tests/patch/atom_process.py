"""Runs ATOM's real, edited moe.py in a process of its own and prints JSON. Called by test_real_moe.py.

Only aiter, mori and triton are stubs (modules that answer any attribute); atom/__init__.py is skipped, as ATOM's own
tests do, because it starts the engine. FusedMoE, Mxfp4MoEMethod, the routing and apply() are upstream's.

Usage: python atom_process.py EDITED_TREE SCENARIO
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import threading
import types
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

TREE, SCENARIO = Path(sys.argv[1]), sys.argv[2]
STUBBED = ("aiter", "mori", "triton", "zmq")


class AnyModule(types.ModuleType):
    """Answers every attribute with a mock, so that `from aiter.x import y` works."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AnyModule(spec.name)

    def exec_module(self, module) -> None:
        pass


import torch  # noqa: E402 - before the stubs: torch looks for triton itself
import torch._dynamo.symbolic_convert  # noqa: E402 - the same

sys.meta_path.insert(0, Stubs())
torch.set_num_threads(1)
sys.path[:0] = [str(TREE), str(Path(__file__).resolve().parents[2] / "atom_patch")]
atom_package = types.ModuleType("atom")
atom_package.__path__ = [str(TREE / "atom")]
sys.modules["atom"] = atom_package

import aiter  # noqa: E402
import aiter.dist.parallel_state as parallel_state  # noqa: E402
import aiter.jit.utils.chip_info as chip_info  # noqa: E402
import aiter.jit.utils.torch_guard as torch_guard  # noqa: E402
import aiter.ops.flydsl.moe_common as moe_common  # noqa: E402


class QuantType(enum.Enum):
    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5


class ActivationType(enum.Enum):
    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2


class GateMode(enum.Enum):
    SEPARATED = "separated"
    INTERLEAVE = "interleave"


aiter.QuantType, aiter.ActivationType, moe_common.GateMode = QuantType, ActivationType, GateMode
aiter.dtypes = SimpleNamespace(fp4x2=torch.float4_e2m1fn_x2, fp8=torch.float8_e4m3fn, bf16=torch.bfloat16)
chip_info.get_gfx = lambda: "gfx950"
torch_guard.torch_compile_guard = lambda *_a, **_k: lambda f: f
WORLD = 8


class Rank(threading.local):
    """The rank that is being simulated in this thread."""

    now = 0


RANK = Rank()


class Group:
    """A process group as seen from the rank that is being simulated."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.touched = 0
        self.handles = 0

    @property
    def rank_in_group(self) -> int:
        return RANK.now if self.world_size > 1 else 0

    @property
    def device_communicator(self) -> SimpleNamespace:
        self.touched += 1

        def get_handle(_arguments: object) -> None:
            self.handles += 1

        return SimpleNamespace(
            all2all_manager=SimpleNamespace(rank=self.rank_in_group, world_size=self.world_size, get_handle=get_handle)
        )


TP, DP, EP = Group(1), Group(WORLD), Group(WORLD)
parallel_state.get_tp_group = lambda: TP
parallel_state.get_dp_group = lambda: DP
parallel_state.get_ep_group = lambda: EP
parallel_state.get_prefill_context_model_parallel_world_size = lambda: 1
parallel_state.get_prefill_context_model_parallel_rank = lambda: 0

import atom.config as atom_config  # noqa: E402
import atom.model_ops.moe as moe  # noqa: E402

# What importing the edited moe.py alone brought in, before this file imports more of the adapter.
ADAPTER_MODULES_BEFORE_IMPORT = sorted(m for m in sys.modules if m.startswith("megamoe_atom"))
from megamoe_atom import factory, kernel_edits, reference, startup, warmup  # noqa: E402
from megamoe_atom.experts import MegaExperts  # noqa: E402
from megamoe_atom.problem import Problem  # noqa: E402
from megamoe_atom.selftest import SelfTest, make_batch, rel_l2  # noqa: E402
from megamoe_atom.selftest import partial as oracle  # noqa: E402
from megamoe_atom.status import read_status_dir  # noqa: E402

HIDDEN, INTER, EXPERTS, TOPK, MTPR, LIMIT = 256, 256, 32, 4, 16, 10.0
QUANT = SimpleNamespace(quant_type=QuantType.per_1x32, quant_dtype=aiter.dtypes.fp4x2, quant_method="", is_dynamic=True)


def config(**change: object) -> SimpleNamespace:
    base = {
        "enable_dp_attention": True, "enable_expert_parallel": True, "moe_ep_flatten_tp_across_dp": False,
        "parallel_config": SimpleNamespace(data_parallel_size_local=1, data_parallel_size=WORLD), "eplb_enable": False,
        "plugin_config": None,
        "eplb_config": SimpleNamespace(num_redundant_experts=0), "torch_dtype": torch.bfloat16,
        "max_num_batched_tokens": MTPR, "compilation_config": SimpleNamespace(static_forward_context={}),
        "hf_config": SimpleNamespace(n_shared_experts=1, vocab_size=129280), "tensor_parallel_size": 1,
        "enable_tbo": False, "enable_tbo_decode": False, "prefill_context_parallel_size": 1,
    }  # fmt: skip
    return SimpleNamespace(**{**base, **change})


atom_config._current_atom_config = config()
moe.is_rocm_aiter_fusion_shared_expert_enabled_for_quant_config = lambda *_a, **_k: False


class QuantConfig:
    online_quant = False

    @staticmethod
    def get_layer_quant_config(*_args: object, **_kwargs: object) -> SimpleNamespace:
        return QUANT


def routing(hidden_states, gating_output, topk, renormalize):
    """The hash-routing hook of ATOM: here the logits carry the ids and weights of the batch."""
    return gating_output[:, topk:].contiguous(), gating_output[:, :topk].to(torch.int32)


def make_layer(name: str, **change: object):
    layer = moe.FusedMoE(
        num_experts=EXPERTS, top_k=TOPK, hidden_size=HIDDEN, intermediate_size=INTER, quant_config=QuantConfig(),
        prefix=name, custom_routing_function=routing, activation=ActivationType.Silu, **change,
    )  # fmt: skip
    layer.swiglu_limit = LIMIT
    return layer


def fill(layer, seed: int) -> None:
    """What the loader would have read: random fp4 codes and scales."""
    generator = torch.Generator().manual_seed(seed)
    for name, low, high in (
        ("w13_weight", 0, 256), ("w13_weight_scale", 119, 123), ("w2_weight", 0, 256), ("w2_weight_scale", 119, 123),
    ):  # fmt: skip
        data = getattr(layer, name).data.view(torch.uint8)
        data.copy_(torch.randint(low, high, data.shape, generator=generator, dtype=torch.uint8))


def requested() -> dict[str, object]:
    """Two layers on eight ranks through construction, both weight hooks (twice), init_prepare_finalize and apply()."""
    group = reference.ReferenceGroup(WORLD)
    names = ["layers.0.ffn.experts", "layers.1.ffn.experts"]
    test = SelfTest(group_sum=lambda t: t, local_ranks=range(WORLD), repeats=4, sweep=False)
    layers, raw, runtimes, empty = {}, {}, [], True
    for rank in range(WORLD):
        RANK.now = rank
        atom_config._current_atom_config = config()
        factory._runtime = factory.Runtime(
            build=partial(reference.MegaMoE, group=group), swiglu_in_kernel=True, clone=False, selftest=test,
            initialise_shmem=lambda: EP.device_communicator.all2all_manager,
        )  # fmt: skip
        runtimes.append(factory._runtime)
        for n, name in enumerate(names):
            layer = make_layer(name)
            fill(layer, 100 * n + rank)
            raw[name, rank] = tuple(
                getattr(layer, w).data.view(torch.uint8).clone()
                for w in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
            )
            method = layer.quant_method
            method.process_weights_after_loading(layer)  # deepseek_v4.load_weights comes first
            layer.process_weights_after_loading()  # then the loader, in its order
            layer.quant_method.process_weights_after_loading(layer)
            layer.quant_method.init_prepare_finalize(layer)
            layer.quant_method.init_prepare_finalize(layer)
            sizes = [
                getattr(layer, w).numel() for w in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
            ]
            empty = empty and sizes == [0, 0, 0, 0]
            assert layer.quant_method is method
            layers[name, rank] = layer
    worst, selftest = 0.0, None
    for name in names:
        geometry = layers[name, 0].quant_method.fused_experts.geometry
        batch = make_batch(geometry, 77, MTPR)
        want = sum(oracle(raw[name, r], batch, geometry, r) for r in range(WORLD)).view(WORLD, MTPR, HIDDEN)
        for rank in range(WORLD):
            layers[name, rank].quant_method.fused_experts.kernel()
        for rank in range(WORLD):
            RANK.now = rank
            logits = torch.cat((batch.ids[rank].float(), batch.weights[rank]), dim=-1)
            with torch.inference_mode():
                got = layers[name, rank].forward_impl(batch.x[rank], logits)
            worst = max(worst, rel_l2(got.float(), want[rank]))

    def run(name, inputs):
        for rank in range(WORLD):
            layers[name, rank].quant_method.fused_experts.kernel()
        return [layers[name, r].quant_method.fused_experts.run(x, w, i) for r, (x, i, w) in enumerate(inputs)]

    selftest = test.verify(run, lambda name, r: layers[name, r].quant_method.fused_experts.layer).as_data()
    first = layers[names[0], 0]
    try:
        RANK.now = 0
        first.forward_impl(torch.zeros(MTPR + 1, HIDDEN, dtype=torch.bfloat16), torch.ones(MTPR + 1, 2 * TOPK))
        exceeded = "accepted"
    except Problem as problem:
        exceeded = problem.code
    return {
        "class": type(first.quant_method).__name__,
        "subclass": isinstance(first.quant_method, moe.Mxfp4MoEMethod),
        "experts": isinstance(first.quant_method.fused_experts, MegaExperts),
        "not_a_module": not isinstance(first.quant_method.fused_experts, torch.nn.Module),
        "emptied": empty,
        "instances_per_rank": [len(r.pool) for r in runtimes],
        "mori_handles": EP.handles,
        "manager_touched": EP.touched,
        "rel_l2": worst,
        "selftest_worst": max(r["rel_worst_row"] for r in selftest["layers"]),
        "exceeded": exceeded,
        "kernels_normal_tensors": not any(
            t.is_inference() for r in runtimes for k in r.pool._kernels.values() for t in [k._output(1)]
        ),
    }


def not_requested() -> dict[str, object]:
    layer = make_layer("layers.0.ffn.experts")
    return {
        "exact": type(layer.quant_method) is moe.Mxfp4MoEMethod,
        "loaded": sorted(m for m in ADAPTER_MODULES_BEFORE_IMPORT if m not in ("megamoe_atom",)),
    }


def refusals() -> dict[str, object]:
    """Launches that must be refused at construction or conversion, by code."""
    codes: dict[str, object] = {}
    environment = {"ATOM_FLYDSL_KERNELS_PATH": "/nonexistent"}
    for name, change in (
        ("tp", {"tensor_parallel_size": 8}), ("ep_off", {"enable_expert_parallel": False}),
        ("dp", {"parallel_config": SimpleNamespace(data_parallel_size_local=1, data_parallel_size=1)}),
        ("dp_attention", {"enable_dp_attention": False}), ("eplb", {"eplb_enable": True}), ("tbo", {"enable_tbo": True}),  # noqa: E501 - a table
        ("pcp", {"prefill_context_parallel_size": 2}), ("flydsl_path", {}),
    ):  # fmt: skip
        try:
            startup.make_runtime(config(**change), environment)
            codes[name] = "accepted"
        except Problem as problem:
            codes[name] = [r.code for r in problem.reasons]
    return codes


class Together:
    """The ranks' collectives in one process: each rank is a thread, and every call waits for all."""

    def __init__(self) -> None:
        self.meet = threading.Barrier(WORLD, timeout=120)
        self._parts: list[torch.Tensor | None] = [None] * WORLD

    def all_reduce(self, t: torch.Tensor, group: object = None) -> None:
        assert group == "the EP group's device group"
        self._parts[RANK.now] = t.clone()
        self.meet.wait()
        total = torch.stack(self._parts).sum(0)
        self.meet.wait()
        t.copy_(total)

    def kernel_class(self) -> type:
        """MegaMoE as FlyDSL's checkout would give it: construction and forward are collective."""
        group, meet = reference.ReferenceGroup(WORLD), self.meet

        class MegaMoE(reference.MegaMoE):
            def __init__(self, *, swiglu_limit: float = 0.0, **named: object) -> None:
                super().__init__(swiglu_limit=swiglu_limit, group=group, **named)
                meet.wait()

            def forward(self, *inputs: torch.Tensor, **named: object) -> torch.Tensor:
                self.prepare()
                meet.wait()  # all ranks have bound this layer
                out = super().forward(*inputs, **named)
                meet.wait()
                return out

        return MegaMoE

    def run(self, work) -> list[object]:
        """work(rank) in every rank's thread; the result or the Problem of each."""
        results: list[object] = [None] * WORLD

        def body(rank: int) -> None:
            RANK.now = rank
            try:
                results[rank] = work(rank)
            except Problem as problem:
                results[rank] = problem
            except BaseException:
                self.meet.abort()
                raise

        threads = [threading.Thread(target=body, args=(r,)) for r in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def graph_class() -> type:
    """torch.cuda.CUDAGraph as ATOM uses it; what was recorded runs again at a replay."""

    class CUDAGraph:
        recorded = staticmethod(lambda: None)

        def capture_begin(self, *_arguments: object, **_named: object) -> None:
            pass

        def capture_end(self) -> None:
            pass

        def replay(self) -> None:
            self.recorded()

    return CUDAGraph


def start(folder: Path, *, spoil: bool) -> dict[str, object]:
    """A whole start: make_runtime on every rank, two layers, ATOM's warm-up hook, then eager and graph steps."""
    global HIDDEN, EXPERTS, TOPK
    HIDDEN, EXPERTS, TOPK = 512, 16, 8  # the reference kernel is fastest where most experts are used
    together = Together()
    torch.distributed.all_reduce = together.all_reduce
    EP.device_group = "the EP group's device group"
    EP.handles = 0
    # Edges: the machine, the installed wheel and FlyDSL's checkout; everything between them is real.
    machine = SimpleNamespace(gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256, name="MI355X")
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda *_a: machine
    torch.cuda.current_device = lambda: RANK.now
    torch.cuda.device_count = lambda: WORLD
    installed = startup.importlib.metadata.version
    startup.importlib.metadata.version = lambda name: "0.2.4" if name == "flydsl" else installed(name)
    edits = frozenset(kernel_edits.EDITS)
    blobs = {
        path: next(blob for made, blob in images.items() if made == edits & frozenset().union(*images))
        for path, images in kernel_edits.pinned().files.items()
    }
    startup.verify_files = lambda _root: blobs
    kernel_class = together.kernel_class()
    startup.load_megamoe = lambda _path: kernel_class
    os.environ |= {
        "ATOM_FLYDSL_KERNELS_PATH": "/flydsl", "MORI_SHMEM_HEAP_SIZE": "1G", "MEGAMOE_STATUS_DIR": str(folder),
    }  # fmt: skip
    names = ["layers.0.ffn.experts", "layers.1.ffn.experts"]
    layers, runtimes, graphs = {}, [], []
    for rank in range(WORLD):
        RANK.now = rank
        atom_config._current_atom_config = config()
        factory._runtime = None
        torch.cuda.CUDAGraph = graph_class()  # one class per rank: each rank is a process of its own
        graphs.append(torch.cuda.CUDAGraph)
        for n, name in enumerate(names):
            layer = layers[name, rank] = make_layer(name)
            fill(layer, 100 * n + rank)
            layer.quant_method.process_weights_after_loading(layer)
            layer.quant_method.init_prepare_finalize(layer)
        runtimes.append(factory._runtime)
    if spoil:
        layers[names[1], 3].quant_method.fused_experts.layer.w2[: HIDDEN * INTER // 2] = 0  # its first expert
    warmup.current_runtime = lambda: runtimes[RANK.now]
    runner = SimpleNamespace(config=config())
    ids = together.run(lambda _rank: warmup.warmup_token_ids(MTPR, runner=runner))
    statuses = read_status_dir(folder)
    result: dict[str, object] = {
        "states": sorted({s.selftest_state for s in statuses}), "ranks": [s.rank for s in statuses],
        "layers": sorted({tuple(s.layers_converted) for s in statuses}), "instances": [len(r.pool) for r in runtimes],
        "mori_handles": EP.handles,
    }  # fmt: skip
    if spoil:
        return result | {"problems": sorted({str(p.reasons[0].what) for p in ids})}

    def steps(rank: int) -> list[int]:
        """One eager step of all layers, one captured, three replays; launches by the status and by the kernel."""
        batch = make_batch(layers[names[0], rank].quant_method.fused_experts.geometry, 5, MTPR)
        logits = torch.cat((batch.ids[rank].float(), batch.weights[rank]), dim=-1)

        def step() -> None:
            with torch.inference_mode():
                for name in names:
                    layers[name, rank].forward_impl(batch.x[rank], logits)

        step()
        graph = graphs[rank]()
        graph.capture_begin(None, capture_error_mode="global")
        step()
        graph.capture_end()
        kernel = layers[names[0], rank].quant_method.fused_experts.kernel()
        only_recorded = len(names)

        def again() -> None:
            for name in names:
                fused = layers[name, rank].quant_method.fused_experts
                fused.kernel().forward(batch.x[rank], batch.weights[rank], batch.ids[rank])

        graph.recorded = again
        for _ in range(3):
            graph.replay()
        return [runtimes[rank].status.status.launches, kernel.launches - only_recorded]

    counts = together.run(steps)
    return result | {
        "ids_varied": len(set(ids[0])) == MTPR and all(i == ids[0] for i in ids),
        "worst": max(max(s.selftest.values()) for s in statuses), "figures": [len(s.selftest) for s in statuses],
        "extremes": sorted(runtimes[0].report.extremes), "buckets": sorted(runtimes[0].report.buckets),
        "heap": [statuses[0].heap_asked_bytes, statuses[0].heap_used_bytes], "mtpr": sorted({s.mtpr for s in statuses}),
        "versions": sorted(statuses[0].versions), "edits": statuses[0].kernel_edits,
        "launches": counts, "swiglu_limit": statuses[0].geometry["swiglu_limit"],
    }  # fmt: skip


def started() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            "spoiled": start(Path(folder) / "spoiled", spoil=True),
            "whole": start(Path(folder) / "whole", spoil=False),
        }


if SCENARIO != "not_requested":
    os.environ |= {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1"}
SCENARIOS = {"requested": requested, "not_requested": not_requested, "refusals": refusals, "started": started}
print(json.dumps(SCENARIOS[SCENARIO]()))
