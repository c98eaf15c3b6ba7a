"""Reads an upstream tree and moves its edited files from one pinned image to another.

Each file is at every moment exactly one of its pinned images (a choice of edits), because it changes by one rename of a
verified sibling. So an interrupted run leaves a mixture that the next apply finishes and the next revert undoes; there
is no journal to lose.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from megamoe_atom.kernel import blob_id
from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.patch.rules import PinnedFile, Rule, Upstream, transform

TEMP_SUFFIX = ".megamoe-new"


@dataclass(frozen=True, slots=True)
class FileState:
    pinned: PinnedFile
    content: bytes
    found: str

    @property
    def edits(self) -> frozenset[str] | None:
        """The edits that this file carries; None when it is none of the pinned images."""
        return next((edits for edits, blob in self.pinned.images.items() if blob == self.found), None)


def read_tree(root: Path, upstream: Upstream) -> list[FileState]:
    """The pinned files as they are now.

    Raises:
        Problem: atom_dir (no such folder), not_atom (another project), atom_file_missing, atom_unreadable; flydsl_dir,
            not_flydsl and so on for FlyDSL.
    """
    name, holds = upstream.name, upstream.files[0].path.split("/")[0]
    if not root.is_dir():
        raise Problem(
            f"{name}_dir",
            what=f"{root} is not a folder",
            why=f"the edits are made to {_article(upstream.title)} source tree",
            fix=f"pass {upstream.option} DIR, the checkout that holds the folder {holds}/",
            exit_code=Exit.PRECONDITION,
        )
    paths = {f.path: root / f.path for f in upstream.files}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if len(missing) == len(paths):
        raise Problem(
            f"not_{name}",
            what=f"{root} holds none of {', '.join(paths)}",
            why=f"this is another project, or an installed {upstream.title} without its layout",
            fix=f"check out {upstream.repository} at {upstream.commit} and pass that folder",
            exit_code=Exit.PRECONDITION,
        )
    if missing:
        raise Problem(
            f"{name}_file_missing",
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
                f"{name}_unreadable",
                what=f"{paths[pinned.path]} cannot be read: {error.strerror}",
                why="its blob id decides whether the edits fit",
                fix="run as a user who may read the tree",
                exit_code=Exit.PRECONDITION,
            ) from error
        states.append(FileState(pinned, content, blob_id(content)))
    return states


def _article(title: str) -> str:
    return f"an {title}" if title[0] in "AEIOU" else f"a {title}"


def refuse_other(states: list[FileState], upstream: Upstream) -> None:
    """Refuses files that are none of the pinned images, naming each with the ids."""
    reasons = [
        Reason(
            "pre_image",
            f"{s.pinned.path} has git blob id {s.found}, expected {s.pinned.before} (or "
            f"{s.pinned.after(upstream.default)} once edited)",
            f"the file is of another {upstream.title} or carries local edits; an edit could land in code that nobody "
            "has reviewed",
            f"restore it from {upstream.repository} at {upstream.commit}; for another {upstream.title} run "
            f"`megamoe patch check {upstream.option} DIR --allow-drift` to see what it would need",
        )
        for s in states
        if s.edits is None
    ]
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)


def target_contents(states: list[FileState], rules: tuple[Rule, ...], selection: frozenset[str]) -> dict[str, bytes]:
    """New bytes of the files that must change so that the tree carries exactly `selection` (empty: upstream's files).

    Edits go off and on by way of upstream's own file, whose id is verified as the result's is, before anything is
    written. Call refuse_other first.
    """
    new: dict[str, bytes] = {}
    for s in states:
        have, want = s.edits, selection & s.pinned.edits
        assert have is not None
        if have == want:
            continue
        content = s.content
        for undo, names, goal in ((True, have, s.pinned.before), (False, want, s.pinned.images[want])):
            content, _ = transform(s.pinned.path, content, [r for r in rules if r.edit in names], undo=undo)
            if blob_id(content) != goal:
                raise Problem(
                    "post_image",
                    what=f"editing {s.pinned.path} gives git blob id {blob_id(content)}, pinned is {goal}",
                    why="the rules and the pinned ids disagree, or this ast-grep matches differently",
                    fix="install the locked ast-grep-py; if you changed a rule, run tests/patch and pin the new ids",
                    exit_code=Exit.OUR_BUG,
                )
        new[s.pinned.path] = content
    return new


def clear_leftovers(root: Path, upstream: Upstream) -> None:
    """Removes what a killed run has written beside the files; a tree that cannot be written keeps it."""
    for pinned in upstream.files:
        with contextlib.suppress(OSError):
            _sibling(root / pinned.path).unlink(missing_ok=True)


def write_all(root: Path, new: dict[str, bytes], old: dict[str, bytes], name: str) -> None:
    """Replaces all files or none: every sibling is written and synced before the first rename.

    Raises:
        Problem: atom_read_only, flydsl_read_only; the tree is as it was before the call.
    """
    done: list[str] = []
    try:
        for path, content in new.items():
            _write_sibling(root / path, content)
        for path in new:
            _rename(root / path)
            done.append(path)
    except BaseException as error:
        for path in done:
            _write_sibling(root / path, old[path])
            _rename(root / path)
        for path in new:
            with contextlib.suppress(OSError):
                _sibling(root / path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Problem(
                f"{name}_read_only",
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
