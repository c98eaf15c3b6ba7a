"""The one error type of the recipe, shared by the adapter (which has no other dependency) and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Stable process exit codes. Source: shared/design.md section 5 (documented in README.md)."""

    PASS = 0
    CHECK_FAILED = 1
    REFUSED = 2
    UNREACHABLE = 3
    PRECONDITION = 4
    NO_EVIDENCE = 5
    OUR_BUG = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why something may not run: what happened (with values), why it matters, what to do next."""

    code: str
    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} [{self.code}]\n  why: {self.why}\n  fix: {self.fix}"


class Problem(Exception):
    """A person's mistake or a precondition that does not hold; carries one or more reasons and an exit code.

    Problems never show a traceback: the CLI renders the reasons, the adapter raises it at start-up.
    """

    def __init__(
        self,
        code: str,
        *,
        what: str,
        why: str,
        fix: str,
        exit_code: Exit = Exit.REFUSED,
        more: tuple[Reason, ...] = (),
    ) -> None:
        self.reasons: tuple[Reason, ...] = (Reason(code, what, why, fix), *more)
        self.exit_code = exit_code
        super().__init__("\n".join(str(r) for r in self.reasons))

    @property
    def code(self) -> str:
        return self.reasons[0].code

    @classmethod
    def of(cls, reasons: list[Reason], *, exit_code: Exit = Exit.REFUSED) -> Problem:
        """A problem from a non-empty list of reasons: all are shown, the first names the code."""
        first, *rest = reasons
        return cls(first.code, what=first.what, why=first.why, fix=first.fix, exit_code=exit_code, more=tuple(rest))
