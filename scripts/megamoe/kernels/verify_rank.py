"""One EP rank of `megamoe kernels verify`: builds the kernel of each case, runs its forwards, writes what came out.

Run as `python -m megamoe.kernels.verify_rank JOB RANK`, one process per GPU, all at once: construction and every call
are collective. JOB is a folder with job.json and one .npz per case; the rank writes out-RANK.npz there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megamoe.kernels.verify_cases import Case, arguments, bf16, bits

Forward = Callable[[Any, Any, Any], Any]


def save_case(path: Path, case: Case) -> None:
    """A case without its answer: the ranks must not see it."""
    arrays = {f"raw_{name}": value for name, value in case.raw.items()}
    for f, forward in enumerate(case.forwards):
        for r, (x, ids, weights) in enumerate(forward):
            arrays |= {f"x_{f}_{r}": x, f"ids_{f}_{r}": ids, f"weights_{f}_{r}": weights}
    head = {"name": case.name, "ranks": case.ranks, "mtpr": case.mtpr, "limit": case.swiglu_limit, "order": case.order,
            "forwards": len(case.forwards)}  # fmt: skip
    np.savez(path, head=np.array(json.dumps(head)), **arrays)  # type: ignore[arg-type]


def load_case(path: Path) -> Case:
    with np.load(path) as z:
        head = json.loads(str(z["head"]))
        raw = {name.removeprefix("raw_"): z[name] for name in z.files if name.startswith("raw_")}
        forwards = [
            [(z[f"x_{f}_{r}"], z[f"ids_{f}_{r}"], z[f"weights_{f}_{r}"]) for r in range(head["ranks"])]
            for f in range(head["forwards"])
        ]
    return Case(head["name"], head["ranks"], head["mtpr"], head["limit"], raw, forwards, head["order"])


def run_case(case: Case, rank: int, forward: Forward, device: str) -> tuple[list[Any], list[str]]:
    """(this rank's output bits of each distinct input's first run, a sha256 of every run's output)."""
    import torch

    inputs = [
        (bf16(x).to(device), torch.from_numpy(w).to(device), torch.from_numpy(ids).to(device))
        for x, ids, w in (f[rank] for f in case.forwards)
    ]
    first: dict[int, Any] = {}
    hashes = []
    for which in case.order:
        out = bits(forward(*inputs[which]))
        hashes.append(hashlib.sha256(out.tobytes()).hexdigest())
        first.setdefault(which, out)
    return [first[n] for n in range(len(case.forwards))], hashes


def run_rank(job: Path, rank: int, make: Callable[[Case, int], Forward], device: str) -> None:
    """All cases of a job on one rank; the file appears whole or not at all."""
    names = json.loads((job / "job.json").read_text(encoding="utf-8"))["cases"]
    arrays: dict[str, Any] = {}
    for n, name in enumerate(names):
        case = load_case(job / name)
        started = time.monotonic()
        outs, hashes = run_case(case, rank, make(case, rank), device)
        arrays |= {f"out_{n}_{f}": out for f, out in enumerate(outs)}
        arrays[f"hashes_{n}"] = np.array(hashes)
        arrays[f"seconds_{n}"] = np.array(time.monotonic() - started)
    part = job / f".out-{rank}.npz"
    np.savez(part, **arrays)
    part.replace(job / f"out-{rank}.npz")


def main(job: Path, rank: int) -> None:
    """The rank on its own GPU: torch and mori as FlyDSL's own distributed test sets them up.

    Source: FlyDSL 8acf56d tests/kernels/test_mega_moe.py, _setup_dist.
    """
    import torch
    import torch.distributed as dist
    from megamoe_atom.kernel import load_megamoe

    settings = json.loads((job / "job.json").read_text(encoding="utf-8"))
    world = settings["ranks"]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    torch.cuda.set_device(rank)
    store = dist.FileStore(str(job / "rendezvous"), world)  # type: ignore[attr-defined]
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=world,
                            device_id=torch.device("cuda", rank))  # fmt: skip
    import mori.shmem
    import torch._C._distributed_c10d as c10d

    c10d._register_process_group("default", dist.group.WORLD)  # type: ignore[arg-type]
    mori.shmem.shmem_torch_process_group_init("default")
    megamoe = load_megamoe(settings["flydsl"])

    def make(case: Case, mine: int) -> Forward:
        kernel = megamoe(**arguments(case, mine, "cuda"))
        forward: Forward = kernel.forward
        return forward

    run_rank(job, rank, make, "cuda")
    # mori's memory is symmetric: nobody may leave while a peer still writes into it.
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
