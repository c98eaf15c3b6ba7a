#!/usr/bin/env python3
"""Proves the adapter and its edits on real upstream trees, and says `not_run` for whatever was not given.

    tests/patch/run_proof.py --atom DIR [--rc0 DIR] [--main DIR] [--flydsl DIR] \
        [--atom-python PY] [--flydsl-python PY] [--slow] [--json]

Trees are read, never written: edits go to a temporary copy. Exit: 0 all ran and passed, 1 something failed,
5 nothing failed but something could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


@dataclass(frozen=True)
class Row:
    name: str
    status: str
    figures: str
    seconds: float


def pytest_counts(
    arguments: list[str], *, python: str, cwd: Path, env: dict[str, str]
) -> tuple[int, dict[str, int], str]:
    """Exit code, counts by word and the end of the output of one pytest run."""
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=cwd, env=env, capture_output=True, text=True, timeout=7200,
    )  # fmt: skip
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return (
        done.returncode,
        {word: int(n) for n, word in COUNTS.findall(last)},
        done.stdout[-2000:] + done.stderr[-1000:],
    )


def ours(path: str, env: dict[str, str], *extra: str) -> tuple[str, str]:
    """Runs tests of this repository; a skip means that a checkout was missing."""
    code, counts, tail = pytest_counts([path, *extra], python=sys.executable, cwd=ROOT, env=env)
    figures = ", ".join(f"{n} {word}" for word, n in counts.items())
    if code not in (0, 5):
        return "fail", f"{figures}\n{tail}"
    return ("not_run" if not counts.get("passed") or counts.get("skipped") else "pass"), figures


def upstream_suite(atom: Path, python: str) -> tuple[str, str]:
    """ATOM's own CPU tests before and after the edits, by its pre-check's command: the counts must be equal."""
    sys.path.insert(0, str(HERE))
    from megamoe.patch import command

    if subprocess.run([python, "-c", "import transformers, pytest, msgspec"], capture_output=True).returncode:
        return "not_run", f"{python} lacks transformers, pytest or msgspec (ATOM's own requirements)"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "atom"
        shutil.copytree(atom, tree, ignore=shutil.ignore_patterns(".git"))
        arguments = ["tests/", "--ignore=tests/plugin", "--ignore=tests/entrypoints/test_openai_server.py"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        before = pytest_counts(arguments, python=python, cwd=tree, env=env)
        command.move(command.job(tree), undo=False)
        after = pytest_counts(arguments, python=python, cwd=tree, env=env)
    same = before[:2] == after[:2] and before[0] == 0 and before[1].get("passed", 0) > 0
    return ("pass" if same else "fail"), f"before {before[1]}, after {after[1]}" + ("" if same else f"\n{after[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (
        ("atom", "ATOM at the pinned commit"),
        ("rc0", "ATOM v0.1.6-rc0"),
        ("main", "ATOM main"),
        ("flydsl", "FlyDSL at the pinned commit"),
    ):
        parser.add_argument(f"--{name}", type=Path, help=what)
    parser.add_argument("--atom-python", default=sys.executable, help="Python with ATOM's CPU requirements")
    parser.add_argument("--flydsl-python", default=sys.executable, help="Python with torch and flydsl 0.2.4")
    parser.add_argument(
        "--slow",
        action="store_true",
        help="also the self-test over 1,000 seeds (1 min of CPU) and the compilation of the kernels (5 min)",
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    env = {k: v for k, v in os.environ.items() if not k.startswith("MEGAMOE_")}
    env |= {
        "OMP_NUM_THREADS": "1",
        "MEGAMOE_ATOM_PYTHON": given.atom_python,
        "MEGAMOE_FLYDSL_PYTHON": given.flydsl_python,
    }
    for variable, path in (
        ("MEGAMOE_ATOM_DIR", given.atom),
        ("MEGAMOE_ATOM_RC0_DIR", given.rc0),
        ("MEGAMOE_ATOM_MAIN_DIR", given.main),
        ("MEGAMOE_FLYDSL_DIR", given.flydsl),
    ):
        if path is not None:
            env[variable] = str(path.resolve())

    def missing(**paths: Path | None) -> str:
        return ", ".join(f"--{name} not given" for name, path in paths.items() if path is None)

    a, f = given.atom, given.flydsl
    pinned = "not another"
    real_atom, flydsl = "tests/patch/test_real_atom.py", "tests/patch/test_real_flydsl.py"
    steps: list[tuple[str, str, Callable[[], tuple[str, str]]]] = [
        ("edits on made-up trees", "", lambda: ours("tests/patch/test_tree.py", env, "tests/patch/test_rules.py")),
        ("edits on the pinned ATOM", missing(atom=a), lambda: ours(real_atom, env, "-k", pinned)),
        ("drift: v0.1.6-rc0", missing(rc0=given.rc0), lambda: ours(real_atom, env, "-k", "rc0")),
        ("drift: main", missing(main=given.main), lambda: ours(real_atom, env, "-k", "main")),
        ("ATOM's own CPU tests", missing(atom=a), lambda: upstream_suite(a, given.atom_python)),
        ("adapter in ATOM's real moe.py", missing(atom=a), lambda: ours("tests/patch/test_real_moe.py", env)),
        ("edits on the pinned FlyDSL", missing(flydsl=f), lambda: ours("tests/patch/test_flydsl_edits.py", env)),
        ("layouts against FlyDSL", missing(flydsl=f), lambda: ours(flydsl, env, "-k", "layouts")),
        ("memory ledgers against FlyDSL", missing(flydsl=f), lambda: ours(flydsl, env, "-k", "ledger")),
        ("kernel loader on FlyDSL", missing(flydsl=f), lambda: ours(flydsl, env, "-k", "loader")),
        ("start on FlyDSL's real class", missing(flydsl=f), lambda: ours(flydsl, env, "-k", "a_start")),
        (
            "kernels compiled for gfx950",
            missing(flydsl=f) or ("" if given.slow else "--slow not given"),
            lambda: ours(flydsl, env, "-k", "compiled"),
        ),
        (
            "linked kernels kept (opt-in)",
            missing(flydsl=f) or ("" if given.slow else "--slow not given"),
            lambda: ours(flydsl, env, "-k", "opt_in"),
        ),
        ("adapter and self-test", "", lambda: ours("tests/unit/method", env, "-m", "not slow")),
        (
            "self-test over 1,000 seeds",
            "" if given.slow else "--slow not given",
            lambda: ours("tests/unit/method", env, "-m", "slow"),
        ),
    ]
    rows = []
    for name, why_not, step in steps:
        start = time.monotonic()
        status, figures = ("not_run", why_not) if why_not else step()
        rows.append(Row(name, status, figures, round(time.monotonic() - start, 1)))
        if not given.json:
            print(f"{status:8} {name:32} {rows[-1].seconds:6.1f} s  {figures}", flush=True)
    if given.json:
        print(json.dumps([asdict(r) for r in rows], indent=2))
    if any(r.status == "fail" for r in rows):
        return 1
    return 5 if any(r.status == "not_run" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
