"""The rehearsal's cluster as the live tests use it: playbooks, faults on hosts, and clients at the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / "ansible"


@dataclass
class Played:
    """One run of a playbook: Ansible's exit code, its output, what changed and what failed."""

    returncode: int
    output: str
    seconds: float
    changed: list[tuple[str, str]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)


class Playing:
    """A playbook that runs in a process group of its own, so that a test can interrupt it as Ctrl-C does."""

    def __init__(self, cluster: Live, playbook: str, *options: str) -> None:
        self.folder = cluster.folder / f"play-{len(list(cluster.folder.glob('play-*'))):02d}"
        self.folder.mkdir()
        self.events, self.log = self.folder / "events.jsonl", self.folder / "ansible.log"
        self.events.touch()
        (self.folder / "vars.json").write_text(json.dumps(cluster.variables))
        own = {
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(self.folder),
            "ANSIBLE_CALLBACKS_ENABLED": "events",
            "MEGAMOE_EVENTS": str(self.events), "MEGAMOE_REHEARSAL_CLUSTER": str(cluster.file),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        }  # fmt: skip
        program = Path(sys.executable).with_name("ansible-playbook")
        argv = [program, "-i", str(ANSIBLE / "inventories/rehearsal"), str(ANSIBLE / playbook)]
        self.started = time.monotonic()
        self._out = self.log.open("wb")
        self.process = subprocess.Popen(
            [*argv, "-e", f"@{self.folder / 'vars.json'}", *options], cwd=ANSIBLE, env={**os.environ, **own},
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, task: str, timeout_s: float = 900) -> None:
        """Returns when a task or play whose name contains `task` has begun."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if any(task in e.get("name", "") for e in self._rows()):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.5)
        raise AssertionError(f"{task!r} did not begin: {self.log.read_text(errors='replace')[-3000:]}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, timeout_s: float = 1800) -> Played:
        """Waits for the end and returns what happened."""
        try:
            self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self._out.close()
        seconds = round(time.monotonic() - self.started, 1)
        rows = self._rows()
        changed = [(e["host"], e["task"]) for e in rows if e["event"] == "changed"]
        failures = [e for e in rows if e["event"] in ("failed", "unreachable")]
        return Played(self.process.returncode, self.log.read_text(errors="replace"), seconds, changed, failures)

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for line in self.events.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:  # a torn last line
                continue
        return rows


class Live:
    """Nodes and gateway of a rehearsal that is up; `variables` go to every playbook."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file, self.base = folder, file, ""  # base: the generation that a test begins with
        self.cluster = json.loads(file.read_text())
        self.nodes = sorted(self.cluster["nodes"])
        self.prefix = self.cluster.get("prefix", "mmreh-")
        self.gateway = f"http://{next(iter(self.cluster['gateway'].values()))}:8080"
        deploy = yaml.safe_load((ANSIBLE / "inventories/rehearsal/group_vars/all.yml").read_text())["megamoe_deploy"]
        questions = folder / "questions.jsonl"
        lines = Path(self.cluster["dataset"]).read_text().splitlines()[:12]
        questions.write_text("\n".join(lines) + "\n")
        self.variables: dict[str, Any] = {
            "megamoe_deploy": deploy, "validate_policy": str(ROOT / "tests/rollout/policy.toml"),
            "validate_dataset": str(questions), "validate_baseline": "", "validate_max_gen_toks": 32,
            "validate_report_dir": str(folder / "reports"), "rollout_report_dir": str(folder / "reports"),
        }  # fmt: skip

    def plan(self, generation: str, fault: str = "") -> None:
        """Plans another release: a label of its own, and the fault that its engine carries."""
        self.variables["megamoe_deploy"]["container"]["labels"] = {"generation": generation}
        env = {"MEGAMOE_REHEARSAL_FAULT": fault, "MEGAMOE_SELFTEST": "off"} if fault else {}
        self.variables["megamoe_deploy"]["env"] = env

    def play(self, playbook: str, *options: str, timeout_s: float = 1800) -> Played:
        return Playing(self, playbook, *options).end(timeout_s)

    def on(self, host: str, *argv: str, check: bool = True, timeout_s: float = 120) -> str:
        """Runs a command on a host, not over SSH, so that it works while SSH is what is broken."""
        done = subprocess.run(
            ["docker", "exec", self.prefix + host, *argv], capture_output=True, text=True, timeout=timeout_s
        )
        assert not check or done.returncode == 0, f"{argv} on {host}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(self, host: str) -> dict[str, Any]:
        text = self.on(host, "cat", "/var/lib/megamoe/state.json", check=False)
        return json.loads(text) if text.strip() else {}

    def generation(self, host: str) -> str:
        """Label of the container that runs on a node; "" when none runs."""
        form = '{{index .Config.Labels "generation"}} {{.State.Running}}'
        said = self.on(host, "docker", "inspect", "--format", form, "megamoe", check=False).strip()
        label, _, running = said.rpartition(" ")
        return label if running == "true" else ""

    def up(self) -> list[str]:
        """Nodes that the gateway sends requests to."""
        from megamoe.rehearse.probe import ASK_HAPROXY, up_servers

        return up_servers(self.on("gateway", "sh", "-c", ASK_HAPROXY, check=False))


@dataclass
class Load:
    """What clients saw: one entry per request that did not end as it should, and the count of those that did."""

    good: Counter[str] = field(default_factory=Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.good.values()) + len(self.bad)


class Clients:
    """Clients in a thread of their own that ask the gateway, one half streaming, until `stop`."""

    def __init__(self, cluster: Live, workers: int = 6, max_tokens: int = 1) -> None:
        import threading

        self.load, self._end = Load(), threading.Event()
        self._url, self._workers, self._max_tokens = cluster.gateway, workers, max_tokens
        self._model = cluster.variables["megamoe_deploy"]["model"]["path"]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(600)

    def until(self, requests: int, timeout_s: float = 1800) -> None:
        """Returns when so many requests have ended."""
        end = time.monotonic() + timeout_s
        while self.load.total < requests and time.monotonic() < end:
            time.sleep(1)

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=self._workers * 2)
        async with httpx.AsyncClient(base_url=self._url, timeout=600, limits=limits) as client:
            await asyncio.gather(*(self._worker(client, bool(i % 2)) for i in range(self._workers)))

    async def _worker(self, client: httpx.AsyncClient, stream: bool) -> None:
        kind = "stream" if stream else "whole"
        while not self._end.is_set():
            body = {"model": self._model, "prompt": "Hi", "max_tokens": self._max_tokens, "temperature": 0}
            started, parts = time.time(), 0
            try:
                if stream:
                    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                        lines = [line async for line in answer.aiter_lines() if line]
                        parts = len(lines)
                    ok, said = answer.status_code == 200 and lines[-1:] == ["data: [DONE]"], str(lines[-1:])
                else:
                    answer = await client.post("/v1/completions", json=body)
                    ok, said = answer.status_code == 200 and bool(answer.json()["choices"]), answer.text[:200]
                status = answer.status_code
            except (httpx.HTTPError, ValueError, LookupError) as error:
                ok, said, status = False, f"{type(error).__name__}: {error}", 0
            if ok:
                self.load.good[kind] += 1
            else:
                ended = time.time()
                self.load.bad.append({"kind": kind, "status": status, "said": said, "parts": parts,
                                      "started": started, "ended": ended})  # fmt: skip
                await asyncio.sleep(0.2)
