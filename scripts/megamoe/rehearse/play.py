"""Runs the production playbook against the rehearsal's inventory and follows it by its events."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.narrate import Narrator
from megamoe.rehearse.settings import Settings


@dataclass(slots=True)
class PlayResult:
    """What happened: Ansible's exit code, counts per host, the plays with their seconds, and what failed first."""

    exit_code: int
    hosts: dict[str, dict[str, int]] = field(default_factory=dict)
    plays: list[tuple[str, float]] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changed_total(self) -> int:
        return sum(counts.get("changed", 0) for counts in self.hosts.values())


def read_events(text: str) -> PlayResult:
    """Events (JSON lines of events.py) as a result; a torn last line, as an interrupt leaves it, is left out."""
    result = PlayResult(0)
    starts: list[tuple[str, float]] = []
    last = 0.0
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        last = float(event["t"])
        kind = event["event"]
        if kind == "play":
            starts.append((event["name"], last))
        elif kind == "changed":
            result.changed.append((event["host"], event["task"]))
        elif kind in ("failed", "unreachable") and not event.get("ignored"):
            result.failures.append(event)
        elif kind == "stats":
            result.hosts = event["hosts"]
    ends = [*(start for _, start in starts[1:]), last][: len(starts)]
    result.plays = [(name, round(end - start, 1)) for (name, start), end in zip(starts, ends, strict=True)]
    return result


def run_site(settings: Settings, folder: Path, narrator: Narrator, *, timeout_s: float = 1500) -> PlayResult:
    """ansible-playbook site.yml over SSH; plays are narrated as they begin, the whole output goes to ansible.log.

    Raises:
        Problem: ansible-playbook is missing (exit 4), or did not end in time (exit 1).
        KeyboardInterrupt: passed on after Ansible was told to stop and did.
    """
    beside = Path(sys.executable).with_name("ansible-playbook")
    program = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if program is None:
        raise Problem(
            "rehearse_ansible",
            exit_code=Exit.PRECONDITION,
            what="ansible-playbook is not there",
            why="the rehearsal runs the production playbooks",
            fix="pip install '.[deploy]', or run scripts/rehearse.sh",
        )
    events, log = folder / "events.jsonl", folder / "ansible.log"
    events.touch()
    ansible = settings.root / "ansible"
    environ = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ansible / "ansible.cfg"),
        "ANSIBLE_CALLBACKS_ENABLED": "events",
        "ANSIBLE_NOCOLOR": "1",
        "MEGAMOE_EVENTS": str(events),
        "MEGAMOE_REHEARSAL_CLUSTER": str(settings.state / "cluster.json"),
        # Roles call megamoe on the controller; it is the one that runs now.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }
    argv = [program, "-i", str(ansible / "inventories/rehearsal"), str(ansible / "site.yml")]
    with log.open("ab") as out:
        # A process group of its own: Ctrl-C reaches us alone, and we stop Ansible once, in order.
        process = subprocess.Popen(
            argv,
            cwd=ansible,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _follow(process, events, narrator, timeout_s)
        except BaseException:
            _stop(process)
            raise
    result = read_events(events.read_text())
    result.exit_code = process.returncode
    if process.returncode and not result.failures:
        tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        error = next((line for line in tail if "ERROR" in line), tail[-1] if tail else "no output")
        result.failures.append({"event": "failed", "host": "controller", "task": "ansible-playbook", "msg": error})
    return result


def _follow(process: subprocess.Popen[bytes], events: Path, narrator: Narrator, timeout_s: float) -> None:
    """Narrates plays until the process ends; wakes twice a second, which costs nothing next to Ansible itself."""
    waited = 0.0
    with events.open() as handle:
        pending = ""
        while True:
            ended = True
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                ended = False
            waited += 0.5
            pending += handle.read()
            *lines, pending = pending.split("\n")
            for line in lines:
                event = json.loads(line)
                if event["event"] == "play":
                    narrator.line(f"  {event['name']}")
                elif event["event"] in ("failed", "unreachable") and not event.get("ignored"):
                    narrator.line(f"  {event['event']} on {event['host']}: {event['task']}")
            if ended:
                return
            if waited > timeout_s:
                raise Problem(
                    "rehearse_play_timeout",
                    exit_code=Exit.CHECK_FAILED,
                    what=f"site.yml ran for {timeout_s:.0f} s without an end",
                    why="every wait in the roles has a deadline below that",
                    fix="read ansible.log in the run's folder",
                )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupts Ansible as Ctrl-C does, then ends its process group if it does not go."""
    for sign, wait_s in ((signal.SIGINT, 15), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
