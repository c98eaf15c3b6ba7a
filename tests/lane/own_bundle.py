"""A bundle around a kernel of ours: two ranks reverse blocks of numbers through LDS into each other's memory.

The kernel (own_kernel.txt, assembled by LLVM): each of three work-groups doubles 256 floats, reverses them through LDS,
stores them to the peer, waits for its stores, adds 1 to the peer's flag with system scope, polls its own flag until all
three groups of the peer have arrived, adds 1.0 to what it received, and stores that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from assemble import Parts, code_object, listing
from kernel_lane.bundle import Writer

BLOCKS, THREADS = 3, 256
LISTING = listing(Path(__file__).with_name("own_kernel.txt"))


def machine_code(*, without: str = "", occurrence: int = 0) -> bytes:
    """The kernel's code; `without` replaces the n-th instruction of that text by s_nop: a planted fault."""
    out, seen = b"", 0
    for code, text in LISTING:
        if text == without:
            code = bytes.fromhex("000080bf") * (len(code) // 4) if seen == occurrence else code
            seen += 1
        out += code
    assert not without or seen > occurrence, without
    return out


def numbers(rank: int) -> np.ndarray:
    return (np.arange(BLOCKS * THREADS, dtype=np.float32) + 1) * (rank + 1)


def expected(rank: int) -> np.ndarray:
    theirs = numbers(1 - rank).reshape(BLOCKS, THREADS)
    return (theirs[:, ::-1] * 2 + 1).astype(np.float32).reshape(-1)


def write(folder: Path, code: bytes | None = None, **parts: Any) -> Path:
    """Writes the bundle; `code` or `parts` (see assemble.Parts) spoil it."""
    writer = Writer(folder)
    size = BLOCKS * THREADS * 4
    image = code_object(Parts(machine_code() if code is None else code, lds=1024, **parts))
    file = writer.code(image)
    for rank in range(2):
        for name, init, size_here in (
            ("x", {"file": writer.data(numbers(rank).tobytes())}, size),
            ("in", {"undefined": True}, size),
            ("flag", {"fill": 0}, 4),
            ("out", {"undefined": True}, size),
        ):
            writer.buffers.append({"name": f"r{rank}.{name}", "rank": rank, "bytes": size_here, "dtype": "float32",
            "shape": [size_here // 4],
                                   "align": 256, "init": init, "pointers": []})  # fmt: skip
    launches = []
    for rank in range(2):
        names = [f"r{rank}.x", f"r{1 - rank}.in", f"r{rank}.in", f"r{1 - rank}.flag", f"r{rank}.flag", f"r{rank}.out"]
        launches.append({"rank": rank, "name": "ours", "kernel": "ours", "code": file, "grid": [BLOCKS, 1, 1],
        "block": [THREADS, 1, 1],
                         "dynamic_lds": 0, "kernarg": bytes(48).hex(), "pointers": [[8 * n, b, 0] for n,
                         b in enumerate(names)]})  # fmt: skip
    writer.steps.append({"launches": launches})
    writer.steps.append({"expect": [{"name": f"out.rank{r}", "buffer": f"r{r}.out", "offset": 0,
    "file": writer.data(expected(r).tobytes()),
                                     "dtype": "float32"} for r in range(2)]})  # fmt: skip
    writer.close({"name": "own kernel"}, 2)
    return folder
