"""Our layouts, our memory ledger and our loader against FlyDSL's real code (MEGAMOE_FLYDSL_DIR, at 8acf56d)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trees import checkout

pytestmark = pytest.mark.checkout
ADAPTER = Path(__file__).parents[2] / "atom_patch"


def scenario(name: str, *, needs: str) -> dict[str, object]:
    """One run of flydsl_process.py, in the Python that has flydsl 0.2.4 (MEGAMOE_FLYDSL_PYTHON)."""
    root = checkout("MEGAMOE_FLYDSL_DIR")
    python = os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {needs}"], capture_output=True, timeout=120).returncode:
        pytest.skip(f"{python} has no {needs}; name one that has with MEGAMOE_FLYDSL_PYTHON")
    done = subprocess.run(
        [python, str(Path(__file__).with_name("flydsl_process.py")), str(root), str(ADAPTER), name],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_our_layouts_equal_upstreams_functions_byte_for_byte() -> None:
    result = scenario("layouts", needs="torch")
    assert result["different"] == []
    assert int(str(result["compared"])) > 400


def test_the_real_constructor_asks_for_heap_and_device_memory_as_in_our_ledger_to_the_byte() -> None:
    result = scenario("ledger", needs="flydsl.expr.buffer_ops")
    assert result["different"] == []
    rows: list[dict[str, int]] = result["rows"]  # type: ignore[assignment]
    assert len(rows) == 20
    assert all(row["device_tensors"] >= 48 and row["allocations"] >= 21 for row in rows)


def test_the_loader_accepts_the_real_checkout_and_refuses_one_changed_byte() -> None:
    result = scenario("load", needs="torch")
    assert result == {"files": 35, "changed_file": "flydsl_commit"}
