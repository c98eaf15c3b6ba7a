"""The rehearsal from first check to summary."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, as_json, outcome_of_problem
from megamoe.rehearse import baseline, checks, cluster, images, model, tags
from megamoe.rehearse.beside import side_by_side
from megamoe.rehearse.judge import judge_run, look_at
from megamoe.rehearse.lock import held
from megamoe.rehearse.narrate import Narrator
from megamoe.rehearse.page import to_html
from megamoe.rehearse.play import PlayResult, run_site
from megamoe.rehearse.probe import faulty_nodes, gateway_backends
from megamoe.rehearse.settings import Settings


def rehearse(settings: Settings) -> Outcome:
    """Runs all phases and returns one outcome; the same summary is kept as JSON in the run's folder.

    Whatever stops it (a Problem, Ctrl-C), what was made carries the label and the next run continues from it.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    with held(settings.state / "lock"):
        folder = _run_folder(settings)
        narrator = Narrator()
        narrator.line(
            f"rehearsal: {settings.nodes} nodes, fault {settings.fault}, self-test {settings.selftest}; log in {folder}"
        )
        image = ""
        play: PlayResult | None = None
        try:
            build_log = folder / "build.log"
            with narrator.phase("check this machine") as phase:
                facts = checks.require(settings, images_ready=tags.have_all(settings.root))
                phase.note = f"{min(facts.disk_free_gib.values(), default=0):.0f} GiB free"
            (host_image, model_dir), tag = side_by_side(
                lambda: _host_image_and_model(settings, narrator, folder),
                lambda: _reference_image(settings, narrator, build_log),
            )
            with narrator.phase("nodes, registry, gateway") as phase:
                made = cluster.up(settings, host_image, model_dir)
                cluster.wait_ready(settings)
                phase.note = "made: " + ", ".join(made) if made else "all there already"
            image, dense = side_by_side(
                lambda: _push(settings, narrator, tag), lambda: _dense(settings, narrator, tag, model_dir, build_log)
            )
            cluster.write_inventory_data(settings, image, dense, folder)
            with narrator.phase("roll out with site.yml") as phase:
                play = run_site(settings, folder, narrator)
                phase.status = "fail" if play.exit_code else "pass"
                phase.note = f"changed {play.changed_total} on {len(play.hosts)} hosts"
            with narrator.phase("what the gateway serves now") as phase:
                serving = gateway_backends(settings)
                phase.note = ", ".join(serving) or "nothing"
            outcome = judge_run(settings, play, serving, faulty_nodes(settings), folder)
        except Problem as problem:
            outcome = outcome_of_problem(problem)
        except KeyboardInterrupt:
            outcome = Outcome(
                "error",
                Exit.INTERRUPTED,
                "interrupted",
                [
                    Finding(
                        "interrupted",
                        "error",
                        "the rehearsal was interrupted",
                        "nodes may be half rolled out",
                        "run `make rehearse` again (it continues), or `make rehearse-down`",
                    )
                ],
            )
        outcome.data = {
            "run": str(folder),
            "nodes": settings.nodes,
            "fault": settings.fault,
            "selftest": settings.selftest,
            "image": image,
            "phases": narrator.as_data(),
            "look_at": look_at(settings, folder),
            **outcome.data,
        }
        outcome.text = _text(outcome, narrator)
        _keep(folder, outcome)
        return outcome


def _host_image_and_model(settings: Settings, narrator: Narrator, folder: Path) -> tuple[str, Path]:
    """Two steps of the other core while the engine's image, the longest of all, is built."""
    log = folder / "nodes.log"  # its own: a failure shows the last lines of its log
    with narrator.phase("host image") as phase:
        phase.note = host_image = images.ensure_host_image(settings, log)
    with narrator.phase("model"):
        return host_image, model.ensure_model(settings, log)


def _reference_image(settings: Settings, narrator: Narrator, log: Path) -> str:
    with narrator.phase("reference image"):
        return images.ensure_reference_image(settings, log)


def _push(settings: Settings, narrator: Narrator, tag: str) -> str:
    with narrator.phase("push image by digest") as phase:
        phase.note = images.push(settings, tag)
        return phase.note


def _dense(settings: Settings, narrator: Narrator, tag: str, model_dir: Path, log: Path) -> Path:
    with narrator.phase("dense answers to compare with") as phase:
        dense, fresh = baseline.ensure_baseline(settings, tag, model_dir, log)
        phase.note = "asked now" if fresh else "kept from an earlier run"
        return dense


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    """TERM, as a CI sends it, takes the same way out as Ctrl-C, so that Ansible is stopped and not orphaned.

    Raised here, not sent on as INT: a job in the background of a script ignores that.
    """
    raise KeyboardInterrupt


def tear_down(settings: Settings) -> Outcome:
    """Removes what carries the label and the run's secrets; says what stays (packages, caches, reports)."""
    with held(settings.state / "lock"):
        gone = cluster.down()
        for name in ("cluster.json", "id_ed25519", "id_ed25519.pub", "known_hosts"):
            path = settings.state / name
            if path.exists():
                path.unlink()
                gone.append(f"file {path.relative_to(settings.root)}")
        gone += _remove_caches(settings.root / ".state")
    left = [
        f"{path.relative_to(settings.root)}/ ({what})"
        for path, what in (
            (settings.state, "logs and reports of earlier runs"),
            (settings.root / ".venv", "virtual environment"),
        )
        if path.exists()
    ]
    installed = settings.root / ".state" / "installed-packages"
    if installed.is_file():
        left.append("installed packages: " + " ".join(installed.read_text().split()))
    text = "\n".join([*(f"removed {g}" for g in gone), *(f"left    {x}" for x in left)])
    summary = f"removed {len(gone)} objects of the rehearsal" if gone else "nothing of a rehearsal was there"
    return Outcome("pass", Exit.PASS, summary, data={"removed": gone, "left": left}, text=text)


def _remove_caches(state: Path) -> list[str]:
    """Removes what the build steps keep in .state between runs; returns what went."""
    gone = []
    for name in ("model", "gguf", "debs", "wheelhouse-*", "minimal*", "base.*", "build_reference.log"):
        for path in sorted(state.glob(name)):
            kind = "folder" if path.is_dir() else "file"
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            gone.append(f"{kind} .state/{path.name}")
    return gone


def _run_folder(settings: Settings) -> Path:
    """A new folder per run; `latest` points at it."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = settings.state / "runs" / f"{stamp}-{os.getpid()}"
    folder.mkdir(parents=True)
    link = settings.state / "latest"
    fresh = settings.state / f".latest-{os.getpid()}"
    fresh.symlink_to(folder.relative_to(settings.state))
    fresh.replace(link)
    return folder


def _text(outcome: Outcome, narrator: Narrator) -> str:
    """The summary a person reads last: phases with seconds, verdicts, where things are, what to try next."""
    total = time.monotonic() - narrator.started
    lines = ["phase                              status        began  seconds"]
    lines += [f"{p.name:<34} {p.status:<10} {p.began:>8.1f} {p.seconds or 0:>8.1f}" for p in narrator.phases]
    lines.append(f"{'total (some ran side by side)':<34} {'':<10} {'':>8} {total:>8.1f}")
    verdicts: list[dict[str, Any]] = outcome.data.get("verdicts", [])
    if verdicts:
        lines += ["", "host       check         verdict"]
        lines += [f"{v['host']:<10} {v['check']:<13} {v['status']:<12} {v['said']}" for v in verdicts]
    lines += ["", *(f"{name}: {value}" for name, value in outcome.data.get("look_at", {}).items())]
    if outcome.data.get("next"):
        lines += ["", "next:", *(f"  {command}" for command in outcome.data["next"])]
    return "\n".join(lines)


def _keep(folder: Path, outcome: Outcome) -> None:
    text = as_json("rehearse", outcome)
    (folder / "summary.json").write_text(text + "\n")
    (folder / "report.html").write_text(to_html(json.loads(text)), encoding="utf-8")
