"""W ranks' host code in one process: launches meet, and what stops one of them is told as it is."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kernel_lane import elf
from kernel_lane.capture.hip import Launch
from kernel_lane.capture.ranks import Group, Ranks
from megamoe_atom.problem import Problem

LAUNCH = Launch(b"", cast(elf.Kernel, None), (1, 1, 1), (64, 1, 1), 0, b"")


def test_launches_are_executed_together_when_every_rank_is_at_one() -> None:
    met: list[list[int]] = []
    ranks = Ranks(lambda group: met.append([r for r, _ in group]))

    def work(launches: int) -> Any:
        def body() -> int:
            for _ in range(launches):
                ranks.receive(LAUNCH)
            return launches

        return body

    assert ranks.run([work(2), work(1), work(2)]) == [2, 1, 2]
    assert met == [[0, 1, 2], [0, 2]]


@pytest.mark.parametrize("ranks_count", [1, 3])
def test_a_launch_that_stops_is_told_by_its_own_error_in_every_rank(ranks_count: int) -> None:
    stopped = Problem("kernel_stopped", what="limit in stage1", why="it waits for ever", fix="read the code")
    seen: list[BaseException] = []

    def execute(_group: Group) -> None:
        raise stopped

    ranks = Ranks(execute)

    def work() -> None:
        try:
            ranks.receive(LAUNCH)
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(Problem) as caught:
        ranks.run([work] * ranks_count)
    assert caught.value is stopped
    assert seen == [stopped] * ranks_count


def test_host_code_that_fails_stops_the_ranks_that_wait_for_it() -> None:
    ranks = Ranks(lambda _group: None)

    def broken() -> None:
        raise ValueError("sizes do not fit")

    with pytest.raises(ValueError, match="sizes do not fit"):
        ranks.run([broken, lambda: ranks.receive(LAUNCH)])
