"""The image's build scripts are plain programs, not a package: tests load them by path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Loads docker/rocm/NAME.py as a module."""

    def load(name: str) -> ModuleType:
        path = ROOT / "docker/rocm" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"rocm_build_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load
