"""Ansible callback for the simulation: plays, results per host and the final counts as JSON lines."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: simulation_events
type: aggregate
short_description: writes plays, results and counts as JSON lines
description: Tests count tasks and waves from it.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible ships no types
    """See DOCUMENTATION."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "simulation_events"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, **event: Any) -> None:
        with open(os.environ["MEGAMOE_EVENTS"], "a", encoding="utf-8") as handle:  # noqa: PTH123 - one line, one write
            handle.write(json.dumps(event) + "\n")

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._write(event="play", name=play.get_name().strip())

    def _result(self, kind: str, result: Any) -> None:
        self._write(
            event="result",
            kind=kind,
            host=result._host.get_name(),
            task=result._task.get_name().strip(),
            changed=bool(result._result.get("changed")),
        )

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result("unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write(event="stats", hosts={host: stats.summarize(host) for host in sorted(stats.processed)})
