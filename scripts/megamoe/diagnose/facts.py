"""What facts around a log say: who answers on the port, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megamoe.diagnose.lines import time_of
from megamoe.diagnose.scan import Scan

SILENCE_S = 300  # seconds without a line; loading from a network can be as quiet, but keeps the GPUs idle


@dataclass(frozen=True, slots=True)
class Clue:
    id: str
    what: str


def section(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of the facts, {} when absent or of the wrong type."""
    value = facts.get(key)
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A finite number, None for anything else (booleans too)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def utilisation(facts: Mapping[str, Any]) -> dict[str, float]:
    """gpus[].util per GPU id, in percent; only what is a number."""
    rows = facts.get("gpus")
    return {str(row.get("id", place))[:20]: value for place, row in enumerate(rows if isinstance(rows, list) else [])
            if isinstance(row, dict) and (value := number(row.get("util"))) is not None}


def idle_gpus(facts: Mapping[str, Any]) -> list[str]:
    """GPUs without work while most others are fully busy: ranks that spin in a barrier keep theirs at 100 %."""
    load = utilisation(facts)
    idle = [gpu for gpu, value in load.items() if value < 10]
    busy = sum(value >= 90 for value in load.values())
    return idle if idle and busy > len(idle) else []


def is_garbage(text: str) -> str:
    """Why a completion is not text; "" when it may be."""
    body = text.strip()
    if not body.strip("\0"):
        return "empty" if not text.strip() else "only NUL characters"
    bad = sum(1 for c in body if not (c.isprintable() or c in "\n\t\r") or c == "\ufffd")
    if bad * 10 > len(body):
        return f"{bad} of {len(body)} characters are unprintable"
    if len(body) >= 8 and len(set(body.replace(" ", ""))) <= 3:
        return f"{len(body)} characters, only {len(set(body.replace(' ', '')))} different ones"
    words = body.split()
    if len(words) >= 8 and len(set(words)) <= 2:
        return f"{len(words)} words, only {len(set(words))} different ones"
    return ""


def _started(value: object) -> tuple[float | None, str]:
    if (seconds := number(value)) is not None:
        return seconds, "abs"
    if isinstance(value, str):
        time, clock, _ = time_of(value)
        return time, clock
    return None, ""


def fact_clues(facts: Mapping[str, Any], scan: Scan) -> list[Clue]:
    """Clues in order of weight."""
    out: list[Clue] = []
    models, probe, plan = (section(facts, k) for k in ("get_v1_models", "completion_probe", "plan"))
    served, ids = plan.get("served_name"), models.get("ids")
    holders = {k[5:]: v for k, v in facts.items() if k.startswith("port_") and isinstance(v, dict)}
    held = "; ".join(f"port {p[:8]} is held by " + ", ".join(f"{k} {v[k]}" for k in ("pid", "container", "started")
                                                           if v.get(k) is not None)[:200] for p, v in holders.items())
    held = f" ({held})" if held else ""
    if isinstance(served, str) and isinstance(ids, list) and ids:
        names = [str(i)[:200] for i in ids[:8]]
        if served.rstrip("/") not in {n.rstrip("/") for n in names}:
            out.append(Clue("READINESS_WRONG_SERVER",
                            f"the port serves {', '.join(names)}, the plan is {served[:200]}{held}"))
    wanted = plan.get("container")
    for port, holder in holders.items():
        owner = holder.get("container")
        if isinstance(wanted, str) and isinstance(owner, str) and wanted.strip("/") != owner.strip("/"):
            out.append(Clue("READINESS_WRONG_SERVER", f"port {port[:8]} belongs to container {owner[:80]}, "
                            f"the plan is {wanted[:80]}{held}"))
        time, clock = _started(holder.get("started"))
        if (time is not None and scan.first_time is not None and clock == scan.first_clock
                and time < scan.first_time - 60):
            out.append(Clue("READINESS_WRONG_SERVER", f"whoever holds port {port[:8]} started "
                            f"{scan.first_time - time:.0f} s before this log begins{held}"))
    load, quiet = utilisation(facts), number(facts.get("log_idle_s"))
    if load and min(load.values()) >= 95 and quiet is not None and quiet >= SILENCE_S and not scan.counts["READY"]:
        out.append(Clue("HANG", f"all {len(load)} GPUs are at 100 % and the log has not grown for {quiet:g} s before "
                        "the server became ready: the ranks spin in a barrier, nothing is being loaded"))
    text, status = probe.get("text"), number(probe.get("status"))
    if status is not None and status != 200:
        out.append(Clue("READINESS_FAILING", f"a completion was answered with status {status:g}"))
    elif isinstance(text, str) and (why := is_garbage(text)):
        out.append(Clue("READINESS_GARBAGE", f"the completion is not text: {why}"))
    if not out and (code := number(models.get("status"))) is not None and code >= 400:
        out.append(Clue("READINESS_FAILING", f"/v1/models was answered with status {code:g}"))
    return out
