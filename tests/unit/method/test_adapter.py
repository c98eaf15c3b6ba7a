"""Factory, method, experts, kernel loader and warm-up, each against small fakes of ATOM's objects."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cluster import convert, geometry, random_weights
from megamoe_atom import factory, kernel, kernel_edits, reference, startup, warmup
from megamoe_atom.experts import KernelPool, MegaExperts, check_routing
from megamoe_atom.method import mega_method_class
from megamoe_atom.problem import Problem
from megamoe_atom.selftest import SelfTest
from megamoe_atom.settings import parse
from megamoe_atom.startup import config_reasons, status_writer
from megamoe_atom.startup import make_runtime as make_started_runtime
from megamoe_atom.status import read_status_dir
from torch.utils._python_dispatch import TorchDispatchMode

EDITS = frozenset({"tile_wait"})


class Base:
    """Stands where ATOM's Mxfp4MoEMethod is handed in; the real one is exercised by tests/patch/test_real_moe.py."""

    def __init__(self, quant_config: object, moe: object) -> None:
        self.quant_config, self.moe, self.fused_experts = quant_config, moe, None
        self.hidden_size = self.intermediate_size = 256
        self.hidden_pad = self.intermediate_pad = 0
        self.static_input_scales, self.quant_type = False, "QuantType.per_1x32"
        self.use_triton = self.use_triton_decode = True

    def get_fused_moe_quant_config(self, _layer: object) -> str:
        return "quant config"


def one_rank(**change: object) -> SimpleNamespace:
    g = geometry(world_size=2)
    raw = random_weights(g, 3)
    parallel = SimpleNamespace(use_ep=True, ep_size=2, ep_rank=0, use_all2all_kernels=True)
    names = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    base = {
        "layer_name": "layers.0", "moe_parallel_config": parallel, "local_num_experts": 4, "global_num_experts": 8,
        "num_fused_shared_experts": 0, "num_redundant_experts": 0, "has_bias": False,
        "activation": "ActivationType.Silu",
        "apply_router_weight_on_input": False, "top_k": 2, "swiglu_limit": 10.0,
        "moe_config": SimpleNamespace(max_num_tokens=16),
        **{n: torch.nn.Parameter(t.clone(), requires_grad=False) for n, t in zip(names, raw, strict=True)},
    }  # fmt: skip
    return SimpleNamespace(**{**base, **change})


def make_runtime(**change: object) -> factory.Runtime:
    base = {"build": reference.MegaMoE, "initialise_shmem": lambda: None, "swiglu_in_kernel": True, "clone": False}
    return factory.Runtime(**{**base, **change})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_process_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_runtime", None)
    for name in factory.SWITCHES:
        monkeypatch.delenv(name, raising=False)


# ---- not requested ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [("0", "0"), ("1", "0"), ("0", "1"), ("", "1")])
def test_without_both_switches_the_factory_is_atoms_constructor(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, str]
) -> None:
    for name, value in zip(factory.SWITCHES, values, strict=True):
        monkeypatch.setenv(name, value)

    def config() -> object:
        raise AssertionError("the config is not read when MegaMoE was not requested")

    made = factory.mxfp4_moe_method(Base, "quant", "moe", layer=None, config=config)
    assert type(made) is Base
    assert (made.quant_config, made.moe) == ("quant", "moe")
    assert warmup.warmup_token_ids(5, runner=None) == [0] * 5


def test_importing_the_edited_names_imports_neither_torch_nor_the_adapter() -> None:
    code = (
        "import sys, megamoe_atom.factory, megamoe_atom.warmup;"
        "bad=[m for m in sys.modules if m.split('.')[0] in ('torch','aiter','mori','kernels','atom')];"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_module_of_the_adapter_imports_atom_aiter_mori_or_flydsl_when_it_is_imported() -> None:
    for path in sorted(Path(factory.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & {"atom", "aiter", "mori", "flydsl", "kernels"}, path.name


# ---- method ----------------------------------------------------------------------------------------------------------


def test_the_weight_hook_converts_once_and_releases_weights_and_scales() -> None:
    shmem: list[int] = []
    runtime, layer = make_runtime(initialise_shmem=lambda: shmem.append(1)), one_rank()
    method = mega_method_class(Base)("quant", "moe", runtime=runtime)
    assert not method.use_triton and not method.use_triton_decode, "those paths come first in ATOM's apply()"
    method.process_weights_after_loading(layer)
    first = method._converted
    method.process_weights_after_loading(layer)
    assert method._converted is first
    with pytest.raises(Problem) as caught:  # ATOM's own path would run on the emptied weights
        method.fused_experts(hidden_states=None, topk_weights=None, topk_ids=None)
    assert caught.value.code == "not_ready"
    for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"):
        assert getattr(layer, name).numel() == 0
    method.init_prepare_finalize(layer)
    experts = method.fused_experts
    method.init_prepare_finalize(layer)
    assert method.fused_experts is experts
    assert method.moe_quant_config == "quant config"
    assert shmem == [1]


def test_in_place_conversion_equals_the_conversion_of_a_copy() -> None:
    layer = one_rank()
    want = convert(random_weights(geometry(), 3))
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    method.process_weights_after_loading(layer)
    got = method._converted
    for name in ("w13", "w13_scale", "w2", "w2_scale"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name


def test_one_class_is_made_per_base() -> None:
    assert mega_method_class(Base) is mega_method_class(Base)
    assert issubclass(mega_method_class(Base), Base)


def test_reloaded_raw_weights_are_refused_because_graphs_hold_the_old_address() -> None:
    layer = one_rank()
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    method.process_weights_after_loading(layer)
    layer.w13_weight.data = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(Problem) as caught:
        method.process_weights_after_loading(layer)
    assert caught.value.code == "weights_reloaded"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            {"moe_parallel_config": SimpleNamespace(use_ep=False, ep_size=1, ep_rank=0, use_all2all_kernels=True)},
            "ep_off",
        ),
        (
            {"moe_parallel_config": SimpleNamespace(use_ep=True, ep_size=2, ep_rank=0, use_all2all_kernels=False)},
            "mori",
        ),
        ({"global_num_experts": 9}, "expert_split"),
        ({"local_num_experts": 5}, "expert_count"),
        ({"num_fused_shared_experts": 1}, "fused_shared_experts"),
        ({"num_redundant_experts": 8}, "redundant_experts"),
        ({"has_bias": True}, "bias"),
        ({"activation": "ActivationType.Gelu"}, "activation"),
        ({"apply_router_weight_on_input": True}, "router_weight_on_input"),
        ({"moe_config": SimpleNamespace(max_num_tokens=48)}, "mtpr"),
    ],
)
def test_a_layer_that_cannot_run_is_refused_before_a_byte_moves(change: dict[str, object], code: str) -> None:
    layer = one_rank(**change)
    before = layer.w13_weight.clone()
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    with pytest.raises(Problem) as caught:
        method.process_weights_after_loading(layer)
    assert code in {r.code for r in caught.value.reasons}
    assert all(r.what.startswith("layers.0: ") for r in caught.value.reasons)
    assert torch.equal(layer.w13_weight, before)


@pytest.mark.parametrize(
    ("attribute", "value", "code"), [("hidden_pad", 64, "padding"), ("static_input_scales", True, "static_scales")]
)
def test_what_only_the_method_knows_is_refused(attribute: str, value: object, code: str) -> None:
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    setattr(method, attribute, value)
    with pytest.raises(Problem) as caught:
        method.process_weights_after_loading(one_rank())
    assert code in {r.code for r in caught.value.reasons}


def test_scales_of_another_block_size_are_refused() -> None:
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    method.quant_type = "QuantType.per_1x128"
    with pytest.raises(Problem, match="per_1x128") as caught:
        method.process_weights_after_loading(one_rank())
    assert caught.value.code == "weight_format"


class OnGpu(torch.Tensor):
    """A CPU tensor that claims to be on the GPU with number 5."""

    device = torch.device("cuda", 5)  # type: ignore[assignment]


def test_weights_on_another_gpu_than_the_ranks_are_refused() -> None:
    layer = one_rank()
    layer.w13_weight = layer.w13_weight.data.as_subclass(OnGpu)
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime())
    with pytest.raises(Problem, match="EP rank 0 holds its weights on GPU 5") as caught:
        method.process_weights_after_loading(layer)
    assert caught.value.code == "gpu_index"


def test_a_layer_with_several_faults_shows_them_all_at_once_and_each_once() -> None:
    """What ATOM built, what the kernel lacks and what the launch gives are one list."""
    settings = parse({"MORI_SHMEM_HEAP_SIZE": "1K"})
    config = SimpleNamespace(**{**LAUNCH, "max_num_batched_tokens": 16, "enable_tbo": True})
    runtime = make_runtime(
        swiglu_in_kernel=False,
        check=lambda layer, method, geometry, taken: startup.reasons_against(
            startup.support_inputs(config, settings, geometry, layer, method, EDITS, taken)
        ),
    )
    parallel = SimpleNamespace(use_ep=True, ep_size=2, ep_rank=0, use_all2all_kernels=True)
    layer = one_rank(has_bias=True, moe_parallel_config=parallel)
    method = mega_method_class(Base)("quant", "moe", runtime=runtime)
    with pytest.raises(Problem) as caught:
        method.process_weights_after_loading(layer)
    codes = [r.code for r in caught.value.reasons]
    assert {"bias", "swiglu_limit", "tbo", "heap_too_small", "hidden_multiple", "arch"} <= set(codes)
    assert len(codes) == len(set(codes))


def test_kernels_of_two_sizes_share_the_heap() -> None:
    asked: list[int] = []
    runtime = make_runtime(check=lambda *given: asked.append(given[-1]) or [])
    method = Base("quant", "moe")
    first = runtime.geometry(one_rank(), method)
    assert runtime.geometry(one_rank(), method) == first
    runtime.geometry(one_rank(top_k=1), method)
    assert asked == [0, 0, first.heap_bytes]


def test_the_heap_that_other_kernels_take_reaches_the_judgement_and_the_evidence(tmp_path: Path) -> None:
    settings = parse({"MEGAMOE_STATUS_DIR": str(tmp_path), "MORI_SHMEM_HEAP_SIZE": "1G"})
    config = SimpleNamespace(**{**LAUNCH, "max_num_batched_tokens": 16})
    g = geometry(world_size=1, experts=4)
    judged = startup.support_inputs(config, settings, g, one_rank(), Base("quant", "moe"), EDITS, 7)
    assert (judged.heap_bytes, judged.heap_taken_bytes) == (2**30, 7)
    runtime = make_runtime(status=lambda geometry: status_writer(settings, geometry, EDITS))
    for name, topk in (("layers.0", 2), ("layers.1", 1)):
        runtime.add_layer(name, replace(g, topk=topk), convert(random_weights(g, 1)))
    runtime.prove_once()
    evidence = read_status_dir(tmp_path)[0]
    assert evidence.kernel_instances == 2
    assert evidence.heap_used_bytes == g.heap_bytes + replace(g, topk=1).heap_bytes


def test_a_kernel_without_limit_needs_an_acknowledgement_and_names_both_figures() -> None:
    layer = one_rank()
    method = mega_method_class(Base)("quant", "moe", runtime=make_runtime(swiglu_in_kernel=False))
    with pytest.raises(Problem, match=r"0\.9424.*0\.9522") as caught:
        method.process_weights_after_loading(layer)
    assert caught.value.code == "swiglu_limit"
    accepting = make_runtime(swiglu_in_kernel=False, accept_no_swiglu_limit=True)
    assert accepting.geometry(layer, method).swiglu_limit == 0.0


# ---- experts ---------------------------------------------------------------------------------------------------------


def single(clone: bool = False) -> tuple[MegaExperts, KernelPool]:
    g = geometry(world_size=1, experts=4)
    pool = KernelPool(reference.MegaMoE)
    return MegaExperts("layers.0", g, convert(random_weights(g, 1)), pool, clone=clone), pool


def batch(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return warmup.prewarm_batch(geometry(world_size=1, experts=4), tokens, torch.device("cpu"))


def test_layers_share_one_instance_and_each_call_binds_its_own_weights() -> None:
    g = geometry(world_size=1, experts=4)
    pool = KernelPool(reference.MegaMoE)
    layers = [MegaExperts(f"l{n}", g, convert(random_weights(g, n)), pool, clone=True) for n in range(3)]
    x, w, i = batch(4)
    alone = [
        MegaExperts("x", g, a.layer, KernelPool(reference.MegaMoE), clone=True).run(x, w, i).clone() for a in layers
    ]
    for _ in range(2):
        for experts, want in zip(layers, alone, strict=True):
            assert torch.equal(experts.run(x, w, i), want)
    assert len(pool) == 1


def test_a_second_mtpr_is_a_bug_not_a_second_instance() -> None:
    experts, pool = single()
    experts.kernel()
    with pytest.raises(Problem) as caught:
        pool.get(geometry(world_size=1, experts=4, mtpr=32), experts.layer)
    assert caught.value.code == "second_mtpr"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda x, w, i: (x.repeat(5, 1), w.repeat(5, 1), i.repeat(5, 1)), "mtpr_exceeded"),
        (lambda x, w, i: (x[:0], w[:0], i[:0]), "no_tokens"),
        (lambda x, w, i: (x, w.bfloat16(), i), "weights_dtype"),
        (lambda x, w, i: (x.float(), w, i), "x_dtype"),
        (lambda x, w, i: (x[:, :128], w, i), "x_shape"),
        (lambda x, w, i: (x, torch.cat((w, w[:, :1]), 1), torch.cat((i, i[:, :1]), 1)), "routing_shape"),
        (lambda x, w, i: (x, w, i[:3]), "routing_shape"),
        (lambda x, w, i: (x, w, i.to("meta")), "device"),
    ],
    ids=[
        "one token more than mtpr allows",
        "no tokens",
        "bf16 weights",
        "float32 x",
        "another hidden size",
        "a fused shared expert's column",
        "fewer ids than tokens",
        "ids elsewhere",
    ],
)
def test_a_batch_that_the_kernel_would_misread_is_refused(spoil, code: str) -> None:
    experts, _ = single()
    with pytest.raises(Problem) as caught:
        experts.run(*spoil(*batch(4)))
    assert caught.value.code == code


def test_exactly_mtpr_tokens_run() -> None:
    experts, _ = single()
    assert experts.run(*batch(16)).shape == (16, 256)


def test_the_result_is_cloned_only_where_asked() -> None:
    x, w, i = batch(4)
    for clone in (False, True):
        experts, _ = single(clone)
        with torch.inference_mode():
            first = experts(hidden_states=x, topk_weights=w, topk_ids=i, w1=None, moe_extra_args={})
            second = experts(hidden_states=x, topk_weights=w, topk_ids=i)
        assert (first.data_ptr() != second.data_ptr()) is clone


def test_construction_inside_inference_mode_gives_ordinary_tensors() -> None:
    experts, pool = single()
    with torch.inference_mode():
        experts(**dict(zip(("hidden_states", "topk_weights", "topk_ids"), batch(2), strict=True)))
    assert not pool.get(experts.geometry, experts.layer)._output(1).is_inference()


@pytest.mark.parametrize(
    ("ids", "weights", "code"),
    [
        ([[0, 4]], [[1.0, 1.0]], "expert_id"),
        ([[-1, 2]], [[1.0, 1.0]], "expert_id"),
        ([[2, 2]], [[1.0, 1.0]], "expert_twice"),
        ([[0, 3]], [[1.0, float("nan")]], "weights_not_finite"),
    ],
)
def test_routing_is_read_once_at_warm_up(ids: list[list[int]], weights: list[list[float]], code: str) -> None:
    with pytest.raises(Problem) as caught:
        check_routing("l", torch.tensor(weights), torch.tensor(ids), 4)
    assert caught.value.code == code
    experts, _ = single()
    x = torch.zeros((1, 256), dtype=torch.bfloat16)
    with pytest.raises(Problem) as caught:
        experts(hidden_states=x, topk_weights=torch.tensor(weights), topk_ids=torch.tensor(ids))
    assert caught.value.code == code and experts.calls == 0


class NoOperation(TorchDispatchMode):
    """Refuses every tensor operation, so every allocation and copy, and every launch."""

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise AssertionError(f"a call ran {func}")


def test_a_call_adds_no_host_sync_no_tensor_operation_and_no_print_after_the_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    experts, pool = single()
    x, w, i = batch(4)
    experts(hidden_states=x, topk_weights=w, topk_ids=i)
    done = experts.run(x, w, i)
    modes = []

    def forward(*_inputs: torch.Tensor) -> torch.Tensor:  # the kernel's own work is not counted
        modes.append(torch.is_inference_mode_enabled())
        return done

    pool.get(experts.geometry, experts.layer).forward = forward

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("host sync")

    for name in ("item", "__int__", "__bool__", "__float__", "tolist", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    with torch.inference_mode(), NoOperation():
        assert experts(hidden_states=x, topk_weights=w, topk_ids=i) is done
    assert modes == [False], "the kernel is called outside inference mode, which ATOM's forward is in"
    assert capfd.readouterr() == ("", "")


# ---- kernel ----------------------------------------------------------------------------------------------------------


def flydsl(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout-like folder whose files are the pinned ones of this test."""
    files = {"kernels/__init__.py": b"", "kernels/mega_moe/__init__.py": b"class MegaMoE: pass\n"}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    monkeypatch.setattr(kernel, "pinned_files", lambda: ("c" * 40, {n: [kernel.blob_id(c)] for n, c in files.items()}))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [m for m in sys.modules if m.split(".")[0] == "kernels"]:
        monkeypatch.delitem(sys.modules, name)
    return root


def test_kernels_load_from_the_given_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = kernel.load_megamoe(flydsl(tmp_path, monkeypatch))
    assert Path(sys.modules["kernels"].__file__ or "").is_relative_to(tmp_path)
    assert not kernel.accepts_swiglu_limit(loaded)
    assert kernel.accepts_swiglu_limit(reference.MegaMoE)
    (tmp_path / "kernels/late.py").write_text("here = True\n")
    (tmp_path / "of_flydsl_only.py").touch()
    assert importlib.import_module("kernels.late").here, "kernels that are imported later are the checkout's, too"
    assert importlib.util.find_spec("of_flydsl_only") is None, "its other top-level names are not shown to anybody"
    for name in ("kernels", "kernels.mega_moe", "kernels.late"):
        del sys.modules[name]


def test_another_kernels_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = flydsl(tmp_path, monkeypatch)
    other = types.ModuleType("kernels")
    other.__file__ = "/site-packages/kernels/__init__.py"
    monkeypatch.setitem(sys.modules, "kernels", other)
    with pytest.raises(Problem, match="/site-packages/kernels") as caught:
        kernel.load_megamoe(root)
    assert caught.value.code == "kernels_shadowed"


def test_a_kernel_of_another_commit_is_refused_with_both_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = flydsl(tmp_path, monkeypatch)
    wanted = kernel.pinned_files()[1]["kernels/mega_moe/__init__.py"][0]
    (root / "kernels/mega_moe/__init__.py").write_text("class MegaMoE: ...\n")
    with pytest.raises(Problem) as caught:
        kernel.load_megamoe(root)
    assert caught.value.code == "flydsl_commit"
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    ("carried", "wanted", "says"),
    [
        pytest.param({"tile_wait"}, {"tile_wait"}, [], id="as asked"),
        pytest.param(set(), {"tile_wait"}, ["lack the edits tile_wait"], id="one is missing"),
        pytest.param({"async_copy_off"}, {"tile_wait"}, ["lack the edits", "carry the edits async_"], id="both"),
    ],
)
def test_the_kernels_carry_exactly_the_edits_that_are_asked_for(
    carried: set[str], wanted: set[str], says: list[str]
) -> None:
    if not says:
        kernel.require_edits(frozenset(carried), frozenset(wanted))
        return
    with pytest.raises(Problem) as caught:
        kernel.require_edits(frozenset(carried), frozenset(wanted))
    assert [text in r.what for text, r in zip(says, caught.value.reasons, strict=True)] == [True] * len(says)


def test_a_kernel_file_that_cannot_be_read_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = flydsl(tmp_path, monkeypatch)
    (root / "kernels/mega_moe/__init__.py").unlink()
    with pytest.raises(Problem, match="blob id missing"):
        kernel.load_megamoe(root)
    (root / "kernels/mega_moe/__init__.py").mkdir()
    with pytest.raises(Problem, match="unreadable") as caught:
        kernel.load_megamoe(root)
    assert caught.value.code == "flydsl_commit"


def test_a_path_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        kernel.load_megamoe(tmp_path)
    assert caught.value.code == "flydsl_path"


# ---- warm-up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 7, 49152, 129280])
def test_warm_up_ids_are_distinct_and_inside_the_vocabulary(vocab: int) -> None:
    ids = warmup.varied_ids(min(vocab, 8192), vocab)
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 0
    assert max(ids) < vocab


def test_every_token_bucket_runs_once_per_geometry() -> None:
    experts, _ = single()
    twin = MegaExperts("layers.1", experts.geometry, experts.layer, experts._pool, clone=False)
    assert warmup.prewarm([experts, twin]) == [1, 2, 4, 8, 16]


def test_warm_up_proves_once_and_then_gives_varied_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in factory.SWITCHES:
        monkeypatch.setenv(name, "1")
    runtime = make_runtime()
    experts, _ = single()
    runtime.layers["layers.0"] = experts
    monkeypatch.setattr(factory, "_runtime", runtime)
    runner = SimpleNamespace(config=SimpleNamespace(hf_config=SimpleNamespace(vocab_size=100)))
    ids = warmup.warmup_token_ids(50, runner=runner)
    assert len(set(ids)) == 50
    calls = experts.calls
    assert calls == 5
    warmup.warmup_token_ids(50, runner=runner)
    assert experts.calls == calls


def test_a_requested_model_without_a_layer_for_megamoe_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in factory.SWITCHES:
        monkeypatch.setenv(name, "1")
    for runtime in (None, make_runtime()):
        monkeypatch.setattr(factory, "_runtime", runtime)
        with pytest.raises(Problem) as caught:
            warmup.warmup_token_ids(50, runner=None)
        assert caught.value.code == "no_layer"


LAUNCH = {
    "tensor_parallel_size": 1, "enable_dp_attention": True, "prefill_context_parallel_size": 1,
    "parallel_config": SimpleNamespace(data_parallel_size=2), "enable_expert_parallel": True,
    "enable_tbo": False, "enable_tbo_decode": False,
    "eplb_enable": False,
    "plugin_config": None,
    "max_num_batched_tokens": 16384,
}  # fmt: skip


def test_a_good_launch_has_no_reason_against_it() -> None:
    settings = parse({"ATOM_FLYDSL_KERNELS_PATH": "/x"})
    assert config_reasons(SimpleNamespace(**LAUNCH), settings) == []


@pytest.mark.parametrize(
    ("change", "environment"),
    [
        ({"enable_dp_attention": False}, {}),
        ({"tensor_parallel_size": 8}, {}),
        ({"parallel_config": SimpleNamespace(data_parallel_size=1)}, {}),
        ({"enable_expert_parallel": False}, {}),
        ({"enable_tbo": True}, {}),
        ({"enable_tbo_decode": True}, {}),
        ({"eplb_enable": True}, {}),
        ({"plugin_config": SimpleNamespace(is_vllm=True)}, {}),
        ({"prefill_context_parallel_size": 2}, {}),
        ({"max_num_batched_tokens": 12000}, {}),
        ({}, {"ATOM_MEGA_MTPR": "8192"}),
        ({}, {"MORI_SHMEM_MODE": "ISOLATION"}),
        ({}, {"ATOM_USE_TRITON_MOE": "1"}),
        ({}, {"ATOM_USE_TRITON_MOE_DECODE": "1"}),
        ({}, {"COMPILE_ONLY": "1"}),
        ({}, {"ATOM_FLYDSL_KERNELS_PATH": ""}),
    ],
)
def test_each_launch_switch_that_breaks_megamoe_is_a_reason(
    change: dict[str, object], environment: dict[str, str]
) -> None:
    settings = parse({"ATOM_FLYDSL_KERNELS_PATH": "/x", **environment})
    assert len(config_reasons(SimpleNamespace(**{**LAUNCH, **change}), settings)) >= 1


def test_a_start_on_a_machine_without_a_gpu_gives_every_reason_at_once() -> None:
    launch = SimpleNamespace(**{**LAUNCH, "enable_tbo": True, "max_num_batched_tokens": 12000})
    with pytest.raises(Problem) as caught:
        make_started_runtime(launch, {"ATOM_FLYDSL_KERNELS_PATH": "/x", "MORI_SHMEM_MODE": "ISOLATION"})
    codes = {reason.code for reason in caught.value.reasons}
    assert {"tbo", "mtpr", "heap_mode", "arch", "visible_gpus", "cu_partition", "flydsl_version"} <= codes
    assert "flydsl_path" in codes, "/x holds no kernels"


def test_the_evidence_of_a_rank_says_what_ran_and_what_the_self_test_said(tmp_path: Path) -> None:
    settings = parse({"MEGAMOE_STATUS_DIR": str(tmp_path)})
    g = geometry(world_size=1, experts=4)
    raw = random_weights(g, 1)
    test = SelfTest(group_sum=lambda t: t, local_ranks=(0,), repeats=4)
    runtime = make_runtime(selftest=test, status=lambda geometry: status_writer(settings, geometry, EDITS))
    runtime.capture("layers.0", g, raw)
    runtime.add_layer("layers.0", g, convert(raw))
    runtime.prove_once()
    evidence = read_status_dir(tmp_path)[0]
    assert evidence.selftest_state == "passed"
    assert evidence.layers_converted == ["layers.0"]
    assert evidence.kernel_instances == 1
    assert evidence.kernel_edits == ["tile_wait"]
    assert evidence.versions["torch_version"].split("+")[0] == torch.__version__.split("+")[0]
    assert "mori" not in " ".join(evidence.versions), "what is not installed is not claimed"
    assert evidence.launches > 5
    assert 0 < evidence.selftest["layers.0"] < 0.1


def test_a_failed_self_test_is_in_the_evidence_too(tmp_path: Path) -> None:
    settings = parse({"MEGAMOE_STATUS_DIR": str(tmp_path)})
    g = geometry(world_size=1, experts=4)
    test = SelfTest(group_sum=lambda t: t, local_ranks=(0,), repeats=4)
    runtime = make_runtime(selftest=test, status=lambda geometry: status_writer(settings, geometry, EDITS))
    runtime.capture("layers.0", g, random_weights(g, 1))
    runtime.add_layer("layers.0", g, convert(random_weights(g, 2)))
    with pytest.raises(Problem):
        runtime.prove_once()
    evidence = read_status_dir(tmp_path)[0]
    assert evidence.selftest_state == "failed"
    assert evidence.selftest["layers.0"] > 0.1, "with its figures"
    assert not runtime.proven


def proven(caplog: pytest.LogCaptureFixture, *, selftest: bool, limit_in_kernel: bool) -> str:
    """The log of a start of one rank whose model has a SwiGLU limit."""
    caplog.set_level("INFO", logger="megamoe_atom")
    test = SelfTest(group_sum=lambda t: t, local_ranks=(0,), repeats=4, sweep=False) if selftest else None
    runtime = make_runtime(selftest=test, swiglu_in_kernel=limit_in_kernel, accept_no_swiglu_limit=True)
    parallel = SimpleNamespace(use_ep=True, ep_size=1, ep_rank=0, use_all2all_kernels=True)
    layer = one_rank(moe_parallel_config=parallel, global_num_experts=4)
    g = runtime.geometry(layer, Base("quant", "moe"))
    raw = random_weights(g, 1)
    runtime.capture("layers.0", g, raw)
    runtime.add_layer("layers.0", g, convert(raw))
    runtime.prove_once()
    return caplog.text


def test_a_start_says_what_its_self_test_proved(caplog: pytest.LogCaptureFixture) -> None:
    text = proven(caplog, selftest=True, limit_in_kernel=True)
    assert "1 layers passed" in text
    assert "NOT APPLIED" not in text and "SELF-TEST OFF" not in text


def test_a_start_without_self_test_says_so_loudly(caplog: pytest.LogCaptureFixture) -> None:
    assert "SELF-TEST OFF" in proven(caplog, selftest=False, limit_in_kernel=True)


def test_an_acknowledged_missing_limit_is_said_with_what_was_compared(caplog: pytest.LogCaptureFixture) -> None:
    text = proven(caplog, selftest=True, limit_in_kernel=False)
    assert "SWIGLU LIMIT 10 IS NOT APPLIED" in text and "compared them with the unlimited arithmetic" in text


def test_a_start_on_a_machine_that_fits_loads_the_kernels_and_makes_the_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edits = frozenset(kernel_edits.EDITS)
    blobs = {
        path: next(blob for made, blob in images.items() if made == edits & frozenset().union(*images))
        for path, images in kernel_edits.pinned().files.items()
    }
    loaded: list[Path] = []
    monkeypatch.setattr(startup, "_of_machine", lambda launch: launch)
    monkeypatch.setattr(startup, "verify_files", lambda _root: blobs)
    monkeypatch.setattr(startup, "load_megamoe", lambda path: loaded.append(path) or reference.MegaMoE)
    launch = SimpleNamespace(**{**LAUNCH, "max_num_batched_tokens": 8192})
    environment = {"ATOM_FLYDSL_KERNELS_PATH": str(tmp_path), "MEGAMOE_SELFTEST": "0", "ATOM_MEGA_MTPR": "8192"}
    runtime = startup.make_runtime(launch, environment)
    assert loaded == [tmp_path]
    assert runtime.selftest is None and len(runtime.pool) == 0
    assert runtime._mtpr == 8192
    assert runtime._clone, "without a shared expert the routed output itself is kept over the next layer"
    launch.hf_config = SimpleNamespace(n_shared_experts=1)
    assert not startup.make_runtime(launch, environment)._clone
    loaded.pop()

    monkeypatch.setattr(startup, "verify_files", lambda _root: dict.fromkeys(blobs, "another commit's"))
    with pytest.raises(Problem) as caught:
        startup.make_runtime(launch, environment)
    assert {reason.code for reason in caught.value.reasons} == {"kernel_edits"}
    assert loaded == [tmp_path], "kernels that are not as asked for are not imported"
