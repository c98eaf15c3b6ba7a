"""Our layouts, memory ledger, loader, start and launches against FlyDSL's real code (MEGAMOE_FLYDSL_DIR, 8acf56d)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megamoe.patch import command
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


def test_the_loader_accepts_the_real_checkout_and_refuses_one_changed_byte() -> None:
    result = scenario("load", needs="torch")
    assert result == {"files": 35, "changed_file": "flydsl_commit"}


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
