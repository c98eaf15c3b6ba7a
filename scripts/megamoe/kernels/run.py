"""`megamoe kernels run`: executes a bundle, on the lane's own machine or through another executor."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, Severity, run_verb
from megamoe.kernels.child import run_child
from megamoe.kernels.options import BundleFolder, Json, ScheduleText


def command(
    bundle: BundleFolder,
    runner: Annotated[
        str | None, typer.Option("--runner", metavar="CMD", help="Another executor, called as CMD BUNDLE OUT.")
    ] = None,
    schedule: ScheduleText = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the results here.")] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Ranks do not wait for each other between launches.")
    ] = False,
    timeout_s: Annotated[int, typer.Option("--timeout-s", min=1, help="Give a runner so many seconds.")] = 600,
    json_output: Json = False,
) -> NoReturn:
    """Execute every launch of a bundle and compare the outputs with what it expects, bit for bit."""

    def work() -> Outcome:
        if runner is None:
            return own(bundle, schedule or "order", out, overlap=overlap)
        if schedule is not None or overlap:
            raise _refused(
                "runner_schedule",
                "--schedule and --overlap were given together with --runner",
                "they are the lane's own; another executor runs a bundle in its own order",
                "leave one of the two out",
            )
        return foreign(bundle, runner, out, timeout_s)

    run_verb("kernels run", work, json_output=json_output)


def _refused(code: str, what: str, why: str, fix: str) -> Problem:
    return Problem(code, what=what, why=why, fix=fix, exit_code=Exit.REFUSED)


def _fresh(out: Path, names: list[str]) -> None:
    """Makes the folder for results, and refuses results that are there already: they would pass for this run's."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(
            "out_folder", f"{out} cannot be made: {error}", "results are kept there", "name another folder with --out"
        ) from error
    old = [name for name in names if (out / f"{name}.bin").exists()]
    if old:
        raise _refused(
            "out_exists",
            f"{out} already holds {old[0]}.bin",
            "a result of another run would be taken for one of this run",
            "remove it, or name another folder with --out",
        )


def own(folder: Path, schedule: str, out: Path | None, *, overlap: bool = False) -> Outcome:
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import Executor, expectations, write_results
    from kernel_lane.judge import FAULTS, MEANINGS, place
    from kernel_lane.machine.schedule import Schedule

    parsed = Schedule.parse(schedule)
    bundle = Bundle.read(folder)
    if out is not None:
        _fresh(out, [e["name"] for e in expectations(bundle)])
    run = Executor(bundle).run(parsed, overlap=overlap)
    if out is not None:
        write_results(run, out)
    findings = differences(bundle, run.results)
    if run.stop:
        findings.insert(0, stopped(run.stop))
    for f in run.findings:
        severity: Severity = "error" if f.kind in FAULTS else "info"
        told = MEANINGS[f.kind]
        findings.append(Finding(f.kind, severity, place(f), told.why, told.fix))
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
    from kernel_lane.execute import expectations, read_results

    try:
        program = shlex.split(runner)
    except ValueError as error:
        what = f"--runner {runner!r} is no command: {error}"
        raise _refused("runner_missing", what, _UNPROVEN, "quote it as a shell would need it") from error
    if not program:
        raise _refused("runner_missing", "--runner names no program", _UNPROVEN, "name an executable")
    bundle = Bundle.read(folder)
    with tempfile.TemporaryDirectory(prefix="megamoe-run-") as scratch:
        results = out or Path(scratch)
        _fresh(results, [e["name"] for e in expectations(bundle)])
        try:
            done = run_child([*program, str(folder.resolve()), str(results.resolve())], timeout_s)
        except OSError as error:
            raise _refused(
                "runner_missing", f"{program[0]} cannot be started: {error}", _UNPROVEN, "name an executable"
            ) from error
        if done.code is None:
            raise _runner(
                "runner_timeout",
                f"{program[0]} did not end within {timeout_s} s",
                "raise --timeout-s, or look for a hang",
            )
        if done.code:
            raise _runner(
                "runner_failed",
                f"{program[0]} ended with exit code {done.code}: {done.err.strip()[-800:] or 'no message'}",
                "see its own messages",
            )
        bundle.check_files()  # a runner that changes what it is compared with proves nothing
        found = differences(bundle, read_results(bundle, results))
    return verdict(folder, found, f"executed by {runner}", {"runner": runner})


_UNPROVEN = "an executor that does not finish proves nothing"


def _runner(code: str, what: str, fix: str) -> Problem:
    return Problem(code, what=what, why=_UNPROVEN, fix=fix, exit_code=Exit.CHECK_FAILED)


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
