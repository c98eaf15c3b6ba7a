"""Events and facts to one class and the event that it rests on. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from megamoe_atom.limits import V4_PRO, megamoe_heap_bytes

from megamoe.diagnose.capacity import kv_findings
from megamoe.diagnose.catalogue import advice
from megamoe.diagnose.facts import Clue, fact_clues, idle_gpus, number, section
from megamoe.diagnose.order import in_order, scale_of
from megamoe.diagnose.scan import Event, Scan
from megamoe.envelope import Finding

HEAP_NEED_BYTES = megamoe_heap_bytes(V4_PRO)  # the largest validated geometry: DeepSeek-V4-Pro, 8192 tokens per rank
ABSURD_FACTOR = 3  # a single request above this multiple of the whole need is a wrong geometry (ROCm/ATOM#1666)
LOCK_REPEATS, LOCK_SECONDS = 5, 300.0
NEAR_LINES = 200  # a specific fault this close after a generic exception of the same rank belongs to the same stack

_REQUEST = re.compile(r"(?:request\w*|allocat\w*|ask\w*|need\w*|size|for|of)\D{0,16}?([0-9][0-9,_]*(?:\.\d+)?)\s*"
                      r"(bytes|[KMGT]i?B|[KMGT]|B)?\b", re.I)
_UNIT = {"": 1, "b": 1, "bytes": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
CACHE_FRAMES = 60  # lines between a stack frame in a compile cache and the exception that ends that stack
# They say that somebody else ended, so any other victim says more.
CONSEQUENCES = ("PEER_GONE", "CLIENT_RETRYING", "SERVER_NOT_ANSWERING")
TOGETHER = ("HANG", "COLLECTIVE_AUTOTUNE", "RANK_DIVERGENCE", "AITER_LOCK", "IOMMU_NOT_PT")  # of all ranks alike

DEEPEST = ("GPU_HARDWARE", "PCIE_FATAL", "HOST_OOM_KILLED")  # no program's failure causes them: the rest followed
OTHERS = 3  # further faults that are named

_QUIET = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\[W\d{3,4} |\[(?:info|warning|debug)\]|\bWarning:")
_GRAVE = re.compile(r"\b(?:CRITICAL|FATAL)\b|\[critical\]|^panic: |^fatal: \[")
_ASKED = re.compile(r"received (?:signal )?(?:SIGTERM|SIGINT|15\b|2\b)|SIGTERM received|KeyboardInterrupt|"
                    r"\bsignal=(?:15|2)\b", re.I)
_ORDINARY_END = re.compile(r"CancelledError|SystemExit|EOFError|BrokenPipe|Connection(?:Reset|Aborted)|SIGTERM|"
                           r"exit ?(?:code|status)?[ :=]{0,2}(?:-15|-2|143|130)\b|cannot schedule new futures", re.I)
_ANSWER = re.compile(r"/(?:v1/|generate)")
_TIMEOUT = re.compile(r"\bTimeoutError\b")
_DIED_RANK = re.compile(r"\(rank[ _]?(\d{1,4})\)|\brank[ _]?(\d{1,4}) (?:died|crashed|has died|is dead)", re.I)
_STATUS = re.compile(r"\b(5\d\d)\b(?!.*\b5\d\d\b)")
_CHOICE = re.compile(r"(?:instance|capacity|bucket|mtpr)\S{0,3}[ =:]+(\d+)", re.I)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class, the event it rests on (None: facts only), and words that replace the catalogue's."""

    id: str
    event: Event | None
    what: str = ""
    fix: str = ""


def requested_bytes(text: str) -> int | None:
    """The byte count that an allocation message asks for; None when it names none."""
    best: int | None = None
    for found in _REQUEST.finditer(text):
        unit = (found[2] or "").lower()
        factor = _UNIT.get(unit, _UNIT.get(unit[:1], 1))
        try:
            value = int(float(found[1].replace(",", "").replace("_", "")) * factor)
        except (ValueError, OverflowError):
            continue
        if found[1].startswith("0x") or value < 1024:
            continue
        best = value if best is None else max(best, value)
    return best


class Judge:
    def __init__(self, scan: Scan, facts: dict[str, Any]) -> None:
        self.scan, self.facts = scan, facts
        self.events = in_order(scan.events)
        self.place = {id(e): i for i, e in enumerate(self.events)}
        self.ready = [e for e in self.events if e.rule and e.rule.id == "READY"]
        self.ignored = {(e.file, e.line) for e in self.events if e.rule and e.rule.id == "IGNORED_BY_ANSIBLE"}
        self.ends = self.fatal_victims()

    def before(self, a: Event, b: Event) -> bool:
        return self.place[id(a)] < self.place[id(b)]

    def of(self, name: str) -> list[Event]:
        return [e for e in self.events if e.rule and e.rule.id == name]

    def kind(self, kind: str) -> list[Event]:
        return [e for e in self.events if e.rule and e.rule.kind == kind]

    # -- causes -------------------------------------------------------------------------------------------------
    def served_after(self, event: Event) -> bool:
        """True when the server became ready, or answered, after the event."""
        return any(self.before(event, r) for r in self.ready) or (
            (last := self.scan.last.get("READY")) is not None and last.file == event.file and last.line > event.line)

    def fatal_victims(self) -> list[Event]:
        """Victims less those of a peer or client that went away while the server served on."""
        ends = [v for v in self.kind("victim") if v.rule and not v.rule.recovers]
        return [v for v in self.kind("victim") if v.rule and not (
            v.rule.recovers and (self.served_after(v) or self.mentioned(v))
            and not any(self.before(v, e) for e in ends))]

    def mentioned(self, event: Event) -> bool:
        """True when a server that serves mentions it on a line that it calls no error."""
        return bool(_QUIET.search(event.text[:160])) and any(r.file == event.file and self.before(r, event)
                                                             for r in self.ready)

    def recovered(self, event: Event) -> bool:
        """True when the engine went on: ready after it, and no process was reported dead in between or later."""
        return self.served_after(event) and not any(self.before(event, v) for v in self.ends)

    def stopped(self, event: Event) -> bool:
        """True after a stop that somebody asked for, until the next start: processes that are told to end complain.

        "Shutting down" alone is also what a server says whose engine has died, and the engine's words may reach the
        log late; after it only the words of an ordinary end are excused.
        """
        stops = [m for m in self.of("STOPPING") if m.file == event.file and self.before(m, event)]
        started = [m for m in self.of("LOADING") + self.ready if m.file == event.file and self.before(m, event)]
        stops = [m for m in stops if not any(self.before(m, s) for s in started)]
        if not stops or (event.rule and event.rule.id in ("HANG", "GPU_MEMORY_FAULT")):
            return False
        return any(_ASKED.search(m.text) for m in stops) or bool(_ORDINARY_END.search(event.text))

    def counts_as_cause(self, event: Event) -> bool:
        if event.rule is None:
            # What a C++ watchdog throws after it has said why.
            thrown = "terminate called" in event.text and any(v.file == event.file and self.before(v, event)
                                                              for v in self.ends)
            return not (thrown or self.recovered(event) or self.stopped(event))
        if event.rule.kind != "cause" or (event.file, event.line + 1) in self.ignored:
            return False
        if event.rule.request and any(r.file == event.file and self.before(r, event) for r in self.ready):
            return False
        return not (event.rule.recovers and (self.recovered(event) or self.stopped(event)))

    def causes(self) -> list[Event]:
        out = [e for e in self.events if self.counts_as_cause(e)]
        hard = [e for e in out if not (e.rule and e.rule.soft and _QUIET.search(e.text[:160]))]
        return hard or out

    def first_cause(self) -> Verdict | None:
        causes = in_order(self.causes())
        if not causes:
            return None
        first = causes[0]
        if not scale_of(causes):  # files whose clocks say nothing of each other, such as dmesg's seconds since boot
            first = next((c for c in causes if c.rule and c.rule.id in DEEPEST), first)
        if first.rule is None:
            near = [c for c in causes if c.rule and c.rank == first.rank and c.file == first.file and
                    0 < c.line - first.line <= NEAR_LINES]
            if near:
                return self.refined(near[0])
            if _TIMEOUT.search(first.text) and (waits := [v for v in self.of("HANG") if v.file == first.file and
                                                          0 <= v.line - first.line <= NEAR_LINES]):
                return self.hang(waits[0])
            frames = [f for f in self.of("STACK_IN_CACHE") if f.file == first.file and
                      0 < first.line - f.line <= CACHE_FRAMES]
            if frames and re.search(r"\b(?:Name|Attribute|Type|Import|Key)Error\b", first.text):
                return Verdict("STALE_COMPILE_CACHE", first)
            others = [v for v in self.kind("victim") if v.rank != first.rank and (
                self.before(first, v) or first.time is None)]  # without times the order is that of buffers
            return Verdict("RANK_DIED_FIRST" if others else "UNCAUGHT_EXCEPTION", first)
        return self.refined(first)

    def others(self, found: Verdict) -> list[Verdict]:
        """Further faults, later than the first: one of each other class, and the first exception of a later start."""
        out: dict[str, Verdict] = {}
        causes = in_order(self.causes())
        told = bool(scale_of(causes))
        for event in causes:
            if event is found.event or (found.event is not None and self.before(event, found.event)
                                        and (told or event.file == found.event.file)):
                continue
            if event.rule is None:
                if found.event is None or not any(self.before(found.event, m) and self.before(m, event)
                                                  for m in self.of("LOADING") + self.ready):
                    continue
                verdict = Verdict("UNCAUGHT_EXCEPTION", event)
            else:
                verdict = self.refined(event)
            if verdict.id != found.id and (found.event is None or found.event.rule is not event.rule or
                                           event.rule is None):
                out.setdefault(verdict.id, verdict)
        return list(out.values())[:OTHERS]

    def refined(self, event: Event) -> Verdict:
        assert event.rule is not None
        handler = getattr(self, f"_{event.rule.context}", None) if event.rule.context else None
        verdict: Verdict = handler(event) if handler else Verdict(event.rule.id, event)
        return verdict

    def _heap_mode(self, event: Event) -> Verdict:
        mode = section(self.facts, "env").get("MORI_SHMEM_MODE")
        what = advice()["HEAP_NOT_INITIALISED"].what
        if isinstance(mode, str) and mode.upper() not in ("", "STATIC_HEAP"):
            what += f"; MORI_SHMEM_MODE is {mode[:40]!r} here"
        elif "env" in self.facts:
            what += "; MORI_SHMEM_MODE is not what explains it here, so the shmem initialisation was skipped"
        return Verdict("HEAP_NOT_INITIALISED", event, what)

    def _heap_request(self, event: Event) -> Verdict:
        group = [e for e in [*self.of("HEAP_TOO_SMALL"), *self.of("GEOMETRY_ERROR")] if e.file == event.file]
        sizes = [(s, e) for e in group if (s := requested_bytes(e.text)) is not None]
        asked, where = max(sizes, key=lambda p: p[0]) if sizes else (None, event)
        plan = section(self.facts, "plan")
        experts, ranks, local = (number(plan.get(k)) for k in ("experts", "ranks", "local_experts"))
        reasons = []
        if experts and ranks and local and local * ranks != experts:
            reasons.append(f"the plan has {experts:g} experts on {ranks:g} ranks ({experts / ranks:g} per rank), "
                           f"but {local:g} per rank were used")
        if asked is not None and asked > ABSURD_FACTOR * HEAP_NEED_BYTES:
            reasons.append(f"{asked} bytes ({asked / (1 << 30):.1f} GiB) were asked for; the largest validated "
                           f"geometry needs {HEAP_NEED_BYTES / (1 << 30):.1f} GiB in all")
        if reasons:
            return Verdict("GEOMETRY_ERROR", where, "a buffer of absurd size: " + "; ".join(reasons))
        heap = section(self.facts, "env").get("MORI_SHMEM_HEAP_SIZE")
        what = advice()["HEAP_TOO_SMALL"].what
        if asked is not None:
            what += f": {asked} bytes ({asked / (1 << 30):.2f} GiB) were asked for"
        if "env" in self.facts:
            what += f"; MORI_SHMEM_HEAP_SIZE is {str(heap)[:40] if heap is not None else 'not set'}"
        return Verdict("HEAP_TOO_SMALL", event, what)

    def _out_of_resources(self, event: Event) -> Verdict:
        if any(self.before(e, event) for e in self.of("LOADING") + self.of("WARMUP") + self.ready):
            return self._oom(event)
        return Verdict("DEVICE_PERMISSION", event,
                       "the HSA runtime reports OUT_OF_RESOURCES before any model load: the device node was refused")

    def _oom(self, event: Event) -> Verdict:
        after = any(self.before(r, event) for r in self.ready)
        return Verdict("OOM_AFTER_READY" if after else "OOM_AT_LOAD", event)

    def _illegal_access(self, event: Event) -> Verdict:
        warm = any(self.before(w, event) for w in self.of("WARMUP"))
        ready = any(self.before(r, event) for r in self.ready)
        return Verdict("WARMUP_DEGENERATE_ROUTING" if warm and not ready else "ILLEGAL_ACCESS", event)

    def _port(self, event: Event) -> Verdict:
        holder = []
        for key, value in self.facts.items():
            if key.startswith("port_") and isinstance(value, dict):
                parts = [f"{k} {value[k]}" for k in ("pid", "container", "started") if value.get(k) is not None]
                if parts:
                    holder.append(f"port {key[5:][:8]} is held by " + ", ".join(parts)[:200])
        what = advice()["PORT_IN_USE"].what + ("; " + "; ".join(holder[:4]) if holder else "")
        return Verdict("PORT_IN_USE", event, what)

    # -- no exception -------------------------------------------------------------------------------------------
    def without_cause(self) -> Verdict | None:
        locks = self.of("AITER_LOCK")
        last = self.scan.last.get("AITER_LOCK")
        if locks and last is not None:
            moved = any(self.before(locks[-1], r) for r in self.ready) and self.scan.last["READY"].line > last.line
            times = [e.time for e in (locks[0], last) if e.time is not None]
            lasted = times[1] - times[0] if len(times) == 2 else 0.0
            if not moved and (self.scan.counts["AITER_LOCK"] >= LOCK_REPEATS or lasted > LOCK_SECONDS):
                return Verdict("AITER_LOCK", locks[0])
        victims = [v for v in self.ends if not self.stopped(v)]
        if victims:
            return self.first_victim(victims)
        failing = [e for e in self.of("REQUESTS_FAILING") if not self.still_starting(e)]
        if failing:
            ok = sum(1 for e in self.ready if _ANSWER.search(e.text))
            last_ok = self.scan.last.get("READY")
            still = last_ok is None or not _ANSWER.search(last_ok.text) or last_ok.line < self.scan.last[
                "REQUESTS_FAILING"].line
            if still and (len(failing) > 1 or not ok):
                return Verdict("REQUESTS_FAILING", failing[0])
        return self.unknown()

    def unknown(self) -> Verdict | None:
        """The first line that its own program calls an error, when the server did not serve after it.

        Once it has served, an ERROR is mostly about one request; only the gravest words count then.
        """
        for event in self.kind("unknown"):
            served = any(r.file == event.file and self.before(r, event) for r in self.ready)
            over = self.served_after(event) or self.went_on(event) or self.stopped(event)
            if not (over or (event.file, event.line + 1) in self.ignored
                    or (served and not _GRAVE.search(event.text))):
                return Verdict("UNKNOWN_FAULT", event)
        return None

    def went_on(self, event: Event) -> bool:
        """True when the same file shows the start going on after the event."""
        return any(m.file == event.file and m.line > event.line for m in self.of("LOADING") + self.of("WARMUP"))

    def still_starting(self, event: Event) -> bool:
        """503 before the server was ever ready: it says itself that it is still starting (Hal0ai/hal0#1969)."""
        status = _STATUS.search(event.text)
        return status is not None and status[1] == "503" and not any(self.before(r, event) for r in self.ready)

    def first_victim(self, victims: list[Event]) -> Verdict:
        """No exception is in the logs: what the first end, or the first silence, says."""
        first = next((v for v in victims if v.rule and v.rule.id not in CONSEQUENCES), victims[0])
        assert first.rule is not None
        if first.rule.id == "HANG":
            return self.hang(first)
        if first.rule.id == "PROCESS_DIED":
            policy = [e for e in self.of("MEMPOLICY_BLOCKED") if self.before(e, first)]
            if policy and not self.ready:
                return Verdict("MEMPOLICY_BLOCKED", policy[-1], "numactl could not bind memory, so the engine that it "
                               "wraps never ran")
            named = _DIED_RANK.search(first.text)
            rank = int(named[1] or named[2]) if named else first.rank
            waiting = {v.rank for v in victims if self.before(first, v) and v.rule and v.rank not in (None, rank)
                       and v.rule.id in ("HANG", *CONSEQUENCES)}
            if rank is not None and waiting:
                return Verdict("RANK_DIED_FIRST", first, f"rank {rank} ended first, without an exception in these "
                               "logs; the others are victims",
                               f"give rank {rank}'s own log and the host's `dmesg -T` to `megamoe diagnose` too")
        return Verdict(first.rule.id, first)

    def hang(self, first: Event) -> Verdict:
        if self.of("IOMMU_NOT_PT"):
            return Verdict("IOMMU_NOT_PT", self.of("IOMMU_NOT_PT")[0], "the ranks hang, and the kernel line lacks "
                           "iommu=pt")
        if self.of("STACK_IN_COLLECTIVE"):
            return Verdict("COLLECTIVE_AUTOTUNE", self.of("STACK_IN_COLLECTIVE")[0])
        choices = {e.rank: (m[1], e) for e in self.of("RANK_CHOICE")
                   if self.before(e, first) and (m := _CHOICE.search(e.text)) and e.rank is not None}
        if len({c for c, _ in choices.values()}) > 1:
            shown = ", ".join(f"rank {r}: {c}" for r, (c, _) in sorted(choices.items())[:8])
            return Verdict("RANK_DIVERGENCE", min((e for _, e in choices.values()), key=lambda e: e.order),
                           f"{advice()['RANK_DIVERGENCE'].what}: {shown}")
        if idle := idle_gpus(self.facts):
            return Verdict("HANG", first, f"{advice()['HANG'].what}; GPU {', '.join(idle)} is idle while the others "
                           "are busy: its rank stopped first, so read that rank's own log")
        return Verdict("HANG", first)

    def capacity(self) -> list[Finding]:
        return kv_findings(self.of("KV_CAPACITY"))

    def risk(self) -> Verdict | None:
        risks = self.kind("risk")
        return Verdict(risks[0].rule.id, risks[0]) if risks and risks[0].rule else None

    def clue(self) -> Clue | None:
        clues = fact_clues(self.facts, self.scan)
        return clues[0] if clues else None

    def verdict(self) -> Verdict | None:
        found = self.first_cause() or self.without_cause()
        starved = next((f for f in self.capacity() if f.severity == "error"), None)
        if found is None and starved is not None:
            found = Verdict("KV_STARVED", self.of("KV_CAPACITY")[-1], starved.what)
        if found is None and (clue := self.clue()) is not None:
            return Verdict(clue.id, None, clue.what)
        return found or self.risk()
