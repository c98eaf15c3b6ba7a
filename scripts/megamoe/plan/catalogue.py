"""What a finding's code means and where it comes from, for `plan --explain CODE`."""

from __future__ import annotations

import tomllib

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome
from megamoe.resources import resource


def codes() -> dict[str, dict[str, str]]:
    """code -> {meaning, source}."""
    text = (resource("docker/profiles") / "codes" / "plan.toml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, str]] = tomllib.loads(text)
    return loaded


def explain(code: str) -> Outcome:
    """The entry of one code, in any letter case.

    Raises:
        Problem: no such code (offers the nearest).
    """
    from difflib import get_close_matches

    known = codes()
    asked, code = code, code.strip().lower().replace("-", "_")
    if code not in known:
        near = get_close_matches(code, list(known), n=1)
        raise Problem(
            "code_unknown",
            what=f"no finding of `plan` has the code {asked[:80]!r}",
            why="codes are stable names",
            fix=f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}",
        )
    entry = known[code]
    return Outcome(
        "pass",
        Exit.PASS,
        f"{code}: {entry['meaning']}",
        data={"code": code, **entry},
        text=f"source: {entry['source']}",
    )
