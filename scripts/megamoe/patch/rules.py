"""The edits as data: ast-grep rules, and upstream.toml with each edited file's git blob id before and after."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ast_grep_py import SgNode, SgRoot
from megamoe_atom.problem import Exit, Problem

from megamoe.resources import resource


def blob_id(content: bytes) -> str:
    """What `git hash-object` prints for these bytes (sha1 over "blob <size>" NUL content); needs no git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One direction of an edit: an ast-grep rule and the text that takes the place of each match."""

    rule: dict[str, Any]
    fix: str
    eat_newline_before: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """One semantic edit of one file, with the number of matches that it must have."""

    name: str
    file: str
    matches: int
    why: str
    forward: Rewrite
    undo: Rewrite


@dataclass(frozen=True, slots=True)
class PinnedFile:
    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """The tree that the edits were made for."""

    repository: str
    commit: str
    files: tuple[PinnedFile, ...]

    def named(self, path: str) -> PinnedFile:
        return next(f for f in self.files if f.path == path)


def load_edits() -> tuple[Edit, ...]:
    """The rules of edits/atom in file-name order."""
    edits = []
    for path in sorted(resource("atom_patch/edits/atom").glob("*.yml")):
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        meta = body["metadata"]
        undo = meta["undo"]
        edits.append(
            Edit(
                name=body["id"],
                file=meta["file"],
                matches=int(meta["matches"]),
                why=meta["why"].strip(),
                forward=Rewrite(body["rule"], body["fix"]),
                undo=Rewrite(undo["rule"], undo["fix"], bool(undo.get("eat_newline_before", False))),
            )
        )
    return tuple(edits)


def load_upstream() -> Upstream:
    table = tomllib.loads(resource("atom_patch/edits/upstream.toml").read_text(encoding="utf-8"))["atom"]
    files = tuple(PinnedFile(f["path"], f["before"], f["after"]) for f in table["files"])
    return Upstream(table["repository"], table["commit"], files)


def edits_hash() -> str:
    """sha256 over the names and bytes of all edit files in name order: the image label and the evidence carry it."""
    digest = hashlib.sha256()
    root = resource("atom_patch/edits")
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.suffix in {".yml", ".toml"}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find(source: str, rewrite: Rewrite) -> list[SgNode]:
    return list(SgRoot(source, "python").root().find_all({"rule": rewrite.rule}))  # type: ignore[arg-type]


def rewrite_source(source: str, rewrite: Rewrite) -> tuple[str, int]:
    """The source with every match replaced, and how many there were.

    Offsets are ours (line and column), not ast-grep's: only the matched spans change, every other byte stays.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    nodes = find(source, rewrite)
    for node in sorted(nodes, key=lambda n: -n.range().start.index):
        span = node.range()
        begin = starts[span.start.line] + span.start.column
        end = starts[span.end.line] + span.end.column
        if source[begin:end] != node.text():
            raise RuntimeError(f"ast-grep's span {span} does not hold its own text {node.text()!r}")

        text = re.sub(r"\$([A-Z]+)", lambda m, node=node: node[m.group(1)].text(), rewrite.fix)  # type: ignore[misc]
        if rewrite.eat_newline_before and source[:begin].endswith("\n"):
            begin -= 1
        source = source[:begin] + text + source[end:]
    return source, len(nodes)


def transform(path: str, content: bytes, edits: Iterable[Edit], *, undo: bool) -> tuple[bytes, list[tuple[Edit, int]]]:
    """All edits of one file, in order (undo: in reverse). Returns the new bytes and each edit's match count."""
    try:
        source = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(
            "not_utf8",
            what=f"{path} is not UTF-8 at byte {error.start}",
            why="Python source of ATOM is UTF-8; these bytes are something else",
            fix="restore the file from the pinned commit",
            exit_code=Exit.PRECONDITION,
        ) from error
    counts = []
    mine = [e for e in edits if e.file == path]
    for edit in reversed(mine) if undo else mine:
        source, count = rewrite_source(source, edit.undo if undo else edit.forward)
        counts.append((edit, count))
    return source.encode("utf-8"), counts


def tree_root(text: str) -> Path:
    return Path(text).expanduser()
