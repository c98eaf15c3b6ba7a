"""`megamoe kernels run`: executes a bundle, on the lane's own machine or through another executor."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, Severity, run_verb
from megamoe.kernels.options import BundleFolder, Json, ScheduleText


def command(
    bundle: BundleFolder,
    runner: Annotated[
        str | None, typer.Option("--runner", metavar="CMD", help="Another executor, called as CMD BUNDLE OUT.")
    ] = None,
    schedule: ScheduleText = "order",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the results here.")] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Ranks do not wait for each other between launches.")
    ] = False,
    timeout_s: Annotated[int, typer.Option("--timeout-s", help="Give a runner so many seconds.")] = 600,
    json_output: Json = False,
) -> NoReturn:
    """Execute every launch of a bundle and compare the outputs with what it expects, bit for bit."""
    run_verb(
        "kernels run",
        lambda: foreign(bundle, runner, out, timeout_s) if runner else own(bundle, schedule, out, overlap=overlap),
        json_output=json_output,
    )


def own(folder: Path, schedule: str, out: Path | None, *, overlap: bool = False) -> Outcome:
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import Executor, write_results
    from kernel_lane.judge import FAULTS, place
    from kernel_lane.machine.schedule import Schedule

    parsed = Schedule.parse(schedule)
    bundle = Bundle.read(folder)
    run = Executor(bundle).run(parsed, overlap=overlap)
    if out is not None:
        write_results(run, out)
    findings = differences(bundle, run.results)
    if run.stop:
        findings.insert(0, stopped(run.stop))
    for f in run.findings:
        severity: Severity = "error" if f.kind in FAULTS else "info"
        findings.append(
            Finding(f.kind, severity, place(f), "see `megamoe kernels check`", "compare with the kernel's source")
        )
    rate = run.instructions / run.cpu_seconds if run.cpu_seconds else 0.0
    data: dict[str, Any] = {
        "schedule": str(parsed), "instructions": run.instructions, "seconds": round(run.seconds, 3),
        "cpu_seconds": round(run.cpu_seconds, 3),
        "per_cpu_second": round(rate),
        "launches": [{"names": s.names, "instructions": s.outcome.steps, "seconds": round(s.seconds,
        3)} for s in run.steps],
    }  # fmt: skip
    return verdict(
        folder, findings, f"{run.instructions} wave instructions in {run.seconds:.2f} s under {parsed}", data
    )


def foreign(folder: Path, runner: str, out: Path | None, timeout_s: int) -> Outcome:
    """Runs another executor; its results are judged as ours are."""
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import read_results

    bundle = Bundle.read(folder)
    with tempfile.TemporaryDirectory(prefix="megamoe-run-") as scratch:
        results = out or Path(scratch)
        results.mkdir(parents=True, exist_ok=True)
        words = [*shlex.split(runner), str(folder.resolve()), str(results.resolve())]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise _runner(
                "runner_timeout",
                f"{words[0]} did not end within {timeout_s} s",
                "raise --timeout-s, or look for a hang",
            ) from error
        except OSError as error:
            raise _runner(
                "runner_missing", f"{words[0]} cannot be started: {error}", "name an executable", Exit.REFUSED
            ) from error
        if done.returncode:
            raise _runner("runner_failed",
            f"{words[0]} ended with exit code {done.returncode}: {done.stderr.strip()[-800:]}",
                          "see its own messages")  # fmt: skip
        found = differences(bundle, read_results(bundle, results))
    return verdict(folder, found, f"executed by {runner}", {"runner": runner})


def _runner(code: str, what: str, fix: str, exit_code: Exit = Exit.CHECK_FAILED) -> Problem:
    return Problem(code, what=what, why="an executor that does not finish proves nothing", fix=fix, exit_code=exit_code)


def differences(bundle: Any, results: Any) -> list[Finding]:
    from kernel_lane.judge import compare

    return [
        Finding(
            "output_differs",
            "error",
            f"{d.name}: {d.differing} of {d.total} values differ, first at {d.first}, relative L2 {d.relative:.3g}",
            "the kernels computed something else than the reference arithmetic on the same inputs",
            "run `megamoe kernels check` to see which schedule and which access is behind it",
        )
        for d in compare(bundle, results)
    ]


def stopped(why: str) -> Finding:
    return Finding(
        "kernel_stopped",
        "error",
        f"the run stopped: {why}",
        "a deadlock or a spin past the limit is a hang on a GPU; a fault is a memory access violation",
        "look at the pc in `llvm-objdump -d` of the code object",
    )


def verdict(folder: Path, findings: list[Finding], how: str, data: dict[str, Any]) -> Outcome:
    bad = [f for f in findings if f.severity == "error"]
    if bad:
        return Outcome("fail", Exit.CHECK_FAILED, f"{folder}: {len(bad)} faults ({how})", findings, data)
    return Outcome("pass", Exit.PASS, f"{folder}: every expected bit is met ({how})", findings, data)
