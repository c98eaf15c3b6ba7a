"""What the ranks' host code does, as a bundle: every tensor that a kernel can reach, every launch, every host write."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megamoe_atom.problem import Exit, Problem
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from kernel_lane import machine
from kernel_lane.bundle import Writer
from kernel_lane.capture import upstream
from kernel_lane.capture.ranks import Group
from kernel_lane.machine import Buffer, Start
from kernel_lane.machine.schedule import Schedule

POISON = 0xA5
_EMPTY = ("aten::empty", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::empty_like")


class Tracked:
    """One tensor's storage: where it lies, whose it is, and what it held when the last launch had ended."""

    def __init__(self, data: np.ndarray, rank: int, keep: Any, heap: bool) -> None:
        self.data, self.rank, self.keep, self.heap = data, rank, keep, heap
        self.name = ""
        self.dtype, self.shape = "uint8", [data.size]
        self.shadow: np.ndarray | None = None
        self.buffer: Buffer | None = None
        self.init: bytes | None = None
        self.undefined = False
        self.pointers: list[list[Any]] = []

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)

    @property
    def given_back(self) -> bool:
        """Whether the host code has let go of its last tensor here: only this record still holds the storage."""
        return bool(torch._C._storage_Use_Count(self.keep._cdata) == 1)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Sees every tensor that host code makes; those made by torch.empty are poisoned, as device memory is garbage."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::copy_":
            self.recorder.copied(args[0], args[1])
        for t in tree_flatten(out)[0]:
            if isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.layout == torch.strided:
                self.recorder.track(t, poison=func._schema.name in _EMPTY)
        return out


class Recorder:
    """Receives launches (through Ranks), executes them on the machine in order, and remembers all for a bundle."""

    def __init__(self, schedule: Schedule | None = None) -> None:
        self.schedule = schedule or Schedule()
        self.tracked: dict[int, Tracked] = {}
        self.steps: list[dict[str, Any]] = []
        self._copies: list[tuple[Tracked, int, Tracked, int, int]] = []
        self.blobs: list[bytes] = []
        self.instructions = 0
        self.findings: list[machine.Finding] = []
        self.launch_names: Callable[[str], str] = short_name

    def watch(self) -> TorchDispatchMode:
        return _Watch(self)

    def track(self, t: torch.Tensor, *, poison: bool = False, rank: int | None = None, heap: bool = False) -> None:
        storage = t.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or (address in self.tracked and self.tracked[address].data.size >= size):
            return
        import ctypes

        view = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (size,))
        # The storage is kept alive for good: an address then always means the same tensor.
        entry = Tracked(view, upstream.rank() if rank is None else rank, storage, heap)
        entry.dtype, entry.shape = str(t.dtype).removeprefix("torch."), list(t.shape)
        if poison:
            view[:] = POISON
            entry.undefined = True
        self.tracked[address] = entry

    def copied(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """The host code has copied bytes between two tensors: if a kernel wrote them, they are no constant."""
        plain = to.is_contiguous() and source.is_contiguous() and source.device.type == to.device.type == "cpu"
        if plain and to.dtype == source.dtype and to.numel() == source.numel() > 0:
            into, origin = self.resolve(to.data_ptr()), self.resolve(source.data_ptr())
            if into and origin and origin[0].buffer is not None and into[0] is not origin[0]:
                self._copies.append((*into, *origin, to.numel() * to.element_size()))

    def resolve(self, address: int) -> tuple[Tracked, int] | None:
        for t in self.tracked.values():
            if t.address <= address < t.address + t.data.size:
                return t, address - t.address
        return None

    # ---- launches ----------------------------------------------------------------------------------------------

    def execute(self, group: Group) -> None:
        self._host_writes()
        spans = sorted((t.address, t.address + t.data.size, t) for t in self.tracked.values())
        starts, launches = [], []
        for rank, launch in group:
            code = machine.prepare(launch.code, launch.kernel.name)
            name = self.launch_names(launch.kernel.name)
            starts.append(Start(code, launch.grid, launch.block, launch.kernarg, rank, launch.dynamic_lds, name))
            explicit = [a for a in launch.kernel.arguments if not a.hidden]
            pointers: list[tuple[int, Tracked, int]] = []
            for argument in explicit:
                for offset in range(argument.offset, argument.offset + argument.size - 7, 4):
                    found = _inside(spans, struct.unpack_from("<Q", launch.kernarg, offset)[0])
                    if found:
                        pointers.append((offset, found[0], found[1]))
            kernarg = bytearray(launch.kernarg)
            for word, _, _ in pointers:
                kernarg[word : word + 8] = bytes(8)
            launches.append({"rank": rank, "name": name, "kernel": launch.kernel.name, "code": launch.code,
            "grid": list(launch.grid),
                             "block": list(launch.block), "dynamic_lds": launch.dynamic_lds, "kernarg": kernarg.hex(),
                             "pointers": pointers})  # fmt: skip
        self._given_back()
        self.steps.append({"launches": launches})
        buffers = [t.buffer for t in self.tracked.values() if t.buffer is not None]
        outcome = machine.run(starts, buffers, self.schedule)
        self.instructions += outcome.steps
        self.findings += outcome.findings
        if outcome.stop:
            raise Problem(
                "kernel_stopped",
                what=f"{outcome.stop} in {outcome.stop_kernel}, rank {outcome.stop_rank}, pc {outcome.stop_pc:#x}: "
                + "; ".join(f"{f.kind} {f.buffer}+{f.offset} at {f.pc:#x}" for f in outcome.findings[-3:]),
                why="the captured kernels do not run to their end on this input",
                fix="megamoe kernels lint the code object; compare the FlyDSL commit",
                exit_code=Exit.CHECK_FAILED,
            )
        for t in self.tracked.values():
            t.shadow = t.data.copy() if t.shadow is None or not np.array_equal(t.shadow, t.data) else t.shadow

    def _host_writes(self) -> None:
        """What changed since the last launch ended: new tensors become buffers, changes become copies or host writes.

        A copy whose two sides are still equal is told as such, behind the writes; what else changed is a constant.
        """
        writes = []
        copies: list[dict[str, Any]] = [
            {"buffer": to, "offset": offset, "from": origin, "at": at, "bytes": size}
            for to, offset, origin, at, size in self._copies
            if np.array_equal(to.data[offset : offset + size], origin.data[at : at + size])
        ]
        self._copies = []
        for c in copies:
            to, here = c["buffer"], slice(c["offset"], c["offset"] + c["bytes"])
            if to.shadow is not None:
                to.shadow[here] = to.data[here]
                to.buffer.written[here] = 1
        for t in list(self.tracked.values()):
            if t.shadow is None:
                t.init = t.data.tobytes()
                untouched = t.undefined and bool((t.data == POISON).all())
                t.undefined = untouched
                t.buffer = Buffer("", t.data, t.rank, np.full(t.data.size, 0 if untouched else 1, np.uint8))
                t.buffer.read_past = _MOST_PAST  # the bundle's own runs judge, where buffers lie apart
                t.shadow = t.data.copy()
                continue
            changed = np.nonzero(t.data != t.shadow)[0]
            if changed.size:
                first, last = int(changed[0]), int(changed[-1]) + 1
                writes.append({"buffer": t, "offset": first, "content": t.data[first:last].tobytes()})
                assert t.buffer is not None and t.buffer.written is not None
                t.buffer.written[first:last] = 1
        if writes:
            self.steps.append({"host": writes})
        if copies:
            self.steps.append({"copy": copies})

    def _given_back(self) -> None:
        """What the host code has freed since the last launch: an allocator may give it to anybody from here on."""
        freed = [t for t in self.tracked.values() if t.buffer is not None and not t.buffer.freed and t.given_back]
        for t in freed:
            assert t.buffer is not None
            t.buffer.freed = True
        if freed:
            self.steps.append({"free": freed})

    def expect(self, name: str, t: torch.Tensor, content: bytes, dtype: str = "bfloat16") -> None:
        """Asks that the bytes of tensor `t` be `content` at this point."""
        found = self.resolve(t.data_ptr())
        assert found is not None, f"{name} lies in no tracked tensor"
        self.steps.append(
            {"expect": [{"name": name, "buffer": found[0], "offset": found[1], "content": content, "dtype": dtype}]}
        )

    # ---- the bundle --------------------------------------------------------------------------------------------

    def save(self, folder: Path, case: dict[str, Any], ranks: int) -> None:
        used = self._reachable()
        self._name_by_use()
        for n, t in enumerate(used):
            t.name = t.name or f"r{t.rank}.tensor{n}"
        names: set[str] = set()
        for t in used:
            base, k = t.name, 2
            while t.name in names:
                t.name, k = f"{base}_{k}", k + 1
            names.add(t.name)
        writer = Writer(folder)
        for t in used:
            assert t.init is not None
            content = bytearray(t.init)
            for offset, _, _ in t.pointers:
                content[offset : offset + 8] = bytes(8)
            if t.undefined:
                init: dict[str, Any] = {"undefined": True}
            elif not any(content):
                init = {"fill": 0}
            else:
                init = {"file": writer.data(bytes(content))}
            writer.buffers.append({"name": t.name, "rank": t.rank, "bytes": t.data.size, "dtype": t.dtype,
            "shape": t.shape,
                                   "align": 256 if t.heap else 64, "heap": t.heap, "init": init,
                                   "read_past": read_past(t, case.get("cu", 1)),
                                   "pointers": [[o, b.name, a] for o, b, a in t.pointers]})  # fmt: skip
        keep = {id(t) for t in used}
        for step in self.steps:
            if "host" in step:
                rows = [{"buffer": w["buffer"].name, "offset": w["offset"], "file": writer.data(w["content"])}
                        for w in step["host"] if id(w["buffer"]) in keep]  # fmt: skip
                if rows:
                    writer.steps.append({"host": rows})
            elif "copy" in step:
                copied = [c | {"buffer": c["buffer"].name, "from": c["from"].name}
                          for c in step["copy"] if id(c["buffer"]) in keep]  # fmt: skip
                if copied:
                    writer.steps.append({"copy": copied})
            elif "free" in step:
                gone = [{"buffer": t.name} for t in step["free"] if id(t) in keep]
                if gone:
                    writer.steps.append({"free": gone})
            elif "expect" in step:
                writer.steps.append({"expect": [{"name": e["name"], "buffer": e["buffer"].name, "offset": e["offset"],
                                                 "file": writer.data(e["content"]), "dtype": e["dtype"]}
                                                for e in step["expect"]]})  # fmt: skip
            else:
                writer.steps.append({"launches": [
                    launch | {"code": writer.code(launch["code"]), "pointers": [[o, b.name, a] for o, b,
                    a in launch["pointers"]]}
                    for launch in step["launches"]
                ]})  # fmt: skip
        writer.close(case, ranks)

    def _name_by_use(self) -> None:
        """Temporaries that no attribute holds take the name of the kernel argument that first uses them."""
        for step in self.steps:
            for launch in step.get("launches", []):
                for offset, tensor, _ in launch["pointers"]:
                    argument = _ARGUMENTS.get((launch["name"], offset), f"arg{offset}")
                    tensor.name = tensor.name or f"r{tensor.rank}.{launch['name']}.{argument}"

    def _reachable(self) -> list[Tracked]:
        """Tensors that kernels can reach: named in kernel arguments, or in a table of pointers that they reach."""
        spans = sorted((t.address, t.address + t.data.size, t) for t in self.tracked.values() if t.init is not None)
        todo = [b for s in self.steps for launch in s.get("launches", []) for _, b, _ in launch["pointers"]]
        todo += [e["buffer"] for s in self.steps for e in s.get("expect", [])]
        sources: dict[int, list[Tracked]] = {}
        for c in (c for s in self.steps for c in s.get("copy", [])):
            sources.setdefault(id(c["buffer"]), []).append(c["from"])
        seen: dict[int, Tracked] = {}
        while todo:
            t = todo.pop()
            if id(t) in seen:
                continue
            seen[id(t)] = t
            todo += sources.get(id(t), [])
            if t.dtype == "int64" and t.init is not None:
                for k, value in enumerate(np.frombuffer(t.init, np.int64)):
                    found = _inside(spans, int(value))
                    if found:
                        t.pointers.append([8 * k, found[0], found[1]])
                        todo.append(found[0])
        return sorted(seen.values(), key=lambda t: t.address)


def _inside(spans: list[tuple[int, int, Tracked]], address: int) -> tuple[Tracked, int] | None:
    import bisect

    k = bisect.bisect_right(spans, address, key=lambda s: s[0]) - 1
    if k >= 0 and spans[k][0] <= address < spans[k][1]:
        return spans[k][2], address - spans[k][0]
    return None


# Arguments by kernarg offset, where the host code keeps no attribute for them.
_ARGUMENTS = {("quant", 0): "x", ("quant", 24): "x_q", ("quant", 48): "x_scale", ("stage1", 256): "topk_ids",
              ("stage1", 264): "topk_weights"}  # fmt: skip
_SHORT = (("mfma_fmoe1", "stage1"), ("mfma_moe2", "gemm2"), ("mfma_moe1", "gemm1"), ("ep_combine", "combine"),
          ("ep_dispatch", "dispatch"), ("per_1x32_mx_quant", "quant"), ("moe_sorting", "sort"),
          ("mxfp4_moe_scale_sort", "scale_sort"))  # fmt: skip


# What torch's allocator rounds a block of device memory up to: nobody else's bytes lie there.
_BLOCK, _MOST_PAST = 512, 1 << 24


def read_past(t: Tracked, cu: int) -> int:
    """Bytes behind the end of a tensor that the pinned kernels may read on a GPU of `cu` compute units: the rest of its
    block; one index of tok_id_to_src (the row of no token); gemm2's first look at a tile of 32 rows on every CU."""
    name = t.name.split(".", 1)[-1]
    known = {"op.tok_id_to_src": 4, "s1_sti": 4 * 32 * cu}.get(name, 0)
    return max(-t.data.size % (upstream.HEAP_ALIGN if t.heap else _BLOCK), known)


def short_name(kernel: str) -> str:
    """The kernel's role in the layer."""
    return next((short for prefix, short in _SHORT if kernel.startswith(prefix)), kernel)
