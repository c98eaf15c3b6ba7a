"""What the tests of real checkouts need, or a skip that says what is missing."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest


def checkout(variable: str) -> Path:
    """The folder that an environment variable names."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: the proof lane did not run (not_run), its kernels need a real checkout")
    root = Path(value)
    if not root.is_dir():
        pytest.fail(f"{variable}={value} is not a folder")
    return root


@functools.cache
def python_with(modules: str, variable: str) -> str:
    """The Python that has certain modules: the variable's, else this one."""
    python = os.environ.get(variable, sys.executable)
    if subprocess.run([python, "-c", f"import {modules}"], capture_output=True, timeout=300).returncode:
        pytest.skip(f"{python} cannot import {modules}; name one that can with {variable}")
    return python
