"""Our layouts, memory ledger, loader, start and launches against FlyDSL's real code (MEGAMOE_FLYDSL_DIR, 8acf56d)."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_lane.capture import rocm
from megamoe.kernels import lint
from megamoe.patch import command
from megamoe_atom import reference
from trees import checkout

pytestmark = pytest.mark.checkout
ADAPTER = Path(__file__).parents[2] / "atom_patch"


def process(script: str, arguments: list[str], *, needs: str, timeout_s: int = 900) -> dict[str, Any]:
    """One run of a script beside this file, in the Python that has flydsl 0.2.4 (MEGAMOE_FLYDSL_PYTHON)."""
    python = os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {needs}"], capture_output=True, timeout=120).returncode:
        pytest.skip(f"{python} has no {needs}; name one that has with MEGAMOE_FLYDSL_PYTHON")
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script)), *arguments],
        capture_output=True, text=True, timeout=timeout_s, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def scenario(name: str, *, needs: str, root: Path | None = None) -> dict[str, Any]:
    root = checkout("MEGAMOE_FLYDSL_DIR") if root is None else root
    return process("flydsl_process.py", [str(root), str(ADAPTER), name], needs=needs)


def test_our_layouts_equal_upstreams_functions_byte_for_byte() -> None:
    result = scenario("layouts", needs="torch")
    assert result["different"] == []
    assert result["compared"] > 400


def test_the_real_constructor_asks_for_heap_and_device_memory_as_in_our_ledger_to_the_byte() -> None:
    result = scenario("ledger", needs="flydsl.expr.buffer_ops")
    assert result["different"] == []
    assert len(result["rows"]) == 20
    assert all(row["device_tensors"] >= 48 and row["allocations"] >= 21 for row in result["rows"])
    assert result["unpinned"] == [], "all that the served layer imports from the checkout is checked beforehand"


def test_the_loader_accepts_the_real_checkout_and_refuses_one_changed_byte() -> None:
    result = scenario("load", needs="torch")
    assert result == {"files": 37, "changed_file": "flydsl_commit"}


def test_the_reference_takes_the_real_constructors_and_forwards_arguments_in_their_order() -> None:
    """Names, order, and which may be left out; the reference adds some of its own at the end."""
    source = (checkout("MEGAMOE_FLYDSL_DIR") / "kernels/mega_moe/mega_moe.py").read_text(encoding="utf-8")
    (mega,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "MegaMoE"]
    theirs = {n.name: n for n in mega.body if isinstance(n, ast.FunctionDef)}
    for name in ("__init__", "forward", "forward_prequant", "quantize"):
        a = theirs[name].args
        needed = [x.arg for x in a.args[: len(a.args) - len(a.defaults)]]
        needed += [x.arg for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
        order = [x.arg for x in (*a.args, *a.kwonlyargs)]
        ours = inspect.signature(getattr(reference.MegaMoE, name)).parameters
        assert list(ours)[: len(order)] == order, name
        assert [n for n, p in ours.items() if p.default is inspect.Parameter.empty] == needed, name


def test_a_start_finds_judges_and_constructs_the_real_class_of_an_edited_checkout(tmp_path: Path) -> None:
    edited = tmp_path / "flydsl"
    shutil.copytree(checkout("MEGAMOE_FLYDSL_DIR") / "kernels", edited / "kernels")
    command.move(command.job(flydsl=edited), undo=False)
    result = scenario("runtime", needs="flydsl.expr.buffer_ops", root=edited)
    assert result == {
        "class": "kernels.mega_moe.mega_moe.MegaMoE",
        "file_below_the_checkout": True,
        "bound": True,
        "swiglu_limit": 10.0,
        "mtpr": 8192,
        "rank": 3,
        "heap_used": True,
        "edits": 6,
        "small_heap": ["heap_too_small"],
    }


# (vgpr, agpr, sgpr, LDS bytes, spills of VGPR and SGPR) as the compiler's metadata say, of the pinned kernels without
# edits: (model, mtpr) -> stage-1, tile of gemm2 -> gemm2. All with flydsl 0.2.4.
STAGE1 = {
    ("V4-Pro", 1): (292, 36, 106, 49152, 0, 121),
    ("V4-Pro", 128): (320, 64, 106, 55552, 0, 122),
    ("V4-Pro", 512): (411, 155, 106, 97280, 0, 124),
    ("V4-Pro", 8192): (453, 197, 85, 100352, 0, 0),
    ("V4-Flash", 8192): (396, 140, 75, 93184, 0, 0),
}
GEMM2 = {
    ("V4-Pro", 1, "t16x128x256"): (108, 0, 74, 9216, 0, 0),
    ("V4-Pro", 128, "t32x128x256"): (124, 0, 77, 17408, 0, 0),
    ("V4-Pro", 512, "t64x256x256"): (250, 0, 91, 50176, 0, 0),
    ("V4-Pro", 8192, "t16x128x256"): (108, 0, 76, 9216, 0, 0),
    ("V4-Pro", 8192, "t32x128x256"): (126, 0, 80, 17408, 0, 0),
    ("V4-Pro", 8192, "t32x256x256"): (224, 0, 83, 25600, 0, 0),
    ("V4-Pro", 8192, "t64x128x256"): (272, 16, 88, 33792, 0, 0),
    ("V4-Pro", 8192, "t64x256x256"): (250, 0, 91, 50176, 0, 0),
    ("V4-Flash", 8192, "t32x128x128"): (90, 0, 92, 13312, 0, 0),
}
COMBINE, QUANT = (53, 0, 72, 128, 0, 0), (40, 0, 22, 0, 0, 0)
# Token counts that reach every variant of the instance.
TOKENS = {
    ("V4-Pro", 1): (1,),
    ("V4-Pro", 128): (128,),
    ("V4-Pro", 512): (512,),
    ("V4-Pro", 8192): (1, 2, 4, 16, 64, 128, 512, 1024, 8192),
    ("V4-Flash", 8192): (1, 8192),
}


MORI = {
    "mori/__init__.py": "",
    "mori/ir/__init__.py": "",
    "mori/ir/flydsl/runtime.py": "def shmem_module_init(module):\n    raise RuntimeError('nothing is loaded here')\n",
    # As mori declares its device functions, for those that the kernels call; FlyDSL keeps the hook by its name.
    "mori/ir/flydsl/__init__.py": """
import os
from flydsl.compiler.extern_link import link_extern
from flydsl.expr.extern import ffi
from kernel_lane.capture.upstream import _WAITS
from mori.ir.flydsl.runtime import shmem_module_init
for _name, (_arguments, _result) in _WAITS.items():
    globals()[_name] = link_extern(ffi(f"mori_shmem_{_name}", _arguments, _result, is_pure=False),
                                   bitcode_path=os.environ["MORI_SHMEM_BC"], module_init_fn=shmem_module_init)
""",
}


class Image:
    """What docker/rocm/bake.py finds in the image: FlyDSL with our edits under the wheel's native part, mori, ROCm.

    mori's bitcode is the lane's stand-in.
    """

    def __init__(self, folder: Path, *, keep_linked: bool) -> None:
        self.upstream, self.folder, self.tree, site = (
            checkout("MEGAMOE_FLYDSL_DIR"), folder, folder / "tree", folder / "site",
        )  # fmt: skip
        self.python = os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable)
        if subprocess.run([self.python, "-c", "import flydsl"], capture_output=True, timeout=120).returncode:
            pytest.skip(f"{self.python} has no flydsl; name one that has with MEGAMOE_FLYDSL_PYTHON")
        for name in ("kernels", "python"):
            shutil.copytree(self.upstream / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for work in (command.job(flydsl=self.tree), *([command.job(compiler=self.tree)] if keep_linked else [])):
            assert command.move(work, undo=False).data["changed"]
            assert command.move(work, undo=False).data["changed"] == []
            assert command.check(work, allow_drift=False).status == "pass"
        # The overlay: the wheel's native part under the tree's Python.
        where = "import importlib.util as u; print(u.find_spec('flydsl').submodule_search_locations[0])"
        said = subprocess.run([self.python, "-c", where], capture_output=True, text=True, check=True).stdout
        wheel = Path(said.strip())
        for native in (wheel, wheel.with_name("flydsl.libs")):
            for path in native.rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    target = site / native.name / path.relative_to(native)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(path)
        for path in (self.tree / "python/flydsl").rglob("*.py"):
            target = site / "flydsl" / path.relative_to(self.tree / "python/flydsl")
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        for name, text in MORI.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        self.root = Path(__file__).resolve().parents[2]
        self.env = {
            **os.environ,
            "PYTHONPATH": f"{site}:{self.root / 'scripts'}:{self.root / 'atom_patch'}",
            "ROCM_PATH": str(rocm.make_tree(folder / "rocm")),
        }

    def bake(self, out: str, *more: str) -> subprocess.CompletedProcess[str]:
        """One rank of V4-Flash."""
        argv = [self.python, str(self.root / "docker/rocm/bake.py"), "--kernels", str(self.tree)]
        argv += ["--out", str(self.folder / out), "--profile", "deepseek-v4-flash", *more]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_what_a_service_compiles_at_its_start_is_compiled_for_the_linter(tmp_path: Path) -> None:
    """Stage 1 and combine, by the calls that the adapter makes; these calls find all else in the cache just baked."""
    image = Image(tmp_path, keep_linked=False)
    look = ("out", "--look", str(tmp_path / "look"), "--bitcode", str(rocm.WAITS), "--rank", "0")
    plain = image.bake("out")
    assert plain.returncode == 0, plain.stderr
    done = image.bake(*look)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 kernels are compiled at start" in done.stdout
    linted = lint.judge(lint.collect([tmp_path / "look"]), cu_count=256)
    assert linted.status == "pass"
    names = sorted(row["kernel"] for row in linted.data["kernels"])
    assert [n.startswith("ep_combine") for n in names] == [True] * 6 + [False], names
    assert "_persist_cu256_" in names[-1]
    assert json.loads((tmp_path / "out/aot.json").read_text())["kernels"] == 2, "a look adds nothing to the cache"
    # A cache that lacks a kernel which the calls ask for: the look compiles it, and says that the bake did not.
    next((tmp_path / "out").rglob("*.pkl")).unlink()
    report = json.loads((tmp_path / "out/aot.json").read_text())
    (tmp_path / "out/aot.json").write_text(json.dumps(report | {"kernels": 1}))
    again = image.bake(*look)
    assert again.returncode == 1
    assert "error: 2 kernels in" in again.stderr, again.stderr


@pytest.mark.slow
def test_with_the_opt_in_what_links_mori_is_kept_and_a_second_process_makes_nothing(tmp_path: Path) -> None:
    """docker/rocm/bake.py on the real tree."""
    image = Image(tmp_path, keep_linked=True)
    upstream, tree, bake = image.upstream, image.tree, image.bake
    plain = bake("plain")
    assert plain.returncode == 0, plain.stderr
    counted = json.loads((tmp_path / "plain/aot.json").read_text())
    assert counted["kernels"] == 2 and set(counted["compiled_at_start"]) == {"stage 1", "combine"}
    linked = ("out", "--linked", "on", "--bitcode", str(rocm.WAITS), "--rank", "0")
    done = bake(*linked)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/aot.json").read_text())
    assert report["kernels"] == 9 and report["compiled_at_start"] == {} and "bitcode" in report["depends_on"]
    assert lint.judge(lint.collect([tmp_path / "out"]), cu_count=256).status == "pass"
    again = bake(*linked, "--verify")
    assert again.returncode == 0 and "found all 9 kernels" in again.stdout, again.stdout + again.stderr
    command.move(command.job(compiler=tree), undo=True)
    edited = "python/flydsl/compiler/jit_function.py"
    assert (tree / edited).read_bytes() == (upstream / edited).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mtpr"), STAGE1, ids=[f"{m}-{t}" for m, t in STAGE1])
def test_compiled_for_gfx950_as_the_adapter_launches_them_the_kernels_have_the_known_registers(
    model: str, mtpr: int
) -> None:
    root = checkout("MEGAMOE_FLYDSL_DIR")
    tokens = [str(n) for n in TOKENS[model, mtpr]]
    result = process(
        "flydsl_compile.py",
        [str(root), str(ADAPTER), model, str(mtpr), *tokens],
        needs="flydsl.expr.buffer_ops",
        timeout_s=3600,
    )
    found: dict[str, set[tuple[int, ...]]] = {}
    for kernel in result["kernels"]:
        assert kernel["target"] == "amdgcn-amd-amdhsa--gfx950"
        assert (kernel["scratch"], kernel["undefined"]) == (0, [])
        name = kernel["kernel"]
        if name.startswith("mfma_moe2"):
            name = next(part for part in name.split("_") if re.fullmatch(r"t\d+x\d+x\d+", part))
        figures = ("vgpr", "agpr", "sgpr", "lds", "vgpr_spills", "sgpr_spills")
        found.setdefault(re.sub(r"_fmoe1_.*|_intranode.*|_quant_.*", "", name), set()).add(
            tuple(kernel[figure] for figure in figures)
        )
    gemm2 = {tile: {figures} for (m, t, tile), figures in GEMM2.items() if (m, t) == (model, mtpr)}
    assert found == {
        "per_1x32_mx": {QUANT},
        "mfma": {STAGE1[model, mtpr]},
        "ep_combine": {COMBINE},
        **gemm2,
    }
    grids = {tuple(k["grid"][:2]) for k in result["kernels"] if k["kernel"].startswith("mfma_fmoe1")}
    assert grids == {(16, 16) if model == "V4-Flash" else (24, 10)}
