"""The edits to FlyDSL's kernels: their names, which of them a tree carries, and which of them this launch wants.

The edits themselves are ast-grep rules (atom_patch/edits/flydsl), made to the pinned commit by `megamoe patch apply`.
A tree is known by the git blob id of each kernel file, so what is loaded is never guessed from a version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

_FILES = Path(__file__).with_name("kernel_files.json")

SWIGLU_LIMIT = "swiglu_limit"
PUBLISH_ORDER = "publish_order"
XCD_GUARD = "xcd_guard"
LAUNCH_EPOCH = "launch_epoch"
TILE_WAIT = "tile_wait"
PAYLOAD_WAIT = "payload_wait"
EDITS = (SWIGLU_LIMIT, PUBLISH_ORDER, XCD_GUARD, LAUNCH_EPOCH, TILE_WAIT, PAYLOAD_WAIT)
"""On by default."""
PROOF = "proven by execution on a CPU, not yet run on gfx950"
"""What may be said of the edits, wherever they are shown."""
ASYNC_COPY_OFF = "async_copy_off"
"""The slower way around a tile that has not landed; wanted whenever TILE_WAIT is left out, or asked for by itself."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The pinned FlyDSL. files: path -> (set of edits made to that file -> git blob id)."""

    repository: str
    commit: str
    files: Mapping[str, Mapping[frozenset[str], str]]


@lru_cache(maxsize=1)
def pinned() -> Pinned:
    data = json.loads(_FILES.read_text(encoding="utf-8"))
    files = {
        path: {frozenset(names.split()): blob for names, blob in images.items()}
        for path, images in data["files"].items()
    }
    return Pinned(data["repository"], data["commit"], files)


def wanted(leave_out: Iterable[str] = (), *, async_copy: bool = True) -> frozenset[str]:
    """The edits of a launch that leaves some out. Without TILE_WAIT the asynchronous copy is off: it is one choice.

    Raises:
        Problem: kernel_edit (a name that is no edit).
    """
    out = frozenset(leave_out)
    unknown = sorted(out - set(EDITS))
    if unknown:
        raise Problem(
            "kernel_edit",
            what=f"{', '.join(unknown)}: no edit of FlyDSL has this name",
            why="an edit that is meant to be left out would stay in",
            fix=f"use names out of {', '.join(EDITS)}",
            exit_code=Exit.REFUSED,
        )
    chosen = frozenset(EDITS) - out
    return chosen if async_copy and TILE_WAIT in chosen else chosen | {ASYNC_COPY_OFF}


def present(found: Mapping[str, str]) -> frozenset[str]:
    """The edits that a tree carries whole, from path -> blob id of its kernel files (each one of the pinned ids).

    An edit of several files counts only if all of them carry it.
    """
    have: set[str] = set()
    lacking: set[str] = set()
    for path, images in pinned().files.items():
        here = next((edits for edits, blob in images.items() if blob == found.get(path)), frozenset())
        have |= here
        lacking |= frozenset().union(*images) - here
    return frozenset(have - lacking)
