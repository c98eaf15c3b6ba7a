"""A verdict as findings: the first cause, its victims, what else is in the logs. Pure."""

from __future__ import annotations

import re
from typing import Any

from megamoe_atom.problem import Exit

from megamoe.diagnose.catalogue import Advice, advice
from megamoe.diagnose.facts import utilisation
from megamoe.diagnose.order import quote
from megamoe.diagnose.scan import Event, Scan
from megamoe.diagnose.verdict import TOGETHER, Judge, Verdict
from megamoe.envelope import Finding, Outcome
from megamoe.text_input import display_name

_EXCEPTION_TAIL = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Fault|"
                             r"Failure)\b.*$")


def _finding(verdict: Verdict, text: Advice) -> Finding:
    event = verdict.event
    what = verdict.what or text.what
    if verdict.id in ("RANK_DIED_FIRST", "UNCAUGHT_EXCEPTION") and event is not None:
        shown = _EXCEPTION_TAIL.search(event.text)
        what += f": {shown[0][:200]}" if shown else ""
    if event is not None and event.rank is not None and verdict.id not in TOGETHER:
        what = f"rank {event.rank}: {what}"
    return Finding(verdict.id, "error", what, text.why, verdict.fix or text.fix,
                   file=display_name(event.file) if event else None, line=event.line if event else None,
                   quote=quote(event) if event else None)


def judge(scan: Scan, facts: dict[str, Any]) -> Outcome:
    """One class for the logs and facts given."""
    work = Judge(scan, facts)
    verdict = work.verdict()
    data: dict[str, Any] = {"class": verdict.id if verdict else "NONE", "files": [display_name(f) for f in scan.files],
                            "lines": scan.lines, "bytes": scan.bytes, "first_cause": None, "victims": []}
    if verdict is None:
        return _nothing(work, data)
    finding = _finding(verdict, advice()[verdict.id])
    findings, text = [finding, *map(_other, work.others(verdict)), *_cut(work.scan)], ""
    event = verdict.event
    if event is not None:
        data["first_cause"] = {"file": display_name(event.file), "line": event.line, "quote": quote(event),
                               "rank": event.rank, "time": event.time}
        victims = [v for v in work.kind("victim") if v is not event and work.before(event, v)]
        per_rank: dict[int | None, Event] = {}
        for victim in victims:
            per_rank.setdefault(victim.rank, victim)
        data["victims"] = [{"file": display_name(v.file), "line": v.line, "rank": r} for r, v in per_rank.items()]
        ranks = sorted(r for r in per_rank if r is not None and r != event.rank)
        several = len(ranks) > 1
        if verdict.id in TOGETHER:
            text = f"{len(per_rank)} more report{'s' if len(per_rank) > 1 else ''} of the same wait." if victims else ""
        elif ranks and event.rank is not None:
            text = (f"Rank {event.rank} failed first; rank{'s' if several else ''} {', '.join(map(str, ranks))} "
                    f"{'are victims' if several else 'is a victim'}: what {'they' if several else 'it'} logged later "
                    "is a consequence, not a cause.")
        elif victims:
            text = f"{len(victims)} later line{'s are consequences' if len(victims) > 1 else ' is a consequence'} " \
                   "(victims), not causes."
        if text:
            data["note"] = text
    where = f" at {display_name(event.file)}:{event.line}" if event else " (from facts)"
    return Outcome("fail", Exit.CHECK_FAILED, f"{verdict.id}{where}: {finding.what}", findings, data, text)


def _other(verdict: Verdict) -> Finding:
    """A further fault, without its line: the quoted line is the one to look at."""
    event = verdict.event
    assert event is not None
    return Finding(verdict.id, "warn", "another fault is in the log beside the first",
                   "it may follow from the first, or be what the next start will meet",
                   "mend the first, then run this again on the new log", file=display_name(event.file), line=event.line)


def _cut(scan: Scan) -> list[Finding]:
    return [Finding("LOG_CUT", "warn", f"{display_name(name)} is an archive that is cut or damaged",
                    "what came later, where a fault would stand, was not read",
                    "copy it again, or give the log itself", file=display_name(name)) for name in scan.cut]


def _nothing(work: Judge, data: dict[str, Any]) -> Outcome:
    if not work.scan.said and not work.facts:
        return Outcome("invalid", Exit.NO_EVIDENCE, "the log is empty: nothing can be said", [
            Finding("LOG_EMPTY", "error", "no word in any of the logs", "an empty log is no evidence of health",
                    "give the engine's own log, for example `docker logs NAME >engine.log 2>&1`")], data)
    if len(work.scan.not_text) == len(work.scan.files) > 0 and not work.events:
        named = ", ".join(display_name(name) for name in work.scan.not_text[:3])
        return Outcome("invalid", Exit.NO_EVIDENCE, f"{named}: not text, so nothing can be said", [
            Finding("LOG_NOT_TEXT", "error", f"{named} is full of control characters", "no word of an engine could be "
                    "found in it, whatever happened",
                    "give the log as text in UTF-8 or UTF-16, or packed as .gz, .bz2 or .xz")], data)
    findings = _cut(work.scan)
    for event in [*work.kind("warn"), *(v for v in work.kind("victim") if v not in work.ends)]:
        assert event.rule is not None
        if event.rule.id not in {f.code for f in findings}:
            findings.append(Finding(event.rule.id, "warn", event.rule.what, event.rule.why, event.rule.fix,
                                    file=display_name(event.file), line=event.line, quote=quote(event)))
    findings += work.capacity()
    for event in work.events:
        if (event.rule and event.rule.kind == "cause" and (event.file, event.line + 1) not in work.ignored
                and event.rule.id not in {f.code for f in findings}):
            findings.append(Finding(event.rule.id, "warn", f"{event.rule.what}; the server got over it",
                                    "it went on to serve, so this is not what stops it", event.rule.fix,
                                    file=display_name(event.file), line=event.line, quote=quote(event)))
        if event.rule is None and work.recovered(event) and "EXCEPTION_SURVIVED" not in {f.code for f in findings}:
            findings.append(Finding("EXCEPTION_SURVIVED", "warn", "an exception that the server got over",
                                    "it went on to serve, so this is not what stops it", "read the stack above it",
                                    file=display_name(event.file), line=event.line, quote=quote(event)))
    if not work.ready:
        load = utilisation(work.facts)
        if load and min(load.values()) >= 95:
            findings.append(Finding("GPUS_BUSY_NOT_READY", "warn", f"all {len(load)} GPUs are at 100 % and the server "
                                    "is not ready", "ranks that wait for each other in a barrier look like this; "
                                    "loading does not keep GPUs busy", "look again in five minutes: when the log has "
                                    "not grown it is a hang (give log_idle_s in --facts)"))
        findings.append(Finding("READY_NOT_SEEN", "info", "no line says that the server became ready",
                                "the log may be cut, or the start is not over", "wait, or give the whole log"))
    status = "warn" if any(f.severity == "warn" for f in findings) else "pass"
    return Outcome(status, Exit.PASS, f"no fault found in {work.scan.lines} lines"  # type: ignore[arg-type]
                   + (f"; {len(findings)} thing(s) to know" if findings else ""), findings, data)


