"""Two sides of a comparison: evidence from disk or asked now, then one paired verdict with its flips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, Status
from megamoe.gate.evidence import Evidence, load_run
from megamoe.gate.paired import judge_pair
from megamoe.gate.policy import Policy, load_policy
from megamoe.gate.samples import answer_of

SHOWN = 20  # flips of each kind whose answers are shown


def compare_sides(
    before: str, after: str, policy: str, dataset: str | None, out: str, given: dict[str, Any]
) -> Outcome:
    """PASS, FAIL, INCONCLUSIVE or INVALID of `after` against `before`.

    given: options of `megamoe gsm8k` for a side that is an address.

    Raises:
        Problem: a side cannot be read or asked; a side has no samples (exit 5).
    """
    rules = load_policy(policy)
    a = _side(before, "before", policy, dataset, out, given)
    b = _side(after, "after", policy, dataset, out, given)
    data: dict[str, Any] = {"verdict": "INVALID", "before": before, "after": after}
    verdict, faults, notes = judge_pair(rules, b, a, data)
    if faults:
        findings = [Finding.from_reason(r) for r in faults]
        return Outcome("invalid", Exit.NO_EVIDENCE, f"cannot be compared: {faults[0].what}", findings, data)
    data["verdict"] = verdict
    paired = data["paired"]
    data["flips"] = _flips(rules, paired, a, b)
    lines = [
        f"score {paired['baseline_score']:.4f} -> {paired['baseline_score'] - paired['loss']:.4f} on {paired['n']} "
        f"questions: {paired['lost']} lost, {paired['gained']} gained"
    ]
    lines += [f"{f['flip']} {f['doc_id']}: {f['before']!r} -> {f['after']!r}" for f in data["flips"]]
    status: Status = "pass" if verdict == "PASS" else "fail" if verdict == "FAIL" else "inconclusive"
    if status == "pass" and any(f.severity == "warn" for f in notes):
        status = "warn"
    code = Exit.PASS if verdict == "PASS" else Exit.CHECK_FAILED
    return Outcome(status, code, notes[-1].what, notes, data, "\n".join(lines))


def _side(source: str, name: str, policy: str, dataset: str | None, out: str, given: dict[str, Any]) -> Evidence:
    if source.startswith(("http://", "https://")):
        source = _asked(source, name, policy, dataset, out, given)
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


def _asked(url: str, name: str, policy: str, dataset: str | None, out: str, given: dict[str, Any]) -> str:
    """Asks a server all questions now; no early stop, since a comparison needs every answer."""
    if dataset is None:
        raise Problem(
            "dataset_missing",
            what=f"{url} is to be asked, and no --dataset names the questions",
            why="both sides answer the same questions",
            fix="give --dataset FILE, or the folder of a finished run in place of the address",
        )
    from megamoe.gsm8k.run import Request, run_gsm8k

    folder = str(Path(out) / name)
    run_gsm8k(Request(url, dataset, folder, policy, early_stop=False, further=True, fresh=True, **given))
    return folder


def _flips(rules: Policy, paired: dict[str, Any], a: Evidence, b: Evidence) -> list[dict[str, Any]]:
    """The first flips of each kind with the end of both answers, where the number stands."""

    def texts(side: Evidence) -> dict[Any, str]:
        return {
            r.get("doc_id"): str(answer_of(r)).strip()[-80:]
            for r in side.samples or []
            if r.get("filter", rules.filter_name) == rules.filter_name
        }

    before, after = texts(a), texts(b)
    return [
        {"flip": word, "doc_id": d, "before": before[d], "after": after[d]}
        for word in ("lost", "gained")
        for d in paired[f"{word}_doc_ids"][:SHOWN]
    ]
