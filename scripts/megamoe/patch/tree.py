"""Reads an ATOM tree and moves its edited files between the pinned pre-image and the pinned post-image.

Each file is at every moment exactly one of the two, because it changes by one rename of a verified sibling. So an
interrupted run leaves a mixture that the next apply finishes and the next revert undoes; there is no journal to lose.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.patch.rules import Edit, PinnedFile, Upstream, blob_id, transform

State = Literal["before", "after", "other"]
TEMP_SUFFIX = ".megamoe-new"


@dataclass(frozen=True, slots=True)
class FileState:
    pinned: PinnedFile
    content: bytes
    found: str

    @property
    def state(self) -> State:
        if self.found == self.pinned.before:
            return "before"
        return "after" if self.found == self.pinned.after else "other"


def read_tree(root: Path, upstream: Upstream) -> list[FileState]:
    """The pinned files as they are now.

    Raises:
        Problem: atom_dir (no such folder), not_atom (another project), atom_file_missing, atom_unreadable.
    """
    if not root.is_dir():
        raise Problem(
            "atom_dir",
            what=f"{root} is not a folder",
            why="the edits are made to an ATOM source tree",
            fix="pass --atom DIR, the checkout that holds the folder atom/",
            exit_code=Exit.PRECONDITION,
        )
    paths = {f.path: root / f.path for f in upstream.files}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if len(missing) == len(paths):
        raise Problem(
            "not_atom",
            what=f"{root} holds none of {', '.join(paths)}",
            why="this is another project, or an installed ATOM without its layout",
            fix=f"check out {upstream.repository} at {upstream.commit} and pass that folder",
            exit_code=Exit.PRECONDITION,
        )
    if missing:
        raise Problem(
            "atom_file_missing",
            what=f"{root} lacks {', '.join(missing)}",
            why="an incomplete tree cannot be edited as a whole",
            fix=f"restore the files from {upstream.repository} at {upstream.commit}",
            exit_code=Exit.PRECONDITION,
        )
    states = []
    for pinned in upstream.files:
        try:
            content = paths[pinned.path].read_bytes()
        except OSError as error:
            raise Problem(
                "atom_unreadable",
                what=f"{paths[pinned.path]} cannot be read: {error.strerror}",
                why="its blob id decides whether the edits fit",
                fix="run as a user who may read the tree",
                exit_code=Exit.PRECONDITION,
            ) from error
        states.append(FileState(pinned, content, blob_id(content)))
    return states


def refuse_other(states: list[FileState], upstream: Upstream) -> None:
    """Refuses files that are neither the pre-image nor the post-image, naming each with both ids."""
    reasons = [
        Reason(
            "pre_image",
            f"{s.pinned.path} has git blob id {s.found}, expected {s.pinned.before} (or {s.pinned.after} once edited)",
            "the file is of another ATOM or carries local edits; an edit could land in code that nobody has reviewed",
            f"restore it from {upstream.repository} at {upstream.commit}; for another ATOM run "
            "`megamoe patch check --atom DIR --allow-drift` to see what it would need",
        )
        for s in states
        if s.state == "other"
    ]
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)


def target_contents(states: list[FileState], edits: tuple[Edit, ...], *, undo: bool) -> dict[str, bytes]:
    """New bytes of the files that must change, each verified against its pinned blob id before anything is written."""
    new: dict[str, bytes] = {}
    for s in states:
        if s.state == ("before" if undo else "after"):
            continue
        content, _ = transform(s.pinned.path, s.content, edits, undo=undo)
        want = s.pinned.before if undo else s.pinned.after
        if blob_id(content) != want:
            raise Problem(
                "post_image",
                what=f"editing {s.pinned.path} gives git blob id {blob_id(content)}, upstream.toml says {want}",
                why="the rules and upstream.toml disagree, or this ast-grep matches differently",
                fix="install the locked ast-grep-py; if you changed a rule, run tests/patch and update upstream.toml",
                exit_code=Exit.OUR_BUG,
            )
        new[s.pinned.path] = content
    return new


def write_all(root: Path, new: dict[str, bytes], old: dict[str, bytes]) -> None:
    """Replaces all files or none: every sibling is written and synced before the first rename.

    Raises:
        Problem: atom_read_only; the tree is as it was before the call.
    """
    done: list[str] = []
    try:
        for name, content in new.items():
            _write_sibling(root / name, content)
        for name in new:
            _rename(root / name)
            done.append(name)
    except BaseException as error:
        for name in done:
            _write_sibling(root / name, old[name])
            _rename(root / name)
        for name in new:
            with contextlib.suppress(OSError):
                _sibling(root / name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Problem(
                "atom_read_only",
                what=f"{root} cannot be written: {error.strerror} ({error.filename})",
                why="nothing was changed: the files are replaced together or not at all",
                fix="apply to a writable copy of the tree, as a user who owns it, with space left",
                exit_code=Exit.PRECONDITION,
            ) from error
        raise


def _sibling(path: Path) -> Path:
    return path.with_name(path.name + TEMP_SUFFIX)


def _rename(path: Path) -> None:
    _sibling(path).replace(path)


def _write_sibling(path: Path, content: bytes) -> None:
    sibling = _sibling(path)
    with sibling.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    sibling.chmod(path.stat().st_mode & 0o7777)
