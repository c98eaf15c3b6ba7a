"""One rehearsal at a time on a machine. The kernel drops the lock when the process ends, so none is ever stale."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megamoe_atom.problem import Exit, Problem


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds an advisory lock on path, which then contains our process id.

    Raises:
        Problem: code "rehearse_running", exit 4: another live process holds it (its id is named).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            raise Problem(
                "rehearse_running",
                exit_code=Exit.PRECONDITION,
                what=f"another rehearsal runs here (process {owner})",
                why="two would change the same nodes at once",
                fix=f"wait for it, or interrupt process {owner}",
            ) from error
        handle.seek(0)
        handle.truncate()
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield
