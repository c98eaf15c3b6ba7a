"""`megamoe kernels capture`: FlyDSL's real host code on CPU tensors; its launches become a bundle."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.envelope import Outcome, run_verb
from megamoe.kernels.child import run_child
from megamoe.kernels.options import Json

PYTHON_VARIABLE = "MEGAMOE_FLYDSL_PYTHON"


def command(
    flydsl: Annotated[
        Path, typer.Option("--flydsl", metavar="DIR", help="FlyDSL checkout (the folder that holds kernels/).")
    ],
    case: Annotated[str, typer.Option("--case", metavar="CASE", help="Which layer; an unknown name lists them.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the bundle goes; CASE when left out.")
    ] = None,
    golden: Annotated[
        Path | None, typer.Option("--golden", metavar="FILE", help="Inputs and outputs from a golden .npz.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", envvar=PYTHON_VARIABLE, help="Python with flydsl 0.2.4 (default: this one)."),
    ] = None,
    timeout_s: Annotated[int, typer.Option("--timeout-s", min=1, help="Give up after so many seconds.")] = 1800,
    json_output: Json = False,
) -> NoReturn:
    """Compile the kernels of one layer for gfx950, run them in order, and save every launch with its memory."""
    run_verb(
        "kernels capture",
        lambda: capture(flydsl, case, out or Path(case), golden, python or sys.executable, timeout_s),
        json_output=json_output,
    )


def capture(flydsl: Path, case: str, out: Path, golden: Path | None, python: str, timeout_s: int) -> Outcome:
    """Runs kernel_lane.capture in flydsl's Python, since that is rarely the one that runs `megamoe`."""
    from kernel_lane.capture.parts import choose

    choose(case)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Problem(
            "out_folder",
            what=f"{out} cannot be made: {error}",
            why="the bundle is a folder",
            fix="name another one with --out",
        ) from error
    if (out / "bundle.json").exists():
        raise Problem(
            "out_exists",
            what=f"{out} already holds a bundle",
            why="a mixture of two captures would look whole",
            fix="remove it, or name another folder with --out",
        )
    if golden is not None and not golden.is_file():
        raise Problem(
            "golden", what=f"{golden} is no file", why="it names inputs and outputs", fix="pass a file of tests/golden"
        )
    _need_flydsl(python)
    figures = _figures(flydsl, case, out, golden, python, timeout_s)
    same = bool(figures["equal_in_order"])
    what = f"{figures['launches']} launch steps, {figures['instructions']} wave instructions"
    if same:
        return Outcome(
            "pass", Exit.PASS, f"{case}: {what}; every output bit equals the reference; bundle in {out}", [], figures
        )
    return Outcome(
        "fail",
        Exit.CHECK_FAILED,
        f"{case}: {what}; the outputs differ from the reference; bundle in {out}: run and check it",
        [],
        figures,
    )


def _need_flydsl(python: str) -> None:
    try:
        done = run_child([python, "-c", "import flydsl.expr.buffer_ops, torch"], 300)
        words = done.err.strip().splitlines()[-1:] or ["no message"]
    except OSError as error:
        done, words = None, [str(error)]
    if done is None or done.code != 0:
        raise Problem(
            "no_flydsl",
            what=f"{python} cannot import flydsl 0.2.4 and torch: {words[0]}",
            why="the kernels are compiled by FlyDSL itself",
            fix=f"pip install flydsl==0.2.4 torch there, or name another Python with --python or {PYTHON_VARIABLE}",
            exit_code=Exit.PRECONDITION,
        )


def _figures(flydsl: Path, case: str, out: Path, golden: Path | None, python: str, timeout_s: int) -> dict[str, Any]:
    import kernel_lane
    import megamoe_atom

    paths = [str(Path(m.__file__).parents[1]) for m in (kernel_lane, megamoe_atom) if m.__file__]
    words = [
        python,
        "-m",
        "kernel_lane.capture",
        str(flydsl),
        case,
        str(out),
        *(["--golden", str(golden)] if golden else []),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}
    done = run_child(words, timeout_s, env)
    if done.code is None:
        raise Problem(
            "capture_timeout",
            what=f"the capture of {case} did not end within {timeout_s} s",
            why="a kernel may wait for ever, or the machine is slow",
            fix="raise --timeout-s; small cases take a minute",
            exit_code=Exit.CHECK_FAILED,
        )
    try:
        answer: dict[str, Any] = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise Problem(
            "capture_failed",
            what=f"the capture ended with exit code {done.code}: {done.err.strip()[-1500:]}",
            why="FlyDSL's host code or compiler failed before any result",
            fix="run the command above by hand; flydsl must be 0.2.2 to 0.2.4",
            exit_code=Exit.CHECK_FAILED,
        ) from error
    if "problem" in answer:
        raise Problem.of([Reason(**r) for r in answer["problem"]], exit_code=Exit(answer["exit"]))
    return answer
