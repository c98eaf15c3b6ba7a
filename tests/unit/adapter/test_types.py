"""The adapter runs inside another program's processes, and the image's programs run unseen: types are held strictly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_adapter_and_the_images_programs_are_strictly_typed() -> None:
    folders = ["atom_patch/megamoe_atom", "docker/rocm", "docker/reference_engine", "scripts/megamoe/pins"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *folders], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout
