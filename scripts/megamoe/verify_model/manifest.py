"""Checksums: the only check that reads tensor data. It shows its progress and can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding
from megamoe.verify_model.files import read_state
from megamoe.verify_model.walk import FETCH, finding

_GNU = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")
_BSD = re.compile(r"SHA256 \((.+)\) = ([0-9a-fA-F]{64})")


def entries(path: Path) -> list[tuple[str, str]]:
    """(digest, name) of each line of a sha256sum file, GNU's form or BSD's.

    Raises:
        Problem: it cannot be read, has a line of another form, or no line at all (exit 2).
    """
    from megamoe.text_input import read_text

    out = []
    for number, line in enumerate(read_text(path, max_bytes=64 << 20).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        gnu, bsd = _GNU.fullmatch(line), _BSD.fullmatch(line)
        digest, name = (gnu[1], gnu[2]) if gnu else (bsd[2], bsd[1]) if bsd else ("", "")
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise Problem(
                "manifest_line",
                what=f"{path}:{number}: not a `sha256  relative/name` line",
                why="a half-read manifest would pass what it should check",
                fix="make it with sha256sum",
            )
        out.append((digest.lower(), str(Path(name))))
    if not out:
        raise Problem("manifest_empty", what=f"{path}: no checksum in it",
                      why="nothing would be checked, and that is not the same as nothing being wrong",
                      fix="give the publisher's sha256sum file")  # fmt: skip
    return out


def manifest(root: Path, path: Path, state: Path | None) -> list[Finding]:
    """Every file of the manifest; `state` remembers what was already checked (digest, size, mtime), for resuming.

    Raises:
        Problem: as entries; the state cannot be written (exit 3).
    """
    wanted = entries(path)
    done = read_state(state)
    if state is not None:
        _writable(state)
    out = []
    for number, (digest, name) in enumerate(wanted, start=1):
        file = root / name
        try:
            facts = file.stat()
            if not stat.S_ISREG(facts.st_mode):
                out.append(
                    finding(
                        "CHECKSUM_MISSING", f"{name} is not a regular file", "the manifest lists it", FETCH, file=file
                    )
                )
                continue
            key = [digest, facts.st_size, facts.st_mtime_ns]
            if done.get(name) == key:
                continue
            print(f"checksum {number}/{len(wanted)} {ascii(name)[1:-1]}", file=sys.stderr)
            with file.open("rb") as handle:
                have = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            out.append(
                finding("CHECKSUM_MISSING", f"{name}: {error.strerror}", "the manifest lists it", FETCH, file=file)
            )
            continue
        if have != digest:
            out.append(
                finding(
                    "CHECKSUM",
                    f"{name} has sha256 {have}, the manifest says {digest}",
                    "the file is not what was published",
                    FETCH,
                    file=file,
                )
            )
            continue
        done[name] = key
        if state is not None:
            temporary = state.with_name(state.name + ".new")
            temporary.write_text(json.dumps(done), encoding="utf-8")
            temporary.replace(state)
    return out + _unlisted(root, {name for _, name in wanted}, path)


def _writable(state: Path) -> None:
    """Before the first of 900 GB is read, not after it."""
    if state.is_dir() or not os.access(state.parent, os.W_OK):
        raise Problem("resume_unwritable", what=f"--resume {state}: no file can be written there",
                      why="an interrupted check could not be resumed", fix="name a file in a directory that exists and "
                      "that this user may write to", exit_code=Exit.UNREACHABLE)  # fmt: skip


def _unlisted(root: Path, listed: set[str], path: Path) -> list[Finding]:
    rest = sorted(p.name for p in root.glob("*.safetensors") if p.name not in listed)
    if not rest:
        return []
    return [
        finding(
            "MANIFEST_PARTIAL",
            f"{len(rest)} shard(s) are not in the manifest, first {rest[0]}",
            "their data was not checked by anything",
            "give the whole manifest of this revision",
            file=path,
            severity="warn",
        )
    ]
