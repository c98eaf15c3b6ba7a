"""Launches are counted when they run: not while a graph is captured, and once more with each replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cluster import convert, geometry, random_weights
from megamoe_atom import reference, warmup
from megamoe_atom.experts import KernelPool, MegaExperts
from megamoe_atom.graphs import LaunchCounter
from megamoe_atom.status import RankStatus, StatusWriter, read_status


def graph_class() -> type[Any]:
    """The three methods of torch.cuda.CUDAGraph that torch.cuda.graph and ATOM call."""

    class Graph:
        def __init__(self) -> None:
            self.calls: list[object] = []

        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            if pool == "busy":
                raise RuntimeError("the stream is already capturing")
            self.calls.append(("begin", pool, capture_error_mode))

        def capture_end(self) -> None:
            self.calls.append("end")

        def replay(self) -> str:
            self.calls.append("replay")
            return "done"

    return Graph


def counter(directory: Path) -> tuple[LaunchCounter, RankStatus, type[Any]]:
    status = RankStatus(rank=0, ep_size=1, geometry={}, mtpr=16)
    launches = LaunchCounter(StatusWriter(directory, status, interval_s=0.0))
    kind = graph_class()
    launches.watch(kind)
    return launches, status, kind


def test_the_real_class_has_the_methods_that_are_watched() -> None:
    assert all(callable(getattr(torch.cuda.CUDAGraph, name)) for name in ("capture_begin", "capture_end", "replay"))


def test_a_capture_counts_nothing_and_each_replay_counts_all_that_it_holds(tmp_path: Path) -> None:
    launches, status, kind = counter(tmp_path)
    launches.forward("l0")  # eager, as ATOM's warm-up before each capture
    graph = kind()
    graph.capture_begin("pool", capture_error_mode="relaxed")
    for layer in ("l0", "l1", "l0"):
        launches.forward(layer)
    graph.capture_end()
    assert (status.launches, status.launches_per_layer) == (1, {"l0": 1})
    assert [graph.replay() for _ in range(3)] == ["done"] * 3
    launches.forward("l1")
    assert (status.launches, status.launches_per_layer) == (11, {"l0": 7, "l1": 4})
    assert graph.calls == [("begin", "pool", "relaxed"), "end", "replay", "replay", "replay"]
    assert read_status(tmp_path / "rank-0.json").launches == 11


def test_graphs_are_kept_apart_and_one_without_moe_layers_counts_nothing(tmp_path: Path) -> None:
    launches, status, kind = counter(tmp_path)
    graphs = [kind() for _ in range(3)]
    for graph, layers in zip(graphs, ([], ["a"], ["a", "b"]), strict=True):
        graph.capture_begin()
        for layer in layers:
            launches.forward(layer)
        graph.capture_end()
    for graph, times in zip(graphs, (5, 10, 100), strict=True):
        for _ in range(times):
            graph.replay()
    kind().replay()  # never captured
    assert status.launches_per_layer == {"a": 110, "b": 100}


def test_a_graph_that_captures_again_holds_only_the_second_capture(tmp_path: Path) -> None:
    launches, status, kind = counter(tmp_path)
    graph = kind()
    for layers in (["a", "a"], ["b"]):
        graph.capture_begin()
        for layer in layers:
            launches.forward(layer)
        graph.capture_end()
    graph.replay()
    assert status.launches_per_layer == {"b": 1}


def test_a_capture_that_could_not_begin_leaves_counting_on(tmp_path: Path) -> None:
    launches, status, kind = counter(tmp_path)
    with pytest.raises(RuntimeError, match="already capturing"):
        kind().capture_begin("busy")
    launches.forward("a")
    assert status.launches == 1


def test_the_count_equals_the_launches_of_the_kernel_itself(tmp_path: Path) -> None:
    """The reference kernel counts its own forwards, as the real one keeps its epoch; a replay repeats them."""
    launches, status, kind = counter(tmp_path)
    g = geometry(world_size=1, experts=4)
    pool = KernelPool(reference.MegaMoE)
    layers = [
        MegaExperts(f"l{n}", g, convert(random_weights(g, n)), pool, clone=False, status=launches) for n in (0, 1)
    ]
    batch = warmup.prewarm_batch(g, 2, torch.device("cpu"))

    def step() -> None:
        for layer in layers:
            layer.run(*batch)

    step()
    graph = kind()
    graph.capture_begin()
    step()  # a GPU would only record this one
    recorded = 2
    graph.capture_end()
    graph.calls.clear()
    for _ in range(4):
        graph.replay()
        step_by_graph = [layer.kernel().forward(*batch) for layer in layers]
        assert len(step_by_graph) == 2
    assert status.launches == layers[0].kernel().launches - recorded
