#!/usr/bin/env python3
"""Proves the whole stack in one process each, after the last install, and compiles its bytecode.

prove_stack.py PINS KERNELS_DIR
"""

from __future__ import annotations

import py_compile
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import distributions
from pathlib import Path

# pip check's complaints that are meant, and why.
ALLOWED = {
    "torch": "the base's torch is AMD's build; its dependencies are the base's own business",
    "triton": "as torch",
}


def check_dependencies() -> list[str]:
    """pip check's findings that nobody allowed."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("No broken")]
    return [line for line in lines if line.split(" ")[0].lower() not in ALLOWED]


SCENARIOS = {
    "mori's native part": "import mori.shmem, mori.ops",
    "flydsl's compiler": "import flydsl.compiler, flydsl.expr.buffer_ops",
    "the kernels": "import sys; from pathlib import Path; from megamoe_atom.kernel import verify_files; "
    "verify_files(Path(sys.argv[1]))",
    "aiter's wheel": "import importlib.util as u; assert u.find_spec('aiter') and u.find_spec('aiter_meta')",
    "the adapter": "import megamoe_atom.factory, megamoe_atom.limits",
    "transformers": "import transformers; assert transformers.__version__.split('.')[0] == '5'",
    "the gate's harness": "import lm_eval",
}


def imports(kernels: Path, names: list[str]) -> list[str]:
    """What does not import. Each in a process of its own: an import that works after another one proves nothing."""
    found = []
    for name in names:
        argv = [sys.executable, "-c", SCENARIOS[name], str(kernels)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            found.append(f"{name}: {last}")
    return found


def compile_bytecode(before: set[str]) -> tuple[int, list[str]]:
    """Bytecode for every distribution that is not the base's. Marked by hash: the same bytes from build to build."""
    done, skipped = 0, []
    warnings.simplefilter("ignore", SyntaxWarning)  # other people's escape sequences
    for dist in distributions():
        if (dist.metadata["Name"] or "").lower().replace("_", "-") in before:
            continue
        for file in dist.files or []:
            path = Path(str(dist.locate_file(file)))
            if path.suffix != ".py" or not path.is_file():
                continue
            try:
                py_compile.compile(
                    str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
                )
                done += 1
            except py_compile.PyCompileError:
                skipped.append(str(file))  # a template, or for another Python; whatever imports it fails by itself
    return done, skipped


def main(argv: list[str]) -> int:
    pins = tomllib.loads(Path(argv[0]).read_text(encoding="utf-8"))
    found = check_dependencies() + imports(Path(argv[1]), list(SCENARIOS))
    if found:
        print("error: " + "\nerror: ".join(found), file=sys.stderr)
        print(
            "  why: the stack does not hold together\n  fix: see which pin the failing package needs", file=sys.stderr
        )
        return 1
    done, skipped = compile_bytecode({"torch", "triton", "torchvision", "torchaudio", "pip"})
    atom = pins["git"]["atom"]["commit"][:12]
    print(f"the stack of ATOM {atom} imports; {done} files compiled, {len(skipped)} are no modules")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
