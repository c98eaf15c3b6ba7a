"""Bundles on disk: written by a capture, read by any executor. The format is in the package's docstring."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from megamoe_atom.problem import Exit, Problem
from numpy.typing import NDArray

FORMAT, VERSION = "megamoe-kernel-bundle", 1
PAGE = 4096


def _bad(code: str, path: Path, what: str, fix: str = "capture it again: megamoe kernels capture") -> Problem:
    return Problem(
        code,
        what=f"{path}: {what}",
        why="a bundle that is not whole would be executed on other memory than the kernels saw",
        fix=fix,
        exit_code=Exit.REFUSED,
    )


class Writer:
    """Collects a bundle in a folder; `close` writes bundle.json last, so a torn folder is never taken for a bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("code", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.buffers: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self._files = 0

    def code(self, image: bytes) -> str:
        name = f"code/{hashlib.sha256(image).hexdigest()}.hsaco"
        (self.folder / name).write_bytes(image)
        return name

    def data(self, content: bytes) -> str:
        """Stores bytes once per content and returns their place."""
        name = f"data/{hashlib.sha256(content).hexdigest()[:32]}.bin"
        if not (self.folder / name).exists():
            (self.folder / name).write_bytes(content)
        return name

    def close(self, case: Mapping[str, Any], ranks: int) -> None:
        body = {
            "format": FORMAT,
            "version": VERSION,
            "case": dict(case),
            "ranks": ranks,
            "buffers": self.buffers,
            "steps": self.steps,
        }
        (self.folder / "bundle.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


@dataclass(slots=True)
class Bundle:
    """A bundle as read: `buffers` and `steps` are bundle.json's own entries, checked for completeness."""

    folder: Path
    case: dict[str, Any]
    ranks: int
    buffers: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    by_name: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        """Reads and checks a bundle: every file that it names is there and has its size, every name is known.

        Raises:
            Problem: bundle_missing, bundle_format, bundle_file, bundle_reference (all exit 2).
        """
        path = folder / "bundle.json"
        if not path.is_file():
            raise _bad("bundle_missing", folder, "holds no bundle.json", "name the folder that `kernels capture` wrote")
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(body, dict)
        except (ValueError, AssertionError) as error:
            raise _bad("bundle_format", path, f"is no JSON object ({error})") from error
        if body.get("format") != FORMAT or body.get("version") != VERSION:
            raise _bad(
                "bundle_format",
                path,
                f"has format {body.get('format')!r} version {body.get('version')!r}, "
                f"this lane reads {FORMAT!r} {VERSION}",
            )
        missing = [k for k in ("case", "ranks", "buffers", "steps") if k not in body]
        if missing:
            raise _bad("bundle_format", path, f"lacks {', '.join(missing)}")
        bundle = cls(folder, body["case"], int(body["ranks"]), body["buffers"], body["steps"])
        bundle.by_name = {b["name"]: b for b in bundle.buffers}
        if len(bundle.by_name) != len(bundle.buffers):
            raise _bad("bundle_reference", path, "names a buffer twice")
        bundle._check(path)
        return bundle

    def _check(self, path: Path) -> None:
        try:
            for b in self.buffers:
                if "file" in b["init"]:
                    self._file(b["init"]["file"], int(b["bytes"]))
                self._pointers(path, b.get("pointers", []), int(b["bytes"]), b["name"])
            for step in self.steps:
                for w in (*step.get("host", []), *step.get("expect", [])):
                    size = (self.folder / w["file"]).stat().st_size if (self.folder / w["file"]).is_file() else None
                    self._file(w["file"], size)
                    owner = self._buffer(path, w["buffer"])
                    if size is None or w["offset"] + size > owner["bytes"]:
                        raise _bad("bundle_reference", path, f"writes past the end of {w['buffer']}")
                for launch in step.get("launches", []):
                    self._file(launch["code"], None)
                    self._pointers(path, launch["pointers"], len(bytes.fromhex(launch["kernarg"])), launch["name"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad("bundle_format", path, f"has an entry that lacks or garbles {error}") from error

    def _buffer(self, path: Path, name: str) -> dict[str, Any]:
        if name not in self.by_name:
            raise _bad("bundle_reference", path, f"refers to the buffer {name!r}, which it does not list")
        return self.by_name[name]

    def _pointers(self, path: Path, pointers: list[Any], size: int, owner: str) -> None:
        for offset, name, addend in pointers:
            target = self._buffer(path, name)
            if not 0 <= offset <= size - 8 or not 0 <= addend <= target["bytes"]:
                raise _bad("bundle_reference", path, f"{owner}: pointer at {offset} to {name} + {addend} lies outside")

    def _file(self, name: str, size: int | None) -> None:
        file = self.folder / name
        if not file.is_file():
            raise _bad("bundle_file", file, "is missing", "copy the whole folder, or capture it again")
        if size is not None and file.stat().st_size != size:
            raise _bad("bundle_file", file, f"has {file.stat().st_size} bytes, the bundle says {size}")

    def bytes_of(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def place(self, *, poison: int) -> tuple[dict[str, NDArray[np.uint8]], dict[str, NDArray[np.uint8]]]:
        """Memory for all buffers, with their content and pointers: (content, defined bytes), both uint8 per byte.

        Buffers lie a page or more apart, so that an access past the end of one is never inside another. What the
        bundle calls undefined is filled with `poison`.
        """
        starts, at = {}, PAGE
        for b in self.buffers:
            starts[b["name"]] = at
            at += (int(b["bytes"]) + PAGE - 1) // PAGE * PAGE + PAGE
        arena = np.empty(at + PAGE, np.uint8)
        base = (-arena.ctypes.data) % PAGE
        content: dict[str, NDArray[np.uint8]] = {}
        defined: dict[str, NDArray[np.uint8]] = {}
        for b in self.buffers:
            data = arena[base + starts[b["name"]] :][: int(b["bytes"])]
            init = b["init"]
            data[:] = (
                np.frombuffer(self.bytes_of(init["file"]), np.uint8) if "file" in init else init.get("fill", poison)
            )
            content[b["name"]] = data
            defined[b["name"]] = np.full(data.size, 0 if init.get("undefined") else 1, np.uint8)
        for b in self.buffers:
            patch(content[b["name"]], b.get("pointers", []), content)
        return content, defined


def patch(data: NDArray[np.uint8] | bytearray, pointers: list[Any], content: Mapping[str, NDArray[np.uint8]]) -> None:
    """Writes the addresses of this process into the pointer words of a buffer or a kernarg segment."""
    for offset, name, addend in pointers:
        value = struct.pack("<Q", int(content[name].ctypes.data) + addend)
        if isinstance(data, bytearray):
            data[offset : offset + 8] = value
        else:
            data[offset : offset + 8] = np.frombuffer(value, np.uint8)
