"""Ansible callback: one JSON line per event into the file that MEGAMOE_EVENTS names. Ansible loads it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: events
type: aggregate
short_description: writes plays, tasks, failures and the final counts as JSON lines
description: The rehearsal shows progress from it and names the first cause of a failure.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible ships no types
    """See DOCUMENTATION. Results of no_log tasks arrive censored, so no secret gets here."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "events"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, **event: Any) -> None:
        with open(os.environ["MEGAMOE_EVENTS"], "a", encoding="utf-8") as handle:  # noqa: PTH123 - one line, one write
            handle.write(json.dumps({"t": time.time(), **event}, default=str) + "\n")

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._write(event="play", name=play.get_name().strip())

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._write(event="task", name=task.get_name().strip())

    def v2_runner_on_ok(self, result: Any) -> None:
        if result._result.get("changed"):
            self._write(event="changed", host=result._host.get_name(), task=result._task.get_name().strip())

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._failure("failed", result, ignored=ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._failure("unreachable", result, ignored=False)

    def _failure(self, kind: str, result: Any, *, ignored: bool) -> None:
        body = result._result
        items = [r for r in body.get("results", []) if isinstance(r, dict) and r.get("failed")]
        source = items[0] if items else body
        self._write(
            event=kind,
            host=result._host.get_name(),
            task=result._task.get_name().strip(),
            ignored=ignored,
            msg=source.get("msg"),
            stdout=str(source.get("stdout", ""))[-20000:],
            stderr=str(source.get("stderr", ""))[-4000:],
            rc=source.get("rc"),
        )

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write(event="stats", hosts={host: stats.summarize(host) for host in sorted(stats.processed)})
