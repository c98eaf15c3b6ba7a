"""ATOM trees for the tests: writable copies of a given checkout, and the environment variables that name them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

EDITED = ("atom/model_ops/moe.py", "atom/model_engine/model_runner.py")
LEANED_ON = (
    *EDITED,
    "atom/config.py",
    "atom/model_ops/fused_moe/config.py",
    "atom/model_loader/loader.py",
    "atom/models/deepseek_v4.py",
)


def checkout(variable: str) -> Path:
    """The checkout that an environment variable names, or a skip that says which variable is missing."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: this test reads a real upstream checkout")
    root = Path(value)
    if not root.is_dir():
        pytest.fail(f"{variable}={value} is not a folder")
    return root


def copy_of(root: Path, to: Path) -> Path:
    """The files of an ATOM tree that the patch reads, in a writable folder without git."""
    for name in LEANED_ON:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, to / name)
    return to


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
