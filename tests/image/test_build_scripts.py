"""What the rocm build asserts in its layers: each check is sprung here, on small files made for it."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
Script = Callable[[str], ModuleType]
OVERLAY = "0.2.4+g8acf56d7"


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A wheel with a true RECORD."""
    info = f"{name}-{version}.dist-info"
    content = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-manylinux_2_27_x86_64\n",
    }
    rows = []
    for file, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{file},sha256={digest},{len(text)}")
    path = folder / f"{name}-{version}-cp312-cp312-manylinux_2_27_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


@pytest.fixture
def flydsl(tmp_path: Path) -> tuple[Path, Path]:
    """(upstream's wheel, a source tree of the commit) in small."""
    wheel = make_wheel(
        tmp_path,
        "flydsl",
        "0.2.4",
        {
            "flydsl/__init__.py": '__version__ = "0.2.4"\n',
            "flydsl/expr/arith.py": "old = 1\n",
            "flydsl/_mlir/_mlir_libs/_mlir.cpython-312.so": "native",
        },
    )
    tree = tmp_path / "tree"
    (tree / "python/flydsl/expr").mkdir(parents=True)
    (tree / "python/flydsl/__init__.py").write_text('__version__ = "0.2.4"\n')
    (tree / "python/flydsl/expr/arith.py").write_text("new = 2\n")
    (tree / "python/flydsl/expr/added.py").write_text("added = 3\n")
    return wheel, tree


def build_overlay(module: ModuleType, wheel: Path, tree: Path, out: Path, version: str = OVERLAY) -> Path:
    files = module.overlay(module.read_wheel(wheel), tree, version)
    target = out / f"flydsl-{version}-cp312-cp312-manylinux_2_27_x86_64.whl"
    module.write_wheel(files, target, 1784716176)
    return target


def test_the_overlay_has_the_commits_python_over_the_wheels_native_part(
    script: Script, flydsl: tuple[Path, Path], tmp_path: Path
) -> None:
    made = build_overlay(script("overlay_flydsl"), *flydsl, tmp_path)
    with zipfile.ZipFile(made) as archive:
        assert archive.read("flydsl/expr/arith.py") == b"new = 2\n"
        assert archive.read("flydsl/expr/added.py") == b"added = 3\n"
        assert archive.read("flydsl/_mlir/_mlir_libs/_mlir.cpython-312.so") == b"native"
        assert f"Version: {OVERLAY}" in archive.read(f"flydsl-{OVERLAY}.dist-info/METADATA").decode()
        assert not [n for n in archive.namelist() if n.startswith("flydsl-0.2.4.dist-info")]


def test_the_overlay_is_the_same_bytes_from_the_same_inputs(
    script: Script, flydsl: tuple[Path, Path], tmp_path: Path
) -> None:
    module = script("overlay_flydsl")
    first = build_overlay(module, *flydsl, tmp_path).read_bytes()
    os.utime(flydsl[1] / "python/flydsl/expr/arith.py", (0, 0))
    assert build_overlay(module, *flydsl, tmp_path).read_bytes() == first


def test_the_overlays_version_satisfies_aiters_pin_and_a_build_from_the_commit_would_not() -> None:
    assert Version(OVERLAY) in SpecifierSet("==0.2.4")
    assert Version("0.2.4.dev751") not in SpecifierSet("==0.2.4", prereleases=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param("version", "calls itself 0.2.5", id="the commit is of another version"),
        pytest.param("missing", "flydsl/expr/arith.py, which the commit has not", id="the wheel has more modules"),
        pytest.param("native", "no native part", id="a pure wheel"),
        pytest.param("truncated", "cannot be unpacked", id="a truncated wheel"),
        pytest.param("empty", "holds no flydsl", id="an empty tree"),
    ],
)
def test_halves_that_do_not_fit_are_refused(
    script: Script, flydsl: tuple[Path, Path], tmp_path: Path, damage: str, said: str
) -> None:
    wheel, tree = flydsl
    if damage == "version":
        (tree / "python/flydsl/__init__.py").write_text('__version__ = "0.2.5"\n')
    elif damage == "missing":
        (tree / "python/flydsl/expr/arith.py").unlink()
    elif damage == "native":
        wheel = make_wheel(tmp_path, "flydsl", "0.2.4", {"flydsl/__init__.py": "x"})
    elif damage == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:-40])
    else:
        tree = tmp_path / "nothing"
        tree.mkdir()
    with pytest.raises(SystemExit) as caught:
        build_overlay(script("overlay_flydsl"), wheel, tree, tmp_path)
    assert said in str(caught.value)


def pins() -> dict[str, object]:
    """The shape of docker/pins.toml, as far as the guard reads it."""
    return {
        "base": {"torch": "2.10.0+rocm7.2.4.git3d3aa833", "python": "3.12", "hip": "7.2.53211"},
        "python": {
            "triton": "3.6.0+rocm7.2.4.git4ed88892", "pybind11": "3.0.4", "transformers": "5.2.0", "lm_eval": "0.4.12",
        },
        "git": {n: {"version": v} for n, v in {"flydsl": OVERLAY, "aiter": "0.1.19", "atom": "0.1.6"}.items()},
        "wheel": {"mori": {"distribution": "amd-mori-nightly", "version": "1.2.3"}},
    }  # fmt: skip


@pytest.fixture
def installed(
    script: Script, flydsl: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """A site-packages that holds the overlay, and nothing else of the test's Python."""
    site = tmp_path / "site"
    made = build_overlay(script("overlay_flydsl"), *flydsl, tmp_path)
    zipfile.ZipFile(made).extractall(site)
    monkeypatch.setattr(sys, "path", [str(site)])
    return SimpleNamespace(site=site, wheel=made, upstream=flydsl[0], tmp=tmp_path)


def test_an_untouched_stack_passes_the_guard(script: Script, installed: SimpleNamespace) -> None:
    assert script("guard").faults(pins(), [installed.wheel], stand_in=False) == []


def test_a_setup_that_reinstalls_flydsl_is_caught(script: Script, installed: SimpleNamespace) -> None:
    """aiter's develop set-up pip-installs flydsl 0.2.4 when the installed metadata says anything else."""
    for old in installed.site.glob("flydsl-*.dist-info/*"):
        old.unlink()
    next(installed.site.glob("flydsl-*.dist-info")).rmdir()
    zipfile.ZipFile(installed.upstream).extractall(installed.site)
    found = script("guard").faults(pins(), [installed.wheel], stand_in=False)
    assert "flydsl is 0.2.4, pinned is 0.2.4+g8acf56d7" in found
    assert any("flydsl/expr/arith.py is not the one of" in line for line in found)


def test_a_reinstall_under_the_same_version_is_caught_by_its_bytes(script: Script, installed: SimpleNamespace) -> None:
    elsewhere = installed.tmp / "elsewhere"
    elsewhere.mkdir()
    files = {"flydsl/__init__.py": "other", "flydsl/expr/arith.py": "other"}
    other = make_wheel(elsewhere, "flydsl", OVERLAY, files)
    zipfile.ZipFile(other).extractall(installed.site)
    found = script("guard").faults(pins(), [installed.wheel], stand_in=False)
    assert [line for line in found if "is not the one of" in line]


def test_a_file_edited_after_its_install_is_caught(script: Script, installed: SimpleNamespace) -> None:
    (installed.site / "flydsl/expr/arith.py").write_text("edited = 1\n")
    assert "flydsl: flydsl/expr/arith.py was changed after it was installed" in script("guard").faults(
        pins(), [], stand_in=False
    )


@pytest.mark.parametrize(
    ("name", "version", "stand_in", "caught"),
    [
        pytest.param("triton", "3.7.0", False, True, id="aiter's swap took upstream's Triton"),
        pytest.param("triton", "3.6.0", False, True, id="upstream's Triton of the same release"),
        pytest.param("triton", "3.6.0", True, False, id="a stand-in has upstream's Triton of the same release"),
        pytest.param("triton", "3.7.0", True, True, id="another release, even on a stand-in"),
        pytest.param("pybind11", "3.1.0", False, True, id="pybind11 with another internals ABI"),
        pytest.param("pybind11", "3.0.4", False, False, id="the pinned pybind11"),
        pytest.param("torch", "2.10.0+rocm7.2.4.lw.git3d3aa833", False, False, id="torch's package label"),
        pytest.param("torch", "2.11.0", False, True, id="another torch"),
    ],
)
def test_a_replaced_package_is_caught(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    stand_in: bool,
    caught: bool,
) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(make_wheel(tmp_path, name, version, {f"{name}/__init__.py": ""})).extractall(site)
    monkeypatch.setattr(sys, "path", [str(site)])
    found = script("guard").faults(pins(), [], stand_in=stand_in)
    assert bool(found) is caught, found


def run_step(
    tmp_path: Path, needs: str, *, stand_in: bool, command: str = "exit 0"
) -> subprocess.CompletedProcess[str]:
    """step.py with a steps.toml of its own: one step that needs `needs`."""
    (tmp_path / "step.py").write_text((ROOT / "docker/rocm/step.py").read_text())
    (tmp_path / "steps.toml").write_text(
        f'[[step]]\nname = "one"\nneeds = ["{needs}"]\ndoes = "x"\nwithout = "it is missed"\n'
    )
    marker = tmp_path / "stand_in.json"
    if stand_in:
        marker.write_text("{}")
    return subprocess.run(
        [sys.executable, str(tmp_path / "step.py"), "one", "--", "bash", "-c", command],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "MEGAMOE_STAND_IN": str(marker), "MEGAMOE_NOT_RUN": str(tmp_path / "not_run")},
    )  # fmt: skip


def test_a_step_whose_needs_are_there_runs_and_its_failure_is_the_builds(tmp_path: Path) -> None:
    assert run_step(tmp_path, sys.executable, stand_in=True, command="exit 7").returncode == 7
    assert not (tmp_path / "not_run").exists()


def test_a_step_that_cannot_run_fails_a_real_build_and_is_written_down_on_a_stand_in(tmp_path: Path) -> None:
    real = run_step(tmp_path, "/nowhere/hipcc", stand_in=False)
    assert real.returncode == 1
    assert "/nowhere/hipcc" in real.stderr and "it is missed" in real.stderr and "fix:" in real.stderr
    assert run_step(tmp_path, "/nowhere/hipcc", stand_in=True).returncode == 0
    assert [p.name for p in (tmp_path / "not_run").iterdir()] == ["one"]


def test_every_named_step_is_in_the_build_and_every_call_names_a_step(script: Script) -> None:
    named = set(script("step").steps())
    called: set[str] = set()
    for path in (ROOT / "docker/rocm").glob("*.sh"):
        for part in path.read_text().split('step.py" ')[1:]:
            called.add(part.split()[0])
    assert called == named


def test_a_closure_is_split_by_what_is_served_as_source_only(script: Script) -> None:
    lock = "# c\na==1 \\\n    --hash=sha256:11\nB_c==2 --hash=sha256:22\n"
    split = script("install_closure").split
    assert split(lock, ["b-c"]) == (["a==1      --hash=sha256:11"], ["B_c==2 --hash=sha256:22"])
    with pytest.raises(ValueError, match="source_only names d"):
        split(lock, ["d"])


def test_mori_without_its_shared_libraries_is_caught_though_its_bare_import_works(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mori/shmem").mkdir(parents=True)
    (tmp_path / "mori/__init__.py").write_text("")
    (tmp_path / "mori/shmem/__init__.py").write_text(
        "raise ImportError('libgrpc++.so.1.51: cannot open shared object file')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bare = subprocess.run([sys.executable, "-c", "import mori"], check=False, timeout=60)
    assert bare.returncode == 0
    assert any("libgrpc++.so.1.51" in line for line in script("prove_stack").imports(tmp_path, ["mori's native part"]))
