"""A saved result of `megamoe kernels verify --json` as evidence for preflight: what it proves, for which kernels."""

from __future__ import annotations

from typing import Any

from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import SCHEMA_VERSION, Finding

COMMAND = "kernels verify"


def judge_saved(body: Any, name: str, wanted: frozenset[str]) -> tuple[list[Finding], dict[str, Any]]:
    """Findings against the evidence, and what it says in short.

    Args:
        body: the parsed JSON. name: its file, for messages. wanted: the edits that the launch asks for.
    Raises:
        Problem: kernels_evidence (exit 5), this is no result of that verb.
    """
    if not isinstance(body, dict) or body.get("command") != COMMAND or body.get("schema_version") != SCHEMA_VERSION:
        raise Problem(
            "kernels_evidence",
            what=f"{name} is no result of `megamoe {COMMAND} --json` (schema {SCHEMA_VERSION})",
            why="another file proves nothing about this node's kernels",
            fix=f"run `megamoe {COMMAND} --json > FILE` on the node, in the image that will serve",
            exit_code=Exit.NO_EVIDENCE,
        )
    given = body.get("data")
    data: dict[str, Any] = given if isinstance(given, dict) else {}
    findings: list[Finding] = []

    def against(code: str, what: str, why: str, fix: str) -> None:
        findings.append(Finding(code, "error", what, why, fix, file=name))

    rerun = f"run `megamoe {COMMAND} --json` again, in the image and with the settings that will serve"
    if body.get("status") not in ("pass", "warn"):
        said = body.get("findings")
        first = next((str(f.get("what")) for f in said if isinstance(f, dict)), "") if isinstance(said, list) else ""
        against(
            "KERNELS_NOT_VERIFIED",
            f"its status is {body.get('status')!r}: {body.get('summary')}" + (f" ({first})" if first else ""),
            "kernels that are wrong, unsteady or untried on this node must not serve",
            "read its findings; do not serve with MegaMoE on this node until they are gone",
        )
        return findings, {}
    commit, edits = data.get("flydsl_commit"), data.get("kernel_edits")
    if commit != kernel_edits.pinned().commit:
        against(
            "KERNELS_OTHER_COMMIT",
            f"it is of FlyDSL {commit}, pinned is {kernel_edits.pinned().commit}",
            "other kernels were tried than will serve",
            rerun,
        )
    if not isinstance(edits, list) or frozenset(map(str, edits)) != wanted:
        against(
            "KERNELS_OTHER_EDITS",
            f"its kernels carry {', '.join(map(str, edits or [])) or 'no edits'}, this launch asks for "
            f"{', '.join(sorted(wanted)) or 'none'}",
            "other kernels were tried than will serve",
            rerun,
        )
    listed = data.get("cases")
    cases: list[Any] = listed if isinstance(listed, list) else []
    if not cases:
        against(
            "KERNELS_NOT_VERIFIED",
            f"its status is {body.get('status')!r}, and it lists no case that was run",
            "nothing was compared, so nothing is known about this node's kernels",
            rerun,
        )
    short = {
        "ranks": data.get("ranks"),
        "gpu": data.get("gpu"),
        "bit_equal_cases": sum(bool(c.get("bit_equal")) for c in cases if isinstance(c, dict)),
        "cases": len(cases),
    }
    return findings, short
