"""The image's build scripts, loaded by path (they are plain programs, no package), and a container to launch in."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from launch_support import ENV, FLAGS, VRAM
from megamoe.image import launch
from megamoe.version import identity

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


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A container with 8 MI355X, its device nodes, a checkpoint's directory, writable places and a stack lock."""
    for rank in range(8):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{rank + 1}"
        (node / "mem_banks/0").mkdir(parents=True)
        (node / "properties").write_text("simd_count 1024\ngfx_target_version 90500\n")
        (node / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {VRAM}\n")
    cpu = tmp_path / "sys/class/kfd/kfd/topology/nodes/0"
    cpu.mkdir()
    (cpu / "properties").write_text("simd_count 0\ngfx_target_version 0\n")
    for name in ("kfd", *(f"dri/renderD{128 + n}" for n in range(8))):
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "dev/shm").mkdir()
    model = tmp_path / "models/v4"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(dict(zip(launch._SHAPE, (7168, 3072, 384, 6), strict=True))))
    (model / "model-00001-of-00064.safetensors").write_text("")
    (tmp_path / "edits").mkdir()
    (tmp_path / "kernel.py").write_text("x = 1\n")
    monkeypatch.setattr(identity, "LOCK_PATH", Path("/opt/megamoe/stack.lock.json"))
    lock = tmp_path / "opt/megamoe/stack.lock.json"
    identity.write(identity.record({}, tmp_path / "edits", [tmp_path / "kernel.py"]), lock)
    places = {n: str(tmp_path / "run" / n.lower()) for n in ("MEGAMOE_STATUS_DIR", "FLYDSL_RUNTIME_CACHE_DIR", "HOME")}
    flags = ["--model", str(model), *FLAGS]
    return SimpleNamespace(root=tmp_path, model=model, lock=lock, env=ENV | places, flags=flags)
