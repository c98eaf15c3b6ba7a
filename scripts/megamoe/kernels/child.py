"""Another program, run to its end or its time limit; what it started ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """`code` is None when the time limit ended it; negative when a signal did."""

    code: int | None
    out: str
    err: str


def run_child(words: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Ended:
    """Runs a program with no input, in a process group of its own.

    Its output goes to files: a pipe that a grandchild keeps open would be waited for beyond any limit.
    Raises:
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:

        def told(code: int | None) -> Ended:
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
            return Ended(code, *texts)

        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
        )
        try:
            return told(process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return told(None)
        finally:
            # Also after a normal end: a child that it left behind would go on writing.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
