"""Steps that do not wait for each other run side by side; whatever stops one stops the others' programs, too."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

_running: set[subprocess.Popen[str]] = set()
_guard = threading.Lock()
_halted = threading.Event()


def side_by_side(*steps: Callable[[], Any]) -> list[Any]:
    """Runs the steps at once and returns their results in order.

    Raises:
        The first failure among them, or KeyboardInterrupt, after the programs of all steps were stopped.
    """
    try:
        with ThreadPoolExecutor(len(steps)) as pool:
            futures = [pool.submit(step) for step in steps]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                # A step that is stopped because of another's failure fails as well: its message is the victim's.
                failed = [error for future in done if (error := future.exception()) is not None]
                if failed:
                    raise failed[0]
            except BaseException:
                _halt()
                raise
        return [future.result() for future in futures]
    finally:
        _halted.clear()


class Halted(Exception):
    """Another step failed, so this program was not started."""


@contextmanager
def program(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A text-mode subprocess in a group of its own; ended when the block is left early or the steps are stopped."""
    with subprocess.Popen(argv, text=True, start_new_session=True, **options) as process:
        with _guard:
            _running.add(process)
        try:
            if _halted.is_set():
                raise Halted
            yield process
        except BaseException:
            _end(process)
            raise
        finally:
            with _guard:
                _running.discard(process)


def _halt() -> None:
    """Stops what runs, and what a step would start next."""
    _halted.set()
    with _guard:
        processes = list(_running)
    for process in processes:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """TERM to the whole group, so that traps clean up; KILL to what of it is still there 10 s later."""
    try:
        for sign, wait_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 2)):
            os.killpg(process.pid, sign)
            end = time.monotonic() + wait_s
            while time.monotonic() < end:
                process.poll()  # a leader that ended counts as a member until it is reaped
                os.killpg(process.pid, 0)
                time.sleep(0.02)
    except ProcessLookupError:
        pass  # the last member is gone
