"""`megamoe status`: the evidence that the adapter writes while it serves, rank by rank."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from megamoe_atom.kernel_edits import PROOF
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def status(
    directory: Annotated[str | None, typer.Argument(help="Evidence folder (default: MEGAMOE_STATUS_DIR).")] = None,
    command: Annotated[str | None, typer.Option(help="Command that prints the evidence instead.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Evidence of the running adapter, rank by rank."""

    def work() -> Outcome:
        from megamoe.status.read import judge_evidence, read_status

        folder = directory or (None if command else os.environ.get("MEGAMOE_STATUS_DIR"))
        if not folder and not command:
            raise Problem(
                "status_source",
                what="no evidence folder was named",
                why="there is nothing to read",
                fix="pass the folder, or set MEGAMOE_STATUS_DIR",
            )
        ranks = read_status(folder, command)
        against = judge_evidence(ranks)
        rows = [f"{'rank':>4} {'pid':>8} {'layers':>6} {'launches':>12} {'epoch':>7}  self-test"]
        rows += [
            f"{e.rank:>4} {e.pid:>8} {len(e.layers_converted):>6} {e.launches:>12} {e.epoch_share:>7.2%}  "
            f"{e.selftest_state}"
            for e in ranks
        ]
        edits = sorted({edit for e in ranks for edit in e.kernel_edits})
        if edits:
            rows += ["", f"edits of the kernels ({PROOF}): {', '.join(edits)}"]
        proof = PROOF if edits else ""
        data = {"ranks": [e.as_dict() for e in ranks], "kernel_edits": edits, "kernel_edits_proof": proof}
        findings = [
            Finding(
                "FUSED_NOT_PROVEN",
                "error",
                a,
                "the fused path is called active only on evidence",
                "read the engine's log of that rank",
            )
            for a in against
        ]
        if against:
            return Outcome(
                "invalid",
                Exit.NO_EVIDENCE,
                f"the fused path is not proven: {against[0]}",
                findings,
                data,
                "\n".join(rows),
            )
        from megamoe.image import kernels

        summary = f"the fused path ran on all {len(ranks)} ranks"
        # A folder given by name may be another container's, and its cache is not here.
        if directory is None and command is None and (compiled := kernels.counts(os.environ)) is not None:
            data["kernels"] = compiled
            if findings := kernels.findings(compiled):
                return Outcome("warn", Exit.PASS, summary, findings, data, "\n".join(rows))
        return Outcome("pass", Exit.PASS, summary, [], data, "\n".join(rows))

    run_verb("status", work, json_output=json_output)
