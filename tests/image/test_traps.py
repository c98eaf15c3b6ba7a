"""The traps of upstream's stack, each sprung on purpose in small: the build, or the start, must notice.

Trap 2 (mori's heap modes) is sprung in test_every_refusal, mori's missing libraries (trap 1) in test_build_scripts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from test_build_scripts import make_wheel

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "docker/rocm"
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
Script = Callable[[str], ModuleType]

# What aiter's set-up does at the pinned commit, in small: an editable install replaces flydsl whenever its version is
# not exactly 0.2.4, and any install replaces Triton unless it is told not to, from whatever index answers.
AITER_SETUP = """
import os, sys
from importlib.metadata import version
from pathlib import Path
from setuptools import setup

def replace(name, other):
    site = next(Path(p) for p in sys.path if p.endswith("site-of-the-image"))
    (site / name / "__init__.py").write_text(f"replaced = {other!r}")
    (info,) = site.glob(f"{name}-*.dist-info")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {other}\\n")

if any(word == "develop" or "editable" in word for word in sys.argv) and version("flydsl") != "0.2.4":
    replace("flydsl", "0.2.4")
if os.environ.get("AITER_USE_SYSTEM_TRITON", "0") != "1":
    replace("triton", "3.7.0")
setup(name="amd-aiter", version=os.environ["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_AMD_AITER"], packages=["aiter"])
"""
PINS = """
[base]
torch = "2.10.0+rocm7.2.4.git3d3aa833"
[python]
triton = "3.6.0+rocm7.2.4.git4ed88892"
pybind11 = "3.0.4"
transformers = "5.2.0"
lm_eval = "0.4.12"
[git.flydsl]
version = "0.2.4+g8acf56d7"
[git.aiter]
version = "0.1.19.dev17+g129f8c225"
submodules = { "3rdparty/composable_kernel" = ["ROCm/composable_kernel", "af7118e342580ecd3f71edce7b1d0ba465012ecf"] }
[git.atom]
version = "0.1.6"
[wheel.mori]
distribution = "amd-mori-nightly"
version = "1.2.3"
"""


@pytest.fixture
def image(tmp_path: Path) -> SimpleNamespace:
    """A site-packages with the pinned flydsl and Triton, aiter's sources, and a `python` that sees both."""
    site = tmp_path / "site-of-the-image"
    for name, version in (("flydsl", "0.2.4+g8acf56d7"), ("triton", "3.6.0+rocm7.2.4.git4ed88892")):
        wheel = make_wheel(tmp_path, name, version, {f"{name}/__init__.py": "pinned = True\n"})
        shutil.unpack_archive(wheel, site, "zip")
    tree = tmp_path / "aiter"
    (tree / "aiter").mkdir(parents=True)
    (tree / "aiter/__init__.py").write_text("")
    (tree / "setup.py").write_text(AITER_SETUP)
    (tmp_path / "pins.toml").write_text(PINS)
    (tmp_path / "stand_in.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "MEGAMOE_STAND_IN": str(tmp_path / "stand_in.json"),
        "MEGAMOE_NOT_RUN": str(tmp_path / "not_run"),
    }
    env.pop("AITER_USE_SYSTEM_TRITON", None)

    def run(*argv: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in argv], cwd=tree, env=env | more, capture_output=True, text=True, timeout=120
        )

    def guard() -> subprocess.CompletedProcess[str]:
        """-S: without the packages of the Python that runs the tests."""
        return run(python, "-S", BUILD / "guard.py", tmp_path / "pins.toml")

    return SimpleNamespace(tmp=tmp_path, tree=tree, python=python, run=run, guard=guard)


def test_our_build_of_aiter_lets_its_setup_replace_nothing(image: SimpleNamespace) -> None:
    out = image.tmp / "out"
    done = image.run("bash", BUILD / "build_aiter.sh", image.tree, image.tmp / "pins.toml", image.tmp / "mirror", out)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in out.glob("*.whl")] == ["amd_aiter-0.1.19.dev17+g129f8c225-py3-none-any.whl"]
    assert image.guard().returncode == 0, image.guard().stderr


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        pytest.param("editable_wheel", {"AITER_USE_SYSTEM_TRITON": "1"}, "flydsl is 0.2.4, pinned is", id="flydsl"),
        pytest.param("bdist_wheel", {}, "triton is 3.7.0, pinned is 3.6.0+rocm", id="Triton (trap 3)"),
    ],
)
def test_aiters_setup_on_its_own_replaces_a_package_and_the_guard_breaks_the_build(
    image: SimpleNamespace, command: str, more: dict[str, str], said: str
) -> None:
    assert image.guard().returncode == 0
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_AMD_AITER": "0.1.19"}
    image.run(image.python, "setup.py", command, **version, **more)
    done = image.guard()
    assert done.returncode == 1
    assert said in done.stderr and "--no-deps" in done.stderr


@pytest.mark.parametrize(
    ("name", "version"), [("amd-aiter", "0.0.0"), ("atom", "0.1.0"), ("pybind11", "3.1.0"), ("lm-eval", "0.4.13")]
)
def test_a_version_that_a_build_made_up_is_caught(image: SimpleNamespace, name: str, version: str) -> None:
    """Sources without history call themselves 0.0.0; pybind11 3.1 has another internals ABI (trap 4)."""
    wheel = make_wheel(image.tmp, name.replace("-", "_"), version, {f"{name}/__init__.py": ""})
    shutil.unpack_archive(wheel, image.tmp / "site-of-the-image", "zip")
    done = image.guard()
    assert done.returncode == 1 and f"{name.replace('-', '_')} is {version}" in done.stderr.replace("-", "_")


# ---- the base


@pytest.fixture
def base(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """check_base.faults() on a base that is as pinned, with one thing changed."""
    module = script("check_base")
    pins = {
        "base": {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", "torch": "2.10.0+rocm7", "hip": "7.2"},
        "python": {"triton": "3.6.0+rocm7"},
    }
    for name in (*module.ROCM_FILES, *module.COMPILERS):
        path = tmp_path / "rocm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    versions = {"triton": "3.6.0+rocm7"}
    monkeypatch.setattr(module, "installed", lambda name: versions.get(name, "not installed"))
    monkeypatch.setattr(module.sys, "prefix", "/opt/venv")
    monkeypatch.setattr(module.platform, "libc_ver", lambda: ("glibc", "2.39"))

    def faults(
        *, torch: str = "2.10.0+rocm7", hip: str = "7.2", gone: str = "", stand_in: bool = False, **more: str
    ) -> list[str]:
        fake: Any = ModuleType("torch")
        fake.__version__, fake.version = torch, SimpleNamespace(hip=hip)
        monkeypatch.setitem(sys.modules, "torch", fake)
        versions.update({name.replace("_", "-"): version for name, version in more.items()})
        if gone:
            (tmp_path / "rocm" / gone).unlink()
        found: list[str] = module.faults(pins, stand_in=stand_in, rocm=tmp_path / "rocm")
        return found

    return faults


def test_the_pinned_base_passes(base: Callable[..., list[str]]) -> None:
    assert base() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"torch": "2.11.0+rocm7"}, "torch.__version__ is 2.11.0+rocm7", id="a newer base"),
        pytest.param({"hip": "6.4"}, "torch.version.hip is 6.4", id="another ROCm: mori needs libamdhip64.so.7"),
        pytest.param({"triton": "3.6.0"}, "triton is 3.6.0, pinned", id="upstream's Triton"),
        pytest.param({"gone": "amdgcn/bitcode/ockl.bc"}, "ockl.bc is missing", id="kernels with undefined symbols"),
        pytest.param({"gone": "lib/libamdhip64.so.7"}, "libamdhip64.so.7 is missing", id="no HIP runtime of ROCm 7"),
        pytest.param({"gone": "bin/hipcc"}, "hipcc is missing", id="nothing could compile mori's device code"),
        pytest.param({"amd_mori": "1.2.3"}, "amd-mori 1.2.3 is already in the base", id="two moris own one module"),
        pytest.param({"flydsl": "0.3.0"}, "flydsl 0.3.0 is already in the base", id="another flydsl"),
    ],
)
def test_a_base_that_is_not_the_pinned_one_is_refused(
    base: Callable[..., list[str]], change: dict[str, str], said: str
) -> None:
    assert [line for line in base(**change) if said in line]


def test_an_older_ubuntu_is_refused(base: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.35"))
    assert base() == ["glibc is 2.35, mori's wheel needs 2.38 or newer"]


# ---- mori's device code


MORI = """
import os
if os.environ.get("MORI_PRECOMPILE"):
    from pathlib import Path
    cache = Path(os.environ["MORI_JIT_CACHE_DIR"])
    print(os.environ["WORD"], "shmem_kernels")
    if os.environ["WORD"] != "nothing":
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "shmem_kernels.hsaco").write_bytes(b"x" if os.environ["WORD"] != "EMPTY" else b"")
"""
BITCODE = "import os\ndef find_bitcode(cov):\n    assert cov == 6\n    return os.environ['BITCODE']\n"


@pytest.mark.parametrize(
    ("word", "bitcode", "holds"),
    [
        pytest.param("compiled", b"BC\xc0\xde", True, id="all of it is there"),
        pytest.param("SKIPPED", b"BC\xc0\xde", False, id="pre-compilation skipped a kernel and exited with 0"),
        pytest.param("nothing", b"BC\xc0\xde", False, id="pre-compilation made nothing and exited with 0"),
        pytest.param("EMPTY", b"BC\xc0\xde", False, id="a file without content"),
        pytest.param("compiled", b"; ModuleID", False, id="bitcode that is none"),
    ],
)
def test_moris_device_code_is_counted_since_its_precompilation_fails_silently(
    image: SimpleNamespace, word: str, bitcode: bytes, holds: bool
) -> None:
    site = image.tmp / "site-of-the-image/mori"
    (site / "ir").mkdir(parents=True)
    (site / "__init__.py").write_text(MORI)
    (site / "ir/__init__.py").write_text("")
    (site / "ir/bitcode.py").write_text(BITCODE)
    (image.tmp / "found.bc").write_bytes(bitcode)
    work = image.tmp / "build"
    work.mkdir()
    shutil.copy(BUILD / "prepare_mori.sh", work)
    # The real step.py asks for hipcc first; here its command is run.
    (work / "step.py").write_text("import subprocess, sys\nsys.exit(subprocess.run(sys.argv[3:]).returncode)\n")
    out = image.tmp / "mori-out"
    more = {"WORD": word, "MORI_GPU_ARCHS": "gfx950", "BITCODE": str(image.tmp / "found.bc")}
    done = image.run("bash", work / "prepare_mori.sh", out, **more)
    assert (done.returncode == 0) is holds, done.stderr
    if holds:
        assert len((out / "libmori_shmem_device.cov6.bc.sha256").read_text().strip()) == 64


def test_what_keys_moris_cache_is_the_same_at_build_and_at_run() -> None:
    """The cache's key holds architecture and NIC: guessed at run time, a host with another NIC would miss it."""
    stack = DOCKERFILE[DOCKERFILE.index(" AS rocm-stack") : DOCKERFILE.index(" AS rocm-bake")]
    before = stack[: stack.index("/build/prepare_mori.sh /opt")]
    for name, value in {"MORI_GPU_ARCHS": "gfx950", "MORI_DEVICE_NIC": "mlx5", "GPU_ARCHS": "gfx950"}.items():
        assert re.search(rf"^(?:ENV|   ) {name}={value}\b", before, re.M), name
    served = DOCKERFILE[DOCKERFILE.index("\nFROM rocm-stack AS rocm\n") :]  # inherits these variables
    # HOME is where mori would look otherwise. `serve` fills this place with what prepare_mori.sh made.
    assert "MORI_JIT_CACHE_DIR=/var/cache/megamoe/mori" in served
    assert "MEGAMOE_KERNELS=/opt/megamoe/kernels" in served and "/build/prepare_mori.sh /opt/megamoe/mori" in stack
