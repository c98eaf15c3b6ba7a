"""What FlyDSL's host code sees in place of a GPU: torch without CUDA, and mori's heap, both on the CPU.

Replaced names (all that the host code of 8acf56d asks for):
* torch.cuda.get_device_properties / current_device / current_stream / synchronize;
* the combine op's check that a tensor lives on CUDA;
* `torch` in the two modules that place tensors with torch.device("cuda", rank);
* mori.shmem (the symmetric heap; a peer's pointer is the peer's own tensor) and mori.ir.flydsl (device waits).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from megamoe_atom.problem import Exit, Problem, Reason

from kernel_lane.capture import rocm

HEAP_ALIGN = 256
_WAITS = {
    "int32_wait_until_greater_than": (["uint64", "int32"], "int32"),
    "int32_wait_until_equals": (["uint64", "int32"], "int32"),
    "int64_wait_until_equals": (["uint64", "int64"], "int32"),
    "int64_wait_until_greater_than": (["uint64", "int64"], "int64"),
    "uint64_wait_until_equals": (["uint64", "uint64"], "int32"),
}
MODULES = ("kernels.mega_moe.mega_moe", "kernels.comm.flydsl_dispatch_combine_intranode_op")
here = threading.local()  # .rank: the rank whose host code runs in this thread


def rank() -> int:
    return int(getattr(here, "rank", 0))


class SymmetricHeap(Protocol):
    """What the host code asks of mori.shmem: memory of this rank, and a peer's address for one of ours."""

    def create(self, shape: Any, dtype: torch.dtype) -> torch.Tensor: ...

    def peer(self, pointer: int, mine: int, other: int) -> int: ...


class Heap:
    """mori's symmetric heap: every rank makes the same allocations in the same order; the n-th ones are each other's
    peers."""

    def __init__(self, ranks: int, register: Callable[[torch.Tensor, int, int], None]) -> None:
        self.allocations: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
        self._register = register
        # A rank asks for its peers' pointers before they have allocated; the whole heap is therefore reserved at once
        # per rank, and an address is base + offset as on a GPU.
        self._size = 1 << 28
        self._base = [np.zeros(self._size, np.uint8) for _ in range(ranks)]
        self._start = [(-b.ctypes.data) % 4096 for b in self._base]
        self._used = [0] * ranks

    def create(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        r = rank()
        size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
        at = self._start[r] + self._used[r]
        # One page between allocations: an access past the end of one is then never inside another.
        self._used[r] += (size + HEAP_ALIGN - 1) // HEAP_ALIGN * HEAP_ALIGN + 4096
        if self._used[r] + 4096 > self._size:
            raise Problem(
                "lane_heap",
                what=f"the case needs more than {self._size >> 20} MiB of symmetric heap per rank",
                why="the lane reserves it in ordinary memory, per rank",
                fix="capture fewer tokens per rank, experts or a smaller hidden size",
                exit_code=Exit.PRECONDITION,
            )
        tensor = torch.from_numpy(self._base[r][at : at + size]).view(dtype).view(tuple(shape))
        self.allocations[r].append(tensor)
        self._register(tensor, r, size)
        return tensor

    def peer(self, pointer: int, mine: int, other: int) -> int:
        offset = int(pointer) - (self._base[mine].ctypes.data + self._start[mine])
        if not 0 <= offset < self._used[mine]:
            raise ValueError(f"{pointer:#x} is not in rank {mine}'s heap")
        return self._base[other].ctypes.data + self._start[other] + offset


def install_mori(heap: SymmetricHeap) -> None:
    """mori.shmem and mori.ir.flydsl as the host code imports them."""
    mori, shmem = types.ModuleType("mori"), types.ModuleType("mori.shmem")
    ir, device = types.ModuleType("mori.ir"), types.ModuleType("mori.ir.flydsl")
    mori.__path__, ir.__path__ = [], []
    shmem.mori_shmem_create_tensor = heap.create  # type: ignore[attr-defined]
    shmem.shmem_barrier_all = lambda: None  # type: ignore[attr-defined]
    shmem.shmem_ptr_p2p = heap.peer  # type: ignore[attr-defined]
    shmem.shmem_module_init = lambda _module: 0  # type: ignore[attr-defined]
    from flydsl.compiler.extern_link import link_extern
    from flydsl.expr.extern import ffi

    for name, (arguments, result) in _WAITS.items():
        function = link_extern(
            ffi(f"mori_shmem_{name}", arguments, result, is_pure=False),
            bitcode_path=os.environ.get("MEGAMOE_MORI_BC", str(rocm.WAITS)),
            module_init_fn=shmem.shmem_module_init,
        )
        setattr(device, name, function)
    mori.shmem, mori.ir, ir.flydsl = shmem, ir, device  # type: ignore[attr-defined]
    for module in (mori, shmem, ir, device):
        module.__spec__ = ModuleSpec(module.__name__, None)  # ATOM asks importlib whether mori is installed
        sys.modules[module.__name__] = module


def install_torch(cu_count: int) -> None:
    """torch.cuda's answers of one MI355X with `cu_count` visible CUs."""
    properties = SimpleNamespace(multi_processor_count=cu_count, name="AMD Instinct MI355X", gcnArchName="gfx950")
    stream = SimpleNamespace(cuda_stream=0)
    torch.cuda.get_device_properties = lambda *_a, **_k: properties  # type: ignore[assignment]
    torch.cuda.current_device = rank
    torch.cuda.current_stream = lambda *_a, **_k: stream  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_a, **_k: None


class CpuTorch:
    """`torch` as two upstream modules see it: every device is the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(*_args: object) -> torch.device:
        return torch.device("cpu")


def load(flydsl: Path) -> Any:
    """The MegaMoE class of a FlyDSL checkout, with its modules placed on the CPU.

    Raises:
        Problem: flydsl_path, flydsl_commit, kernels_shadowed, flydsl_import (kernel.py of the adapter).
    """
    from megamoe_atom import kernel

    megamoe = kernel.load_megamoe(flydsl)
    for name in MODULES:
        importlib.import_module(name).torch = CpuTorch()  # type: ignore[attr-defined]
    # Its only word about devices: "must live on CUDA".
    importlib.import_module(MODULES[1]).FlyDSLDispatchCombineIntraNodeOp._check_tensor_device = lambda *_a, **_k: None
    return megamoe


def verify_loaded(flydsl: Path) -> None:
    """Refuses what was imported from the checkout and is not the pinned commit's, or an edit of ours.

    The adapter checks the files that serving loads before it loads them; a case may reach further.

    Raises:
        Problem: flydsl_commit, a reason per file.
    """
    from megamoe_atom import kernel

    root = flydsl.resolve()
    commit, known = kernel.pinned_files()
    files = {Path(f).resolve() for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None))}
    loaded = sorted(f.relative_to(root).as_posix() for f in files if f.is_relative_to(root / "kernels"))
    reasons = [
        Reason(
            "flydsl_commit",
            f"{name} has git blob id {have}, expected {' or '.join(known.get(name, ['no such file']))}",
            "a bundle says of which source its kernels are; another source compiles just as well",
            f"check out FlyDSL {commit} there",
        )
        for name in loaded
        if (have := kernel.blob_id((root / name).read_bytes())) not in known.get(name, [])
    ]
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)
