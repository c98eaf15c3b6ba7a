"""safetensors headers: the exact header and nothing more."""

from __future__ import annotations

import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megamoe.verify_model.instead import FIRST, instead

HEADER_MAX = 100 << 20  # the reference implementation refuses more
DIMENSIONS_MAX = 64  # more than torch can hold
DTYPE_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
              "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
              "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype as safetensors spells it; shape in elements."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """What one shard says of itself. data_bytes: the tensors, without header; file_bytes: the whole file."""

    tensors: dict[str, Tensor]
    data_bytes: int
    file_bytes: int


class BadHeader(ValueError):
    """Why a file is not a whole safetensors file."""


def read_header(path: Path) -> Header:
    """The header alone is read: exactly its length, however long.

    Raises:
        BadHeader: cut short, not safetensors, offsets that overlap, leave holes or do not fit dtype and shape.
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for ever
        raise BadHeader("not a regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise BadHeader(f"{size} bytes, too short for a header")
        (length,) = struct.unpack("<Q", file.read(8))
        if length > HEADER_MAX or 8 + length > size:
            file.seek(0)
            if said := instead(file.read(FIRST)):
                raise BadHeader(f"{size} bytes of {said}")
            raise BadHeader(f"its header claims {length} bytes, the file has {size}")
        raw = file.read(length)
    try:
        header: Any = json.loads(raw, object_pairs_hook=_once)
    except BadHeader:
        raise
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"its header is not JSON ({type(error).__name__})") from None
    if not isinstance(header, dict):
        raise BadHeader("its header is not an object")
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensors[name], span = _tensor(name, entry)
        spans.append((*span, name))
    end = 0
    for begin, stop, name in sorted(spans):
        if begin != end:
            raise BadHeader(f"{name[:120]}: data starts at {begin}, the one before ends at {end}")
        end = stop
    if 8 + length + end != size:
        raise BadHeader(f"header and data need {8 + length + end} bytes, the file has {size}"
                        f" ({'truncated' if size < 8 + length + end else 'trailing data'})")
    return Header(tensors, end, size)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in out if names.count(name) > 1)
        raise BadHeader(f"its header has {twice[:120]!r} twice")
    return out


def _tensor(name: str, entry: Any) -> tuple[Tensor, tuple[int, int]]:
    if not isinstance(entry, dict):
        raise BadHeader(f"{name[:120]}: entry is not an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    # Bounded, so that a hostile header makes neither a product of a million digits nor a message of that length.
    whole = all(isinstance(v, list) and len(v) <= DIMENSIONS_MAX and
                all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 63 for i in v)
                for v in (shape, offsets))
    if not isinstance(dtype, str) or not whole or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise BadHeader(f"{name[:120]}: dtype, shape or data_offsets are malformed")
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise BadHeader(f"{name[:120]}: {dtype[:40]!r} is no type of safetensors")
    count = 1
    for dimension in shape:
        count *= dimension
    if (count * bits + 7) // 8 != offsets[1] - offsets[0]:
        raise BadHeader(f"{name[:120]}: {dtype} {shape} does not fit its {offsets[1] - offsets[0]} bytes")
    return Tensor(dtype, tuple(shape)), (offsets[0], offsets[1])
