"""`megamoe kernels check`: a bundle linted, then under hostile schedules with every check of memory and order on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from megamoe_atom.problem import Exit

from megamoe.envelope import Finding, Outcome, run_verb
from megamoe.kernels.options import BundleFolder, Json
from megamoe.kernels.run import differences, verdict

DEFAULT = "order,random,frozen,late,slow"


def command(
    bundle: BundleFolder,
    schedules: Annotated[str, typer.Option("--schedules", help="Comma-separated; each NAME[:MODEL].")] = DEFAULT,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per schedule that has any.")] = 3,
    result: Annotated[
        Path | None,
        typer.Option("--result", metavar="DIR", help="Only compare what a runner wrote here; execute nothing."),
    ] = None,
    json_output: Json = False,
) -> NoReturn:
    """Lint the kernels; look for races, early reads, accesses out of bounds, outputs that depend on the schedule."""
    run_verb(
        "kernels check",
        lambda: compare_only(bundle, result) if result else check(bundle, schedules, seeds),
        json_output=json_output,
    )


def compare_only(folder: Path, result: Path) -> Outcome:
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import read_results

    bundle = Bundle.read(folder)
    return verdict(folder, differences(bundle, read_results(bundle, result)), f"results of {result}", {})


def check(folder: Path, schedules: str, seeds: int) -> Outcome:
    """The linter's rules, then every schedule and seed; a finding that several show is told once, with their names.

    A fault that the linter reads in the code is a fault here too, whether or not one of the schedules brought it out.
    """
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import Executor
    from kernel_lane.hostile import examine
    from kernel_lane.machine.schedule import Schedule

    from megamoe.kernels.lint import collect, judge
    from megamoe.kernels.lint_fit import FULL_CU_COUNT

    plan = [Schedule.parse(word.strip()) for word in schedules.split(",")]
    bundle = Bundle.read(folder)
    linted = judge(collect([folder]), cu_count=int(bundle.case.get("cu", FULL_CU_COUNT)))
    report = examine(Executor(bundle), plan, seeds)
    findings = [
        *linted.findings,
        *(Finding(v.code, "error" if v.fault else "info", v.what, v.why, v.fix) for v in report.verdicts),
    ]
    data: dict[str, Any] = {
        "kernels": linted.data["kernels"],
        "runs": report.runs,
        "instructions": report.instructions,
        "seconds": round(report.seconds, 2),
    }
    bad = sum(f.severity == "error" for f in findings)
    summary = f"{folder}: {len(report.runs)} runs, {sum(r['exact'] for r in report.runs)} exact, {bad} faults"
    if bad:
        return Outcome("fail", Exit.CHECK_FAILED, summary, findings, data)
    return Outcome("pass", Exit.PASS, summary, findings, data)
