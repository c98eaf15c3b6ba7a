"""Counts stage-1 launches exactly, replayed graphs included.

ATOM captures its decode steps (model_runner.capture_cudagraph, and utils/cuda_graph.py for pieces) and replays them:
then no Python of a layer runs, yet every replay uses one epoch of the kernel per layer. What a graph holds is known
while it is captured, and a replay is one call on the graph object; both go through torch.cuda.CUDAGraph.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megamoe_atom.status import StatusWriter

_HELD = "megamoe_launches"
"""Attribute of a graph object: layer -> launches that one replay makes."""


class LaunchCounter:
    """Tells a rank's StatusWriter what really ran. One per process; captures do not nest."""

    def __init__(self, writer: StatusWriter) -> None:
        self._writer = writer
        self._captured: Counter[str] | None = None

    def forward(self, layer: str) -> None:
        """A layer was launched: it ran, or a graph that is being captured now holds it."""
        if self._captured is None:
            self._writer.forward(layer)
        else:
            self._captured[layer] += 1

    def captures(self, graph: Any) -> None:
        """`graph` begins to capture. A graph that captures again holds only what it captures last."""
        self._captured = Counter()
        setattr(graph, _HELD, self._captured)

    def captured(self) -> None:
        """The capture has ended, well or not."""
        self._captured = None

    def replayed(self, graph: Any) -> None:
        """`graph` was launched: all that it holds ran once more."""
        held: Counter[str] | None = getattr(graph, _HELD, None)
        if held:
            self._writer.forwards(held)

    def watch(self, graph_class: Any) -> None:
        """Has the three methods of torch.cuda.CUDAGraph tell this counter; what they do and return stays."""
        begin, end, replay = graph_class.capture_begin, graph_class.capture_end, graph_class.replay

        @functools.wraps(begin)
        def capture_begin(graph: Any, *arguments: Any, **named: Any) -> Any:
            self.captures(graph)
            try:
                return begin(graph, *arguments, **named)
            except BaseException:
                self.captured()
                raise

        @functools.wraps(end)
        def capture_end(graph: Any, *arguments: Any, **named: Any) -> Any:
            self.captured()
            return end(graph, *arguments, **named)

        @functools.wraps(replay)
        def replayed(graph: Any, *arguments: Any, **named: Any) -> Any:
            result = replay(graph, *arguments, **named)
            self.replayed(graph)
            return result

        graph_class.capture_begin, graph_class.capture_end, graph_class.replay = capture_begin, capture_end, replayed
