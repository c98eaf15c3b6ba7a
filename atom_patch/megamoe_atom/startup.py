"""Makes the process's runtime from ATOM's config and the environment. The only module that touches aiter and FlyDSL."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from megamoe_atom import __version__, kernel_edits
from megamoe_atom.factory import Runtime
from megamoe_atom.kernel import accepts_swiglu_limit, load_megamoe, pinned_files, require_edits, verify_files
from megamoe_atom.problem import Exit, Problem, Reason
from megamoe_atom.settings import Settings, parse
from megamoe_atom.status import RankStatus, StatusWriter
from megamoe_atom.support import ANY_LAYER, SupportInputs, of_edits, of_layer, reasons_against

if TYPE_CHECKING:
    from megamoe_atom.experts import Geometry


def support_inputs(
    config: Any, settings: Settings, geometry: Geometry, layer: Any, method: Any, edits: frozenset[str], taken: int
) -> SupportInputs:
    """ATOM's config, the environment, one layer, this machine and the kernels' edits, as support.py takes them."""
    launch = SupportInputs(
        heap_bytes=settings.heap_bytes,
        heap_taken_bytes=taken,
        quant=geometry.quant,
        accept_no_swiglu_limit=settings.accept_no_swiglu_limit,
    )
    return of_layer(_of_config(of_edits(_of_machine(launch), edits), config, settings), layer, method)


def _of_machine(launch: SupportInputs) -> SupportInputs:
    """`launch` with what this process sees of GPUs, and of the wheel that compiles for them."""
    import torch

    try:
        flydsl = importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        flydsl = ""
    launch = replace(launch, flydsl_version=flydsl)
    if not torch.cuda.is_available():
        return replace(launch, visible_gpus=0, arch="not visible to torch", cu_count=0)
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return replace(
        launch,
        visible_gpus=torch.cuda.device_count(),
        arch=str(gpu.gcnArchName).split(":")[0],
        cu_count=int(gpu.multi_processor_count),
    )


def _of_config(launch: SupportInputs, config: Any, settings: Settings) -> SupportInputs:
    """`launch` with what ATOM's config and the environment decide for every layer."""
    tokens = int(config.max_num_batched_tokens)
    return replace(
        launch,
        # Not the layer's: ATOM gives it 1 whenever experts are divided. With DP attention the config's is 1, too.
        tp_size=int(config.tensor_parallel_size),
        dp_size=int(config.parallel_config.data_parallel_size),
        ep_enabled=bool(config.enable_expert_parallel),
        dp_attention=bool(config.enable_dp_attention),
        pcp_size=int(config.prefill_context_parallel_size),
        tbo=bool(config.enable_tbo or config.enable_tbo_decode),
        eplb=bool(config.eplb_enable),
        plugin_mode=None if config.plugin_config is None else "another server",
        mtpr=tokens if settings.mtpr is None else settings.mtpr,
        max_num_batched_tokens=tokens,
        shmem_mode=settings.shmem_mode,
        triton_moe=settings.triton_moe,
        triton_moe_decode=settings.triton_moe_decode,
        compile_only=settings.compile_only,
        kernels_path_given=settings.kernels_path is not None,
    )


def config_reasons(config: Any, settings: Settings, machine: SupportInputs = ANY_LAYER) -> list[Reason]:
    """What launch and machine alone tell, before a kernel is loaded or a weight is read: rows of support.py."""
    return reasons_against(_of_config(machine, config, settings))


def ep_group() -> Any:
    from aiter.dist.parallel_state import get_ep_group

    return get_ep_group()


def initialise_shmem() -> Any:
    """Touches ATOM's all2all manager, whose first access initialises mori's symmetric heap on every rank."""
    manager = ep_group().device_communicator.all2all_manager
    if manager is None:
        raise Problem(
            "shmem",
            what="ATOM made no all2all manager for the EP group",
            why="MegaMoE's buffers live in mori's symmetric heap, which that manager initialises",
            fix="install mori, and launch with DP attention and expert parallel",
            exit_code=Exit.PRECONDITION,
        )
    return manager


def ep_sum(t: Any) -> Any:
    """Sum over the EP group: an all-reduce of torch.distributed, not of aiter, whose custom one may round to bf16."""
    import torch.distributed as dist

    dist.all_reduce(t, group=ep_group().device_group)
    return t


def _edits_hash() -> str:
    """The hash of the edits that this installation carries; empty where only the adapter is installed."""
    try:
        from megamoe.patch.rules import edits_hash
    except ImportError:
        return ""
    return str(edits_hash())


def _installed() -> dict[str, str]:
    """NAME_version -> version of each distribution that the fused path stands on, as far as it is installed."""
    found = {}
    for name in ("torch", "triton", "flydsl", "aiter", "amd-aiter", "amd-mori", "amd-mori-nightly", "atom"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[f"{name}_version"] = importlib.metadata.version(name)
    return found


def status_writer(settings: Settings, geometry: Geometry, edits: frozenset[str]) -> StatusWriter:
    """This rank's evidence file, written at once, so that a directory that cannot be written stops the start."""
    return StatusWriter(
        settings.status_dir,
        RankStatus(
            rank=geometry.rank,
            ep_size=geometry.world_size,
            geometry={k: v for k, v in asdict(geometry).items() if k != "rank"},
            mtpr=geometry.mtpr,
            heap_asked_bytes=settings.heap_bytes,
            heap_used_bytes=geometry.heap_bytes,
            versions={"adapter": __version__, "flydsl_commit": pinned_files()[0], **_installed()},
            edits_hash=_edits_hash(),
            kernel_edits=sorted(edits),
        ),
    )


def make_runtime(config: Any, environment: Mapping[str, str] | None = None) -> Runtime:
    """The runtime of this process.

    Raises:
        Problem: every reason at once that launch, machine and kernels give. What only a layer tells (sizes, heap) is
            told at the first layer, again all at once.
    """
    settings = parse(environment)
    reasons = config_reasons(config, settings, _of_machine(ANY_LAYER))
    path, edits = settings.kernels_path, frozenset[str]()
    if path is not None:
        try:
            edits = kernel_edits.present(verify_files(path.resolve()))
            require_edits(edits, settings.kernel_edits)
        except Problem as problem:
            reasons += problem.reasons
    if reasons or path is None:  # config_reasons refuses the absence of a path
        raise Problem.of(reasons)
    megamoe = load_megamoe(path)
    import torch

    from megamoe_atom.selftest import SelfTest

    selftest = None
    if settings.selftest:
        selftest = SelfTest(group_sum=ep_sum, local_ranks=(int(ep_group().rank_in_group),))
    # Without a shared expert the routed output itself leaves the block, and the next layer would overwrite it.
    shared = int(getattr(getattr(config, "hf_config", None), "n_shared_experts", 0) or 0)
    return Runtime(
        build=megamoe,
        initialise_shmem=initialise_shmem,
        swiglu_in_kernel=accepts_swiglu_limit(megamoe),
        clone=shared == 0,
        selftest=selftest,
        accept_no_swiglu_limit=settings.accept_no_swiglu_limit,
        check=lambda layer, method, geometry, taken: reasons_against(
            support_inputs(config, settings, geometry, layer, method, edits, taken)
        ),
        status=lambda geometry: status_writer(settings, geometry, edits),
        graphs=torch.cuda.CUDAGraph,
        mtpr=settings.mtpr,
    )
