"""One result shape for every verb: findings and data in, text or JSON and an exit code out.

Three layers: collect does I/O, judge is pure and returns an Outcome, this module renders it.
Contract: schema_version, command, status, exit_code, findings, data (README.md, "JSON output").
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

from megamoe_atom.problem import Exit, Problem, Reason

SCHEMA_VERSION = 1
Severity = Literal["info", "warn", "error"]
Status = Literal["pass", "warn", "fail", "refused", "invalid", "inconclusive", "error", "not_run"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a person should know. `code` is stable; host, file, line and quote are given where they apply."""

    code: str
    severity: Severity
    what: str
    why: str
    fix: str
    host: str | None = None
    file: str | None = None
    line: int | None = None
    quote: str | None = None

    @classmethod
    def from_reason(cls, reason: Reason, severity: Severity = "error") -> Finding:
        return cls(reason.code, severity, reason.what, reason.why, reason.fix)


@dataclass(slots=True)
class Outcome:
    """What a judge returns. `summary` is the first line a person reads; `text` is the verb's own body, if any."""

    status: Status
    exit_code: Exit
    summary: str
    findings: list[Finding] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""


def outcome_from(
    findings: list[Finding],
    *,
    summary_ok: str,
    summary_bad: str,
    bad_status: Status = "fail",
    bad_exit: Exit = Exit.CHECK_FAILED,
    data: dict[str, Any] | None = None,
    text: str = "",
) -> Outcome:
    """The usual verdict: any error finding is bad, warnings alone are `warn` (exit 0), else `pass`."""
    if any(f.severity == "error" for f in findings):
        return Outcome(bad_status, bad_exit, summary_bad, findings, data or {}, text)
    status: Status = "warn" if any(f.severity == "warn" for f in findings) else "pass"
    return Outcome(status, Exit.PASS, summary_ok, findings, data or {}, text)


def as_json(command: str, outcome: Outcome, *, ascii_only: bool = False) -> str:
    """The envelope as one JSON object, keys in a fixed order, absent locations left out."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "status": outcome.status,
        "exit_code": int(outcome.exit_code),
        "summary": outcome.summary,
        "findings": [{k: v for k, v in asdict(f).items() if v is not None} for f in outcome.findings],
        "data": outcome.data,
    }
    return json.dumps(body, indent=2, ensure_ascii=ascii_only, default=str)


# What could recolour, retitle or reorder a terminal: control characters, and those that turn the writing direction.
_UNSAFE = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"} | {
    c: f"\\u{c:04x}" for c in (0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def _printable(text: str, indent: int = 0) -> str:
    """Text of any origin (a file's name, a line of a log) as text that a terminal only prints.

    indent: columns before every further line, so that no value can look like a record of ours.
    """
    return text.translate(_UNSAFE).replace("\n", "\n" + " " * indent)


def as_text(outcome: Outcome) -> str:
    """Plain text, one record per finding; words, not colours, carry the status."""
    lines = [f"{outcome.status.upper()}: {_printable(outcome.summary, 2)}"]
    if outcome.text:
        lines += ["", _printable(outcome.text.rstrip())]
    for finding in sorted(outcome.findings, key=lambda f: ("error", "warn", "info").index(f.severity)):
        where = ":".join(str(p) for p in (finding.file, finding.line) if p is not None)
        place = _printable(" ".join(p for p in (finding.host, where) if p), 2)
        head = f"{finding.severity} {finding.code}" + (f" ({place})" if place else "")
        lines += ["", head, f"  what: {_printable(finding.what, 8)}"]
        if finding.quote is not None:
            lines.append(f"  line: {_printable(finding.quote, 8)}")
        lines += [f"  why:  {_printable(finding.why, 8)}", f"  fix:  {_printable(finding.fix, 8)}"]
    return "\n".join(lines)


def outcome_of_problem(problem: Problem) -> Outcome:
    """A Problem as an Outcome; exit 2 is `refused`, 5 is `invalid`, all else is `error`."""
    status: Status = {Exit.REFUSED: "refused", Exit.NO_EVIDENCE: "invalid", Exit.CHECK_FAILED: "fail"}.get(
        problem.exit_code, "error"
    )  # type: ignore[assignment]
    first = problem.reasons[0]
    return Outcome(status, problem.exit_code, first.what, [Finding.from_reason(r) for r in problem.reasons])


def run_verb(command: str, judge: Callable[[], Outcome], *, json_output: bool) -> NoReturn:
    """Runs a verb's work, prints its result on stdout and exits with its code. A bug of ours is exit 70, never 1."""
    try:
        outcome = judge()
    except Problem as problem:
        outcome = outcome_of_problem(problem)
    except KeyboardInterrupt:
        outcome = Outcome("error", Exit.INTERRUPTED, "interrupted")
    except Exception as error:  # the last line of defence: a person still gets the envelope
        if os.environ.get("MEGAMOE_DEBUG"):
            traceback.print_exc()
        outcome = Outcome(
            "error",
            Exit.OUR_BUG,
            f"bug in megamoe: {type(error).__name__}: {error}",
            [
                Finding(
                    "our_bug",
                    "error",
                    f"{type(error).__name__}: {error}",
                    "this is not your mistake",
                    "run again with MEGAMOE_DEBUG=1 and report the traceback",
                )
            ],
        )
    sys.exit(int(_print(command, outcome, json_output)))


def _print(command: str, outcome: Outcome, json_output: bool) -> Exit:
    """Prints the result in what standard output can carry; the exit code, which is 3 when nobody could be told.

    A reader that went away (`| head`) has seen what it wanted.
    """
    text = as_json(command, outcome) if json_output else as_text(outcome)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal of another character set, or half of a character in a file's name
        if json_output:
            text = as_json(command, outcome, ascii_only=True)
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would be tried again at exit, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return outcome.exit_code
        print(f"megamoe {command}: the result could not be written: {error.strerror}", file=sys.stderr)
        return Exit.UNREACHABLE
    return outcome.exit_code
