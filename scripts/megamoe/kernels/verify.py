"""`megamoe kernels verify`: golden inputs through FlyDSL's public class on a node's GPUs, before a model is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from megamoe_atom import kernel_edits
from megamoe_atom.kernel import verify_files
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb
from megamoe.resources import resource

if TYPE_CHECKING:
    from megamoe.kernels.verify_cases import Case

RUNS = 50
TIMEOUT_S = 300.0
Executor = Callable[[Path, int], None]
"""Runs the job in a folder on that many ranks; out-RANK.npz appear there."""


def gpu_facts() -> dict[str, Any] | None:
    """Count, architecture and versions of the GPUs that a process sees; None where there is none (or no torch)."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available() or torch.version.hip is None:
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpus": torch.cuda.device_count(),
        "arch": str(properties.gcnArchName).split(":")[0],
        "name": properties.name,
        "compute_units": properties.multi_processor_count,
        "torch": torch.__version__,
        "hip": torch.version.hip,
    }


def not_run(why: str) -> Outcome:
    """Could not run is not passed: exit 5, no evidence."""
    return Outcome(
        "not_run",
        Exit.NO_EVIDENCE,
        f"nothing was verified: {why}",
        [
            Finding(
                "verify_not_run",
                "error",
                why,
                "the kernels are proven by execution on a CPU only until this verb has passed on a node",
                "run it in the image on a node of MI355X, with the devices passed to the container",
            )
        ],
    )


def processes(timeout_s: float = TIMEOUT_S) -> Executor:
    """One process per rank; the first that fails, or the time limit, ends all: its peers would wait for it for ever."""

    def execute(job: Path, ranks: int) -> None:
        command = [sys.executable, "-m", "megamoe.kernels.verify_rank", str(job)]
        logs = [(job / f"log-{r}").open("wb") for r in range(ranks)]
        running = {
            r: subprocess.Popen([*command, str(r)], stdout=logs[r], stderr=subprocess.STDOUT) for r in range(ranks)
        }
        deadline = time.monotonic() + timeout_s
        failed: tuple[int, str] | None = None
        try:
            while running and failed is None:
                for r, process in list(running.items()):
                    code = process.poll()
                    if code is not None:
                        del running[r]
                        failed = (r, f"ended with exit code {code}") if code else failed
                if running and time.monotonic() > deadline:
                    failed = (min(running), f"was still running after {timeout_s:g} s")
                time.sleep(0.1)
        finally:
            for process in running.values():
                process.kill()
            for process in running.values():
                process.wait()
            for log in logs:
                log.close()
        if failed is None:
            silent = next((r for r in range(ranks) if not (job / f"out-{r}.npz").is_file()), None)
            failed = (silent, "ended without a result") if silent is not None else None
        if failed is not None:
            tail = (job / f"log-{failed[0]}").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-6:]
            raise Problem(
                "verify_rank",
                what=f"rank {failed[0]} {failed[1]}; its last words: {' | '.join(tail) or 'none'}",
                why="all ranks must finish: a kernel that hangs or a process that dies would do so while serving",
                fix="look for the first error; run `megamoe preflight`; check HIP_VISIBLE_DEVICES, /dev/shm and mori",
                exit_code=Exit.CHECK_FAILED,
            )

    return execute


def verify(cases: list[Case], flydsl: Path | None, execute: Executor) -> Outcome:
    """Has the ranks run the cases (all of one number of ranks) and judges what came out; the data holds all figures.

    Answers that a case lacks are filled in.
    """
    import numpy as np

    from megamoe.kernels.verify_cases import with_answers
    from megamoe.kernels.verify_judge import REL_L2_BOUND, judge_case
    from megamoe.kernels.verify_rank import save_case

    (ranks,) = {case.ranks for case in cases}
    findings: list[Finding] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="megamoe-verify-") as folder:
        job = Path(folder)
        for n, case in enumerate(cases):
            save_case(job / f"case-{n}.npz", case)
        head = {"ranks": ranks, "flydsl": str(flydsl or ""), "cases": [f"case-{n}.npz" for n in range(len(cases))]}
        (job / "job.json").write_text(json.dumps(head), encoding="utf-8")
        started = time.monotonic()
        # The answers are worked out while the ranks start and compile; they never see them.
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(execute, job, ranks)
            for case in cases:
                with_answers(case)
            running.result()
        seconds = time.monotonic() - started
        outs = [np.load(job / f"out-{r}.npz") for r in range(ranks)]
        for n, case in enumerate(cases):
            got = [[o[f"out_{n}_{f}"] for o in outs] for f in range(len(case.forwards))]
            hashes = [[str(o[f"hashes_{n}"][run]) for o in outs] for run in range(len(case.order))]
            new, row = judge_case(case.name, got, case.expected, hashes, case.order)
            findings += new
            rows.append(row | {"seconds": round(max(float(o[f"seconds_{n}"]) for o in outs), 3)})
        for o in outs:
            o.close()
    equal = sum(r["bit_equal"] for r in rows)
    return outcome_from(
        findings,
        summary_ok=f"{len(rows)} cases on {ranks} ranks: {equal} bit-equal, the rest within the last-place bound",
        summary_bad=f"{sum(f.severity == 'error' for f in findings)} of the kernels' properties do not hold",
        data={"ranks": ranks, "seconds": round(seconds, 2), "rel_l2_bound": REL_L2_BOUND, "cases": rows},
        text="\n".join(
            f"{r['case']:<24} runs {r['runs']:>3}  bit-equal {'yes' if r['bit_equal'] else 'no':<4} "
            f"rel L2 {r['worst_rel_l2']:.2e}  unsteady {r['unsteady_runs']}"
            for r in rows
        ),
    )


def on_this_node(flydsl: Path | None, golden: Path, ranks: int | None, timeout_s: float) -> Outcome:
    """The verb's work on real GPUs."""
    from megamoe.kernels.verify_cases import cases_for

    facts = gpu_facts()
    if facts is None:
        return not_run("this process sees no AMD GPU (no HIP build of torch, or no device)")
    if facts["arch"] != "gfx950":
        return not_run(f"the GPUs are {facts['arch']}, the kernels are for gfx950")
    ranks = ranks or min(8, facts["gpus"])
    if not 1 <= ranks <= facts["gpus"]:
        raise Problem(
            "verify_ranks",
            what=f"{ranks} ranks on {facts['gpus']} visible GPUs",
            why="each rank has a GPU of its own",
            fix=f"pass --ranks with 1 to {facts['gpus']}",
            exit_code=Exit.REFUSED,
        )
    path = flydsl or Path(os.environ.get("ATOM_FLYDSL_KERNELS_PATH", ""))
    edits = kernel_edits.present(verify_files(path))
    clamp = kernel_edits.SWIGLU_LIMIT in edits
    outcome = verify(cases_for(ranks, golden, clamp=clamp, runs=RUNS), path.resolve(), processes(timeout_s))
    outcome.data |= {"gpu": facts, "kernel_edits": sorted(edits), "flydsl_commit": kernel_edits.pinned().commit}
    return outcome


def command(
    flydsl: Annotated[
        Path | None,
        typer.Option("--flydsl", metavar="DIR", help="FlyDSL checkout (default: ATOM_FLYDSL_KERNELS_PATH)."),
    ] = None,
    golden: Annotated[
        Path | None, typer.Option("--golden", metavar="DIR", help="Golden vectors (default: the repository's).")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="EP ranks (default: all visible GPUs, at most 8).")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds until a hang is called one.")
    ] = TIMEOUT_S,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON envelope on stdout, complete to send in.")
    ] = False,
) -> NoReturn:
    """Compare this node's GPUs with the executed kernels, before any model is loaded."""
    run_verb(
        "kernels verify",
        lambda: on_this_node(flydsl, golden or resource("tests/golden"), ranks, timeout_s),
        json_output=json_output,
    )
