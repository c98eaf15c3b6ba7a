"""The edits as data: ast-grep rules, and each edited file's git blob id without and with every choice of edits.

Two upstream trees are edited. ATOM has one edit, always whole. FlyDSL's kernels have several, each selectable on its
own; the ids of their combinations live with the adapter (megamoe_atom/kernel_files.json), which needs them without the
CLI too. FlyDSL's compiler has one, which only an opt-in of the image's build makes.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from ast_grep_py import SgNode, SgRoot
from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem

from megamoe.resources import resource

TreeName = Literal["atom", "flydsl", "flydsl_compiler"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An ast-grep rule and the text that takes the place of each match.

    eat_before: a regex; what it matches right before the match goes too, such as the break and indent of a new line.
    """

    config: dict[str, Any]
    fix: str
    eat_before: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite of one file, with the number of matches that it must have. `edit`: the edit that it belongs to."""

    name: str
    edit: str
    file: str
    matches: int
    why: str
    forward: Rewrite
    undo: tuple[Rewrite, ...]


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file and its blob id for every choice of the edits that touch it; the empty choice is upstream's own file."""

    path: str
    images: Mapping[frozenset[str], str]

    @property
    def before(self) -> str:
        return self.images[frozenset()]

    @property
    def edits(self) -> frozenset[str]:
        return frozenset().union(*self.images)

    def after(self, selection: frozenset[str]) -> str:
        return self.images[selection & self.edits]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A tree that edits were made for. edits: their names in order; default: those applied unless told otherwise."""

    name: TreeName
    title: str
    repository: str
    commit: str
    files: tuple[PinnedFile, ...]
    edits: tuple[str, ...]
    default: frozenset[str]

    @property
    def option(self) -> str:
        """The option of `megamoe patch` that names such a tree."""
        return f"--{self.name.replace('_', '-')}"

    def named(self, path: str) -> PinnedFile:
        return next(f for f in self.files if f.path == path)


def _rewrite(body: dict[str, Any]) -> Rewrite:
    config: dict[str, Any] = {key: body[key] for key in body.keys() & {"rule", "constraints", "utils"}}
    return Rewrite(config, body["fix"], body.get("eat_before", ""))


def load_rules(tree: TreeName = "atom") -> tuple[Rule, ...]:
    """All rules of one tree, files in name order. For FlyDSL a file is an edit; ATOM's files are one edit together."""
    rules = []
    for path in sorted(resource(f"atom_patch/edits/{tree}").glob("*.yml")):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            meta = body["metadata"]
            undo = meta["undo"] if isinstance(meta["undo"], list) else [meta["undo"]]
            rules.append(
                Rule(
                    name=body["id"],
                    edit="atom" if tree == "atom" else path.stem,
                    file=meta["file"],
                    matches=int(meta["matches"]),
                    why=" ".join(meta["why"].split()),
                    forward=_rewrite(body),
                    undo=tuple(_rewrite(u) for u in undo),
                )
            )
    return tuple(rules)


def load_upstream(tree: TreeName = "atom") -> Upstream:
    if tree == "flydsl":
        pinned = kernel_edits.pinned()
        files = tuple(PinnedFile(path, images) for path, images in pinned.files.items() if len(images) > 1)
        return Upstream(
            "flydsl", "FlyDSL", pinned.repository, pinned.commit, files,
            (*kernel_edits.EDITS, kernel_edits.ASYNC_COPY_OFF), frozenset(kernel_edits.EDITS),
        )  # fmt: skip
    table = tomllib.loads(resource("atom_patch/edits/upstream.toml").read_text(encoding="utf-8"))[tree]
    title, edit = ("ATOM", "atom") if tree == "atom" else ("FlyDSL", "keep_linked")
    whole = frozenset({edit})
    files = tuple(PinnedFile(f["path"], {frozenset(): f["before"], whole: f["after"]}) for f in table["files"])
    return Upstream(tree, title, table["repository"], table["commit"], files, (edit,), whole)


def edits_hash() -> str:
    """sha256 over the names and bytes of all edit files in name order: the image label and the evidence carry it."""
    digest = hashlib.sha256()
    root = resource("atom_patch/edits")
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.suffix in {".yml", ".toml"}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find(source: str, rewrite: Rewrite) -> list[SgNode]:
    return list(SgRoot(source, "python").root().find_all(rewrite.config))  # type: ignore[call-overload]


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
        if rewrite.eat_before:
            found = re.search(f"(?:{rewrite.eat_before})\\Z", source[:begin])
            begin = found.start() if found else begin
        source = source[:begin] + text + source[end:]
    return source, len(nodes)


def transform(path: str, content: bytes, rules: Iterable[Rule], *, undo: bool) -> tuple[bytes, list[tuple[Rule, int]]]:
    """All given rules of one file, in order (undo: in reverse). Returns the new bytes and each rule's match count.

    The count of an undo is that of its first rewrite: the later ones restore what the first one has uncovered.
    """
    try:
        source = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(
            "not_utf8",
            what=f"{path} is not UTF-8 at byte {error.start}",
            why="Python source of ATOM and FlyDSL is UTF-8; these bytes are something else",
            fix="restore the file from the pinned commit",
            exit_code=Exit.PRECONDITION,
        ) from error
    counts = []
    mine = [r for r in rules if r.file == path]
    for rule in reversed(mine) if undo else mine:
        steps = rule.undo if undo else (rule.forward,)
        numbers = []
        for step in steps:
            source, count = rewrite_source(source, step)
            numbers.append(count)
        counts.append((rule, numbers[0]))
    return source.encode("utf-8"), counts
