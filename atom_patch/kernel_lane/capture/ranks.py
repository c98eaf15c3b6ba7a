"""W ranks' host code in one process: one thread each, one at a time, meeting at their launches.

A rank's host code runs until it launches; then the next rank runs. When every rank that still runs is at a launch, the
launches are executed together, since the kernels wait for each other, and all go on. So host code sees device results
exactly when a stream-ordered GPU would show them, and the order of events is the same in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernel_lane.capture import upstream
from kernel_lane.capture.hip import Launch

Group = list[tuple[int, Launch]]


class Ranks:
    def __init__(self, execute: Callable[[Group], None]) -> None:
        self._execute = execute
        self._turn = threading.Condition()
        self._active: int | None = None
        self._waiting: dict[int, Launch] = {}
        self._running: set[int] = set()
        self.failure: BaseException | None = None

    def run(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Calls work[r]() for every rank r and returns their results; the first error stops all."""
        results: list[Any] = [None] * len(work)
        self._waiting, self.failure, self._running = {}, None, set(range(len(work)))

        def body(r: int) -> None:
            upstream.here.rank = r
            try:
                self._await_turn(r)
                results[r] = work[r]()
            except BaseException as error:
                with self._turn:
                    self.failure = self.failure or error
            finally:
                with self._turn:
                    self._running.discard(r)
                    self._waiting.pop(r, None)
                    self._pass_on(r)

        threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(len(work))]
        self._active = 0
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return results

    def receive(self, launch: Launch) -> None:
        """Called in a rank's thread at its launch; returns when the launch has been executed."""
        r = upstream.rank()
        with self._turn:
            if r not in self._running:  # a launch outside run(): one rank alone
                self._execute([(r, launch)])
                return
            self._waiting[r] = launch
            if len(self._waiting) == len(self._running):
                self._meet()
            self._pass_on(r)
        self._await_turn(r)

    def _meet(self) -> None:
        group = sorted(self._waiting.items(), key=lambda item: item[0])
        self._waiting.clear()
        try:
            self._execute(group)
        except BaseException as error:
            self.failure = self.failure or error

    def _pass_on(self, r: int) -> None:
        if self._waiting and len(self._waiting) == len(self._running):
            self._meet()
        ready = sorted(self._running - set(self._waiting))
        later = [n for n in ready if n > r]
        self._active = (later or ready or [None])[0]  # type: ignore[list-item]
        self._turn.notify_all()

    def _await_turn(self, r: int) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._active == r or self.failure is not None)
            if self.failure is not None:
                raise self.failure  # itself, in every rank: what stopped the layer is what the caller must be told
