"""The edits of FlyDSL proven by execution, with and without: captures, runs hostile schedules, writes figures as JSON.

Usage: python prove_edits.py FLYDSL WORK FIGURES [--seeds N] [--only EDIT[/CASE]...]
MEGAMOE_FLYDSL_PYTHON names the Python that has flydsl 0.2.4; WORK keeps trees and bundles, so a second run is quick.
FIGURES is a file like scripts/docs/proven_edits.json: each experiment that ran replaces its row there, in plan order.

An experiment runs one case from two trees: `without` the edit, and `with` it. Its figures are the runs whose output is
not the reference's bit for bit (`wrong`), that did not end (`hung`), and all runs. It holds when something goes wrong
without the edit (where the case can show it) and nothing with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ADAPTER = HERE.parents[1] / "atom_patch"

ALL = ("swiglu_limit", "publish_order", "xcd_guard", "launch_epoch", "tile_wait", "payload_wait")
# Trees by name: the edits that they carry. "stock" is upstream's; a pair all_but_X, all differs in exactly the edit X,
# so that no other fault (E9 at eight ranks, above all) can be taken for the one in question.
TREES: dict[str, tuple[str, ...]] = {
    "stock": (),
    "swiglu_limit": ("swiglu_limit",),
    "publish_order": ("publish_order",),
    "both_fixed_slot": ("publish_order", "payload_wait"),
    "tile_wait": ("tile_wait",),
    "all": ALL,
    **{f"all_but_{left_out}": tuple(e for e in ALL if e != left_out) for left_out in ALL[2:]},
}
HANG_LIMIT = 4_000_000
"""Instructions after which a layer as small as `micro` (57,000) counts as hung."""
WITHOUT = 0.4
"""Part of the schedules that is run without the edit: it only has to show that they find the fault."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One fault, one case. before, after: trees. schedules: as on the lane's command line, `*` for the seeds.

    start: launches done so far (the epoch's experiments). shows: whether something goes wrong without the edit.
    share: part of the seeds that are run.
    """

    edit: str
    fault: str
    case: str
    schedules: tuple[str, ...]
    before: str = "stock"
    after: str = "all"
    before_case: str = ""
    start: int = 0
    shows: bool = True
    share: float = 1.0


EXPERIMENTS = (
    *(
        Experiment("swiglu_limit", "D1", f"{case}:10", ("order", "random@*"), before_case=f"{case}:hot", share=0.05)
        for case in ("micro", "micro_compact", "small")
    ),
    Experiment("publish_order", "E9", "micro", ("frozen",)),
    Experiment("publish_order", "E9", "small", ("frozen",)),
    Experiment("publish_order", "E9", "w8_changing", ("frozen",)),
    Experiment("publish_order", "E9", "w8_changing", ("random@*",)),
    Experiment("publish_order", "E9", "w8_compact", ("random@*",), shows=False),
    Experiment("xcd_guard", "E2", "cu4", ("order",)),
    Experiment("xcd_guard", "E2", "a4w4_cu4", ("order",)),
    Experiment("xcd_guard", "E2", "w8_cu4", ("random@*",), "all_but_xcd_guard"),
    *(
        Experiment("launch_epoch", "E1", case, ("order",), start=start, shows=start == 2**31 - 1)
        for case in ("micro", "micro_compact", "w2_compact")
        for start in (2**31 - 1, 2**31, 2**32 - 1, 2**32)
    ),
    *(
        Experiment("launch_epoch", "E1", case, ("random@*",), "all_but_launch_epoch", start=2**31 - 1)
        for case in ("w8_changing", "w8_compact")
    ),
    Experiment("tile_wait", "L1", "dense", ("late:fifo+@*",), after="tile_wait"),
    Experiment("tile_wait", "L1", "dense_compact", ("late@*",), after="tile_wait"),
    Experiment("tile_wait", "L1", "dense_compact", ("late@*",)),
    Experiment("tile_wait", "L1", "w8_dense", ("late:fifo+@*",), "all_but_tile_wait"),
    Experiment("tile_wait", "L1", "w8_dense_compact", ("late@*",), "all_but_tile_wait"),
    Experiment("payload_wait", "L2", "micro", ("slow@*",), "publish_order", "both_fixed_slot"),
    Experiment("payload_wait", "L2", "w2", ("slow@*",), "publish_order", "both_fixed_slot"),
    Experiment("payload_wait", "L2", "w8_changing", ("slow@*",), "all_but_payload_wait"),
    Experiment("payload_wait", "E9, L2", "w8_changing", ("slow@*",), share=0.2),
)  # fmt: skip


class Workshop:
    """Trees and bundles in a folder, made when they are first needed."""

    def __init__(self, flydsl: Path, work: Path, python: str) -> None:
        self.flydsl, self.work, self.python = flydsl, work, python

    def tree(self, name: str) -> Path:
        """The kernels of FlyDSL with the named edits alone: pairs that the product never ships stay comparable."""
        from megamoe.patch.rules import load_rules, transform

        root = self.work / "trees" / name
        if not root.exists():
            shutil.copytree(self.flydsl / "kernels", root / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
            rules = [r for r in load_rules("flydsl") if r.edit in TREES[name]]
            for path in {r.file for r in rules}:
                content, counts = transform(path, (root / path).read_bytes(), rules, undo=False)
                assert all(n == r.matches for r, n in counts), counts
                (root / path).write_bytes(content)
        return root

    def bundle(self, tree: str, case: str) -> Path:
        folder = self.work / "bundles" / tree / case.replace(":", "-")
        if not (folder / "bundle.json").exists():
            done = subprocess.run(
                [self.python, str(HERE / "edit_process.py"), str(ADAPTER), str(self.tree(tree)), str(folder), case],
                capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=3600,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"capture of {case} from {tree} failed: {done.stderr[-2000:]}")
        return folder


def at_epoch(folder: Path, launches: int, to: Path) -> Path:
    """A copy of a bundle whose counters stand as after that many launches (32-bit words wrap, as the kernels' do)."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    body = json.loads((to / "bundle.json").read_text())
    stage1 = next(x for s in body["steps"] for x in s.get("launches", []) if x["name"] == "stage1")
    groups = stage1["grid"][0] * stage1["grid"][1] * stage1["grid"][2]
    compact = any(b["name"].endswith(".gm.meta2") for b in body["buffers"])
    word = struct.pack("<I", launches & 0xFFFFFFFF)
    values = {"s1_meta": word, "gm.gb1": struct.pack("<Q", launches * groups)}
    if compact:
        values |= {
            "gm.meta2": word,
            "gm.gb_cnt": struct.pack("<Q", launches * groups),
            "gm.done2": word,
            "gm.cnt_done": word,
        }
    for b in body["buffers"]:
        value = values.get(b["name"].split(".", 1)[1])
        if value is not None:
            content = value * (int(b["bytes"]) // len(value))
            name = f"data/epoch-{b['name']}.bin"
            (to / name).write_bytes(content)
            b["init"] = {"file": name}
    (to / "bundle.json").write_text(json.dumps(body))
    return to


def runs(folder: Path, answers: Path, schedules: Iterable[str], *, limit: int) -> dict[str, Any]:
    """Executes a bundle under each schedule and compares it with the expectations of `answers`."""
    from kernel_lane.bundle import Bundle
    from kernel_lane.execute import Executor
    from kernel_lane.judge import compare
    from kernel_lane.machine.schedule import Schedule

    executor, expected = Executor(Bundle.read(folder)), Bundle.read(answers)
    counted: Counter[str] = Counter()
    failing: list[str] = []
    worst, findings, steps, started = 0.0, Counter[str](), 0, time.monotonic()
    for text in schedules:
        schedule = Schedule.parse(text)
        # Odd seeds start from memory full of 0xFF: what nobody has written must not matter.
        run = executor.run(replace(schedule, limit=limit, poison=0xFF if schedule.seed % 2 else 0xA5))
        counted["runs"] += 1
        steps += run.instructions
        findings.update({f.kind: f.count for f in run.findings})
        differing = compare(expected, run.results)
        if run.stop:
            counted["hung"] += 1
        elif differing:
            counted["wrong"] += 1
            worst = max([worst, *(d.relative for d in differing if np.isfinite(d.relative))])
        if run.stop or differing:
            failing.append(text)
    return {
        "runs": counted["runs"], "wrong": counted["wrong"], "hung": counted["hung"], "failing": failing[:12],
        "worst_rel_l2": round(worst, 4), "findings": dict(sorted(findings.items())), "instructions": steps,
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def expectations(folder: Path) -> list[bytes]:
    body = json.loads((folder / "bundle.json").read_text())
    return [(folder / e["file"]).read_bytes() for s in body["steps"] for e in s.get("expect", [])]


def spread(schedules: Iterable[str], seeds: int) -> list[str]:
    return [s.replace("*", str(n)) for s in schedules for n in (range(1, seeds + 1) if "*" in s else (0,))]


def prove(shop: Workshop, e: Experiment, seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of one experiment, before and after its edit."""
    schedules = spread(e.schedules, max(1, round(seeds * e.share)))
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(), "seeds": seeds,
        "edit": e.edit, "fault": e.fault, "case": e.case, "schedules": list(e.schedules), "launches_before": e.start,
        "trees": {"without": list(TREES[e.before]), "with": list(TREES[e.after])},
    }  # fmt: skip
    answers = shop.bundle(e.after, e.case)
    # A bundle that an older lane captured holds other inputs, and would be "wrong" for that reason alone.
    if not e.before_case and expectations(shop.bundle(e.before, e.case)) != expectations(answers):
        raise RuntimeError(f"the bundles of {e.case} from {e.before} and {e.after} hold different inputs; remove both")
    shown = schedules[: max(1, round(len(schedules) * WITHOUT))]
    for word, tree, case, tried in (
        ("without", e.before, e.before_case or e.case, shown),
        ("with", e.after, e.case, schedules),
    ):
        folder = shop.bundle(tree, case)
        if e.start:
            folder = at_epoch(folder, e.start, shop.work / "epoch")
        figures[word] = runs(folder, answers, tried, limit=HANG_LIMIT if e.start else 200_000_000)
        say(f"{e.edit} {e.case} {e.schedules} {word}: {figures[word]}")
    bad = figures["without"]["wrong"] + figures["without"]["hung"]
    figures["holds"] = bool(bad) == e.shows and not (figures["with"]["wrong"] + figures["with"]["hung"])
    return figures


def row_of(e: Experiment) -> tuple[Any, ...]:
    """What tells an experiment's row in the figures from every other."""
    return e.edit, e.fault, e.case, list(e.schedules), e.start, list(TREES[e.before]), list(TREES[e.after])


def row_in(figures: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("edit", "fault", "case", "schedules", "launches_before")
    return *(figures[k] for k in keys), figures["trees"]["without"], figures["trees"]["with"]


def merged(figures: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The figures with one experiment's row new, in plan order; a row whose experiment is no more is left out."""
    rows = [new, *(r for r in figures.get("experiments", []) if row_in(r) != row_in(new))]
    planned = [row_of(e) for e in EXPERIMENTS]
    return figures | {
        "experiments": sorted((r for r in rows if row_in(r) in planned), key=lambda r: planned.index(row_in(r)))
    }


def chosen(only: list[str]) -> list[Experiment]:
    return [e for e in EXPERIMENTS if not only or e.edit in only or f"{e.edit}/{e.case}" in only]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("flydsl", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[], metavar="EDIT[/CASE]")
    options = parser.parse_args()
    sys.path[:0] = [str(ADAPTER), str(HERE.parents[1] / "scripts")]
    from megamoe_atom import kernel_edits

    shop = Workshop(options.flydsl, options.work, os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable))
    head = {
        "flydsl_commit": kernel_edits.pinned().commit,
        "conditions": "compiled for gfx950 by flydsl 0.2.4, executed by this repository's lane; no GPU; odd seeds "
        "start from memory of 0xFF",
    }
    for e in chosen(options.only):
        row = prove(shop, e, options.seeds, lambda t: print(t, file=sys.stderr, flush=True))
        # Read again and written after each: hours of runs are not lost to the last, and another process may add rows.
        have = json.loads(options.figures.read_text()) if options.figures.exists() else {}
        options.figures.write_text(json.dumps(merged(have | head, row), indent=1) + "\n")


if __name__ == "__main__":
    main()
