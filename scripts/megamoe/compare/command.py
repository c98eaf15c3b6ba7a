"""`megamoe compare A B`: two evaluations of the same questions, flips shown."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, Status, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="Run folder or samples JSONL of the earlier or known-good side.")],
    after: Annotated[str, typer.Argument(help="Run folder or samples JSONL of the side that is judged.")],
    policy: Annotated[str, typer.Option(help="Policy whose metric and paired test apply.")] = "v4-pro-fused",
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Compare two evaluations question by question."""

    def work() -> Outcome:
        from megamoe.gate.paired import judge_pair
        from megamoe.gate.policy import load_policy
        from megamoe.gate.samples import answer_of

        rules = load_policy(policy)
        a, b = _evidence(before), _evidence(after)
        data: dict[str, Any] = {"before": before, "after": after}
        verdict, faults, notes = judge_pair(rules, b, a, data)
        if faults:
            return Outcome(
                "invalid",
                Exit.NO_EVIDENCE,
                f"cannot be compared: {faults[0].what}",
                [Finding.from_reason(r) for r in faults],
                data,
            )
        paired = data["paired"]
        texts = {
            (side, r.get("doc_id")): str(answer_of(r))
            for side, rows in (("a", a.samples), ("b", b.samples))
            for r in rows or []
            if r.get("filter", rules.filter_name) == rules.filter_name
        }
        lines = [
            f"score {paired['baseline_score']:.4f} -> {paired['baseline_score'] - paired['loss']:.4f} on {paired['n']} "
            f"questions: {paired['lost']} lost, {paired['gained']} gained"
        ]
        for word, ids in (("lost", paired["lost_doc_ids"]), ("gained", paired["gained_doc_ids"])):
            lines += [
                f"{word} {d}: {texts[('a', d)].strip()[-60:]!r} -> {texts[('b', d)].strip()[-60:]!r}" for d in ids[:10]
            ]
        status: Status = "pass" if verdict == "PASS" else "fail" if verdict == "FAIL" else "inconclusive"
        return Outcome(
            status,
            Exit.PASS if verdict == "PASS" else Exit.CHECK_FAILED,
            notes[-1].what,
            notes,
            data,
            "\n".join(lines),
        )

    run_verb("compare", work, json_output=json_output)


def _evidence(source: str) -> Any:
    from megamoe.gate.evidence import load_run

    evidence = load_run(source)
    if evidence.samples is None:
        reason = evidence.faults[0].what if evidence.faults else f"{source} holds no samples*.jsonl"
        raise Problem(
            "samples_missing",
            what=reason,
            why="questions are compared one by one",
            fix="give a finished run folder or a samples file",
            exit_code=Exit.NO_EVIDENCE,
        )
    return evidence
