"""The adapter runs inside another program's processes, so its types are held strictly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_adapter_is_strictly_typed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "atom_patch/megamoe_atom"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout
