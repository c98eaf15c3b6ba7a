"""Bundles on disk: written by a capture, read by any executor. The format is in the package's docstring."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from megamoe_atom.problem import Exit, Problem
from numpy.typing import NDArray

from kernel_lane import bundle_form

FORMAT, VERSION = "megamoe-kernel-bundle", 2
PAGE = 4096


def _bad(code: str, path: Path, what: str, fix: str = "capture it again: megamoe kernels capture") -> Problem:
    return Problem(
        code,
        what=f"{path}: {what}",
        why="a bundle that is not whole would be executed on other memory than the kernels saw",
        fix=fix,
        exit_code=Exit.REFUSED,
    )


def need_memory(whose: str, size: int) -> None:
    """Refuses what this machine's memory can never hold, before anything is allocated.

    Raises:
        Problem: lane_memory (exit 4).
    """
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > have:
        raise Problem(
            "lane_memory",
            what=f"{whose} need {size / 2**30:,.1f} GiB, this machine has {have / 2**30:,.1f} GiB",
            why="the lane keeps all of it in memory at one time",
            fix="run it on a larger machine, or capture a smaller case",
            exit_code=Exit.PRECONDITION,
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
        """Reads and checks a bundle: its form, every file that it names with its size and content, every reference.

        Raises:
            Problem: bundle_missing, bundle_format, bundle_file, bundle_reference (all exit 2); bundle_empty (exit 5).
        """
        bundle = cls.parse(folder)
        bundle._check(folder / "bundle.json")
        return bundle

    @classmethod
    def parse(cls, folder: Path) -> Bundle:
        """Reads bundle.json and checks its form, but none of the files that it names.

        Raises:
            Problem: bundle_missing, bundle_format (exit 2).
        """
        path = folder / "bundle.json"
        if not path.is_file():
            raise _bad("bundle_missing", folder, "holds no bundle.json", "name the folder that `kernels capture` wrote")
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise _bad("bundle_file", path, f"cannot be read: {error.strerror}", "make it readable") from error
        except (ValueError, RecursionError) as error:
            raise _bad("bundle_format", path, f"is no JSON ({error})") from error
        if not isinstance(body, dict):
            raise _bad("bundle_format", path, f"is no JSON object but a {type(body).__name__}")
        if body.get("format") != FORMAT or body.get("version") != VERSION:
            raise _bad(
                "bundle_format",
                path,
                f"has format {body.get('format')!r} version {body.get('version')!r}, "
                f"this lane reads {FORMAT!r} {VERSION}",
            )
        for fault in bundle_form.faults(body):
            raise _bad("bundle_format", path, fault)
        bundle = cls(folder, body["case"], body["ranks"], body["buffers"], body["steps"])
        bundle.by_name = {b["name"]: b for b in bundle.buffers}
        return bundle

    def _check(self, path: Path) -> None:
        if len(self.by_name) != len(self.buffers):
            raise _bad("bundle_reference", path, "names a buffer twice")
        self.check_files()
        for b in self.buffers:
            if "file" in b["init"]:
                self._size(b["init"]["file"], b["bytes"])
            self._pointers(path, b.get("pointers", []), b["bytes"], b["name"])
        results: set[str] = set()
        for step in self.steps:
            for w in (*step.get("host", []), *step.get("expect", [])):
                owner = self._buffer(path, w["buffer"])
                if w["offset"] + (self.folder / w["file"]).stat().st_size > owner["bytes"]:
                    raise _bad("bundle_reference", path, f"writes past the end of {w['buffer']}")
            for c in step.get("copy", []):
                for name, offset in ((c["buffer"], c["offset"]), (c["from"], c["at"])):
                    if offset + c["bytes"] > self._buffer(path, name)["bytes"]:
                        raise _bad("bundle_reference", path, f"copies past the end of {name}")
            for f in step.get("free", []):
                self._buffer(path, f["buffer"])
            for e in step.get("expect", []):
                if e["name"] in results:
                    raise _bad("bundle_reference", path, f"expects {e['name']} twice")
                results.add(e["name"])
            launches = step.get("launches", [])
            if len({launch["rank"] for launch in launches}) != len(launches):
                raise _bad("bundle_reference", path, "has two launches of one rank in one step")
            for launch in launches:
                self._pointers(path, launch["pointers"], len(launch["kernarg"]) // 2, launch["name"])
        if not results or not any("launches" in step for step in self.steps):
            raise Problem(
                "bundle_empty",
                what=f"{path} launches nothing or expects nothing",
                why="a run that compares nothing proves nothing",
                fix="capture it again: megamoe kernels capture",
                exit_code=Exit.NO_EVIDENCE,
            )

    def check_files(self) -> None:
        """Every file is there, with the content that its name tells: names of code and of captured data are hashes.

        Raises:
            Problem: bundle_file (exit 2).
        """
        named = [b["init"]["file"] for b in self.buffers if "file" in b["init"]]
        for step in self.steps:
            named += [w["file"] for w in (*step.get("host", []), *step.get("expect", []))]
        self._hashed(named)
        self.check_code()

    def check_code(self) -> None:
        """As check_files, for the code objects alone."""
        self._hashed([launch["code"] for step in self.steps for launch in step.get("launches", [])])

    def _hashed(self, names: list[str]) -> None:
        for name in dict.fromkeys(names):
            file = self.folder / name
            if not file.is_file():
                raise _bad("bundle_file", file, "is missing", "copy the whole folder, or capture it again")
            try:
                content = file.read_bytes()
            except OSError as error:
                raise _bad("bundle_file", file, f"cannot be read: {error.strerror}", "make it readable") from error
            hashed = re.fullmatch(r"\w+/([0-9a-f]{32}|[0-9a-f]{64})\.\w+", name)
            if hashed and not hashlib.sha256(content).hexdigest().startswith(hashed[1]):
                what = "has another content than its name, a sha256, tells"
                raise _bad("bundle_file", file, what, "copy the whole folder again, or capture it again")

    def _buffer(self, path: Path, name: str) -> dict[str, Any]:
        if name not in self.by_name:
            raise _bad("bundle_reference", path, f"refers to the buffer {name!r}, which it does not list")
        return self.by_name[name]

    def _pointers(self, path: Path, pointers: list[Any], size: int, owner: str) -> None:
        for offset, name, addend in pointers:
            target = self._buffer(path, name)
            if offset > size - 8 or addend > target["bytes"]:
                raise _bad("bundle_reference", path, f"{owner}: pointer at {offset} to {name} + {addend} lies outside")

    def _size(self, name: str, size: int) -> None:
        have = (self.folder / name).stat().st_size
        if have != size:
            raise _bad("bundle_file", self.folder / name, f"has {have} bytes, the bundle says {size}")

    def bytes_of(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def place(self, *, poison: int) -> tuple[dict[str, NDArray[np.uint8]], dict[str, NDArray[np.uint8]]]:
        """Memory for all buffers, with their content and pointers: (content, defined bytes), both uint8 per byte.

        Buffers lie a page or more apart, so that an access past the end of one is never inside another. What the
        bundle calls undefined is filled with `poison`.

        Raises:
            Problem: lane_memory (exit 4).
        """
        starts, at = {}, PAGE
        for b in self.buffers:
            starts[b["name"]] = at
            at += (b["bytes"] + b.get("read_past", 0) + PAGE - 1) // PAGE * PAGE + PAGE
        need_memory("the bundle's buffers", 2 * at)
        arena = np.empty(at + PAGE, np.uint8)
        base = (-arena.ctypes.data) % PAGE
        content: dict[str, NDArray[np.uint8]] = {}
        defined: dict[str, NDArray[np.uint8]] = {}
        for b in self.buffers:
            data = arena[base + starts[b["name"]] :][: b["bytes"]]
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
