"""Evidence that the fused path runs: one JSON file per simulated rank in MEGAMOE_STATUS_DIR, replaced as it serves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import megamoe_atom
from megamoe_atom.problem import Exit, Problem

PERIOD_S = 1.0


class Evidence:
    """Facts of this start and the launch counters.

    Args:
        facts: what was built; the same for every rank.
    Raises:
        Problem: MEGAMOE_STATUS_DIR cannot be written (code "status_dir", exit 4). Unset means no files.
    """

    def __init__(self, ranks: int, facts: dict[str, Any]) -> None:
        self._ranks, self._facts = ranks, facts
        self.selftest: dict[str, Any] = {"status": "not_run", "why": "not reached"}
        self._written = 0.0
        self._started = time.time()
        directory = os.environ.get("MEGAMOE_STATUS_DIR")
        self._directory = Path(directory) if directory else None
        if self._directory is not None:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for stale in self._directory.glob("rank-*.json"):  # of an earlier start: not evidence of this one
                    stale.unlink()
            except OSError as error:
                raise Problem(
                    "status_dir",
                    exit_code=Exit.PRECONDITION,
                    what=f"MEGAMOE_STATUS_DIR={directory} cannot be written: {error.strerror}",
                    why="without evidence a smoke test will not call the fused path active",
                    fix="mount a directory there that the container's user may write",
                ) from error

    def due(self) -> bool:
        return self._directory is not None and time.monotonic() - self._written >= PERIOD_S

    def write(self, launches: list[int]) -> None:
        """Replaces every rank's file; `launches` holds each rank's forwards since the start."""
        self._written = time.monotonic()
        if self._directory is None:
            return
        for rank in range(self._ranks):
            body = {
                "schema_version": 1,
                "rank": rank,
                "pid": os.getpid(),
                "started_unix_s": self._started,
                "updated_unix_s": time.time(),
                "adapter_version": megamoe_atom.__version__,
                **self._facts,
                "launches": launches[rank],
                "selftest": self.selftest,
            }
            temporary = self._directory / f".rank-{rank}.json"
            temporary.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
            temporary.replace(self._directory / f"rank-{rank}.json")
