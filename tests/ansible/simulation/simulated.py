"""A cluster of fake nodes in a folder, and playbooks run against it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ANSIBLE = Path(os.environ.get("MEGAMOE_ANSIBLE_DIR", ROOT / "ansible"))
GOOD, NEWER = "1" * 64, "2" * 64
# The verbs that need an engine answer from the fake node's own state; all other verbs are the real command.
CLI = """#!{python}
import json, os, pathlib, sys
verb, argv = sys.argv[1], sys.argv
value = lambda name: argv[argv.index(name) + 1]
def say(status, code):
    print(json.dumps({{"command": verb, "status": status, "exit_code": code, "summary": status, "findings": []}}))
    sys.exit(code)
if verb == "gsm8k":
    host = argv[2].split("//")[1].rsplit(":", 1)[0]
    state = json.loads((pathlib.Path(os.environ["MEGAMOE_FAKE_DIR"]) / (host + ".json")).read_text())
    env = next(c for c in state["containers"].values() if c["running"])["env"]
    out = pathlib.Path(value("--out")); out.mkdir(parents=True, exist_ok=True)
    (out / "run.json").write_text(json.dumps({{"fault": env.get("MEGAMOE_REHEARSAL_FAULT", "")}}))
    say("pass", 0)
if verb == "report":
    say("pass", 0)
if verb == "gate" and pathlib.Path(value("--result")).is_dir():
    bad = json.loads((pathlib.Path(value("--result")) / "run.json").read_text())["fault"]
    say(*(("fail", 1) if bad else ("pass", 0)))
if verb == "gate":  # the preflight's question about a policy: the real reader, without what judges answers
    from megamoe.gate.policy import load_policy
    load_policy(value("--policy"))
    finding = {{"code": "input_missing", "severity": "error", "what": value("--result"), "why": "", "fix": ""}}
    print(json.dumps({{"command": verb, "status": "error", "exit_code": 3, "summary": "", "findings": [finding]}}))
    sys.exit(3)
os.execv({python!r}, [{python!r}, "-m", "megamoe", *argv[1:]])
"""


def program(name: str) -> str:
    """A program of the same environment as this Python, else of PATH; the test is skipped where there is none."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (extra `deploy`)")
    return found


@dataclass
class Played:
    """One run of a playbook."""

    returncode: int
    output: str
    events: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def tasks_by_host(self) -> Counter[str]:
        """Host -> tasks that ran on it, skipped ones not counted."""
        return Counter(e["host"] for e in self.events if e["event"] == "result")

    @property
    def changed(self) -> int:
        stats = next((e["hosts"] for e in self.events if e["event"] == "stats"), {})
        return sum(host["changed"] for host in stats.values())

    def plays(self, name: str) -> int:
        return sum(1 for e in self.events if e["event"] == "play" and e["name"] == name)


class FakeCluster:
    """Nodes node1..nodeN and one gateway; `group_vars` may be changed between runs."""

    def __init__(self, folder: Path, nodes: int, wave: int = 1) -> None:
        self.folder, self.state = folder, folder / "state"
        self.state.mkdir(parents=True)
        self.nodes = [f"node{i}" for i in range(1, nodes + 1)]
        questions = folder / "questions.jsonl"
        questions.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
        cli = folder / "megamoe"
        cli.write_text(CLI.format(python=sys.executable))
        cli.chmod(cli.stat().st_mode | stat.S_IXUSR)
        deploy = yaml.safe_load((ANSIBLE / "inventories/rehearsal/group_vars/all.yml").read_text())["megamoe_deploy"]
        deploy |= {"image": f"registry.test/megamoe@sha256:{GOOD}", "env": {}}
        self.vars: dict[str, Any] = {
            "ansible_connection": "fakenode", "ansible_become": False, "ansible_python_interpreter": "/usr/bin/python3",
            "megamoe_deploy": deploy, "megamoe_wave_size": wave, "serve_cli": str(cli), "serve_supervisor": "container",
            "serve_ready_timeout_s": 3, "gateway_supervisor": "daemon", "gateway_packages": [],
            "container_engine_supervisor": "external", "container_engine_packages": [], "image_pull_retries": 1,
            "validate_dataset": str(questions), "validate_policy": "rehearsal",
            "validate_report_dir": str(folder / "reports"), "rollout_report_dir": str(folder / "reports"),
        }  # fmt: skip
        self.host_vars: dict[str, dict[str, Any]] = {}

    def image(self, digest: str, fault: str = "") -> None:
        """Plans another image, whose engine carries a fault."""
        self.vars["megamoe_deploy"]["image"] = f"registry.test/megamoe@sha256:{digest}"
        self.vars["megamoe_deploy"]["env"] = {"MEGAMOE_REHEARSAL_FAULT": fault} if fault else {}

    def read(self, host: str) -> dict[str, Any]:
        path = self.state / f"{host}.test.json"
        empty = {"files": {}, "dirs": [], "containers": {}, "images": [], "haproxy": {}, "faults": [], "log": []}
        return json.loads(path.read_text()) if path.exists() else empty

    def write(self, host: str, **changes: Any) -> None:
        (self.state / f"{host}.test.json").write_text(json.dumps({**self.read(host), **changes}))

    def record(self, host: str) -> dict[str, Any]:
        """state.json of the node; {} when there is none."""
        return json.loads(self.read(host)["files"].get("/var/lib/megamoe/state.json", "{}"))

    def enabled(self) -> list[str]:
        """Nodes that the gateway's file lets in, which is what HAProxy does after a restart."""
        lines = self.read("gateway")["files"].get("/etc/haproxy/haproxy.cfg", "").splitlines()
        return [x.split()[1] for x in lines if x.strip().startswith("server ") and not x.endswith("disabled")]

    def play(self, playbook: str, *options: str, timeout_s: float = 900, env: Mapping[str, str] = {}) -> Played:
        hosts = {n: {"ansible_host": f"{n}.test", **self.host_vars.get(n, {})} for n in self.nodes}
        gateway = {"gateway": {"ansible_host": "gateway.test", **self.host_vars.get("gateway", {})}}
        groups = {"megamoe_nodes": {"hosts": hosts}, "megamoe_gateway": {"hosts": gateway}}
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": groups, "vars": self.vars}}, width=10**6))
        events = self.folder / "events.jsonl"
        events.write_text("")
        own = {
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection"), "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "simulation_events", "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0", "MEGAMOE_EVENTS": str(events), "MEGAMOE_FAKE_DIR": str(self.state),
            "ANSIBLE_DEPRECATION_WARNINGS": "0",
        }  # fmt: skip
        started = time.monotonic()
        done = subprocess.run(
            [program("ansible-playbook"), "-i", str(inventory), str(ANSIBLE / playbook), *options],
            capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **own, **env}, cwd=ANSIBLE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.monotonic() - started
        rows = [json.loads(line) for line in events.read_text().splitlines()]
        return Played(done.returncode, done.stdout + done.stderr, rows, seconds)
