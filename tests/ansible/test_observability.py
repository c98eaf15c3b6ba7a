"""Alert rules by promtool, and every expression against the metric names that the programs really export."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from rendered import as_this_user, gateway_config
from simulated import ANSIBLE, ROOT, program

FILES = ANSIBLE / "roles/observability/files"
WORDS = {"histogram_quantile"}


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expressions() -> dict[str, str]:
    """Where -> PromQL, of all rules and panels."""
    rules = [r for g in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for r in g["rules"]]
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    found = {r["alert"]: r["expr"] for r in rules}
    return found | {f"{p['title']} {t['refId']}": t["expr"] for p in panels for t in p["targets"]}


def names_in(expression: str) -> set[str]:
    """Metric names of an expression: identifiers with an underscore outside label matchers and `by (...)`."""
    bare = re.sub(r"\{[^}]*\}", "", expression)
    bare = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"\b[a-z]+_[a-z0-9_]+\b", bare)) - WORDS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def haproxy_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What HAProxy exports when it runs with our configuration and two nodes that do not answer."""
    binary = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    if binary is None:
        pytest.skip("haproxy is not installed")
    folder = tmp_path_factory.mktemp("haproxy")
    ports = {"gateway_bind": f"127.0.0.1:{free_port()}", "gateway_metrics_bind": f"127.0.0.1:{free_port()}"}
    text = gateway_config({"a": "serving", "b": "stopped"}, gateway_socket=str(folder / "s"), **ports)
    (folder / "c").write_text(as_this_user(text.replace("127.0.0.1:8404", f"127.0.0.1:{free_port()}")))
    process = subprocess.Popen([binary, "-f", str(folder / "c")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            try:
                with urllib.request.urlopen(f"http://{ports['gateway_metrics_bind']}/metrics", timeout=5) as answer:
                    body = answer.read().decode()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail("haproxy did not export metrics within 5 s")
    finally:
        process.terminate()
        process.wait(10)
    return set(re.findall(r"^# TYPE (\S+)", body, re.MULTILINE))


def engine_names() -> set[str]:
    pytest.importorskip("prometheus_client")
    from reference_engine.metrics import Metrics

    return set(re.findall(r"^(megamoe_engine_\w+)(?:\{.*\})? ", Metrics().render().decode(), re.MULTILINE))


def test_every_expression_names_metrics_that_exist(haproxy_names: set[str]) -> None:
    status = set(loaded(ANSIBLE / "roles/status/filter_plugins/status.py").METRICS)
    known = haproxy_names | status | engine_names() | {"up"}
    used = {where: names_in(text) for where, text in expressions().items()}
    unknown = {where: names - known for where, names in used.items() if names - known}
    assert not unknown
    assert all(names or "up{" in expressions()[where] for where, names in used.items())
    # Nothing that status exports is left unseen.
    assert status <= set().union(*used.values()) | {"megamoe_node_serving"}


def test_a_name_that_does_not_exist_would_be_found() -> None:
    assert names_in('sum by (le, node_x) (rate(haproxy_gone_total{a_b="c"}[5m]))') == {"haproxy_gone_total"}


def test_the_alerts_fire_on_their_fault_and_not_on_health(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    shutil.copy(FILES / "alerts.yml", tmp_path)
    shutil.copy(ROOT / "tests/ansible/observability/alerts_test.yml", tmp_path)
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    rules = [r for g in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for r in g["rules"]]
    tests: dict[str, Any] = yaml.safe_load((ROOT / "tests/ansible/observability/alerts_test.yml").read_text())
    fired = {c["alertname"] for t in tests["tests"] for c in t["alert_rule_test"] if c.get("exp_alerts")}
    silent = {c["alertname"] for c in tests["tests"][0]["alert_rule_test"] if not c.get("exp_alerts")}
    assert {r["alert"] for r in rules} == fired == silent
    assert all({"summary", "action"} <= set(r["annotations"]) and r["labels"]["severity"] for r in rules)


def test_the_epoch_alert_and_the_recycle_playbook_share_their_threshold() -> None:
    plays = yaml.safe_load((ANSIBLE / "playbooks/recycle.yml").read_text())
    share = next(p["vars"]["recycle_epoch_share"] for p in plays if "vars" in p)
    assert expressions()["MegaMoEEpochUsed"] == f"megamoe_node_epoch_share > {share}"


def test_the_scrape_configuration_is_written_from_the_inventory(tmp_path: Path) -> None:
    argv = [program("ansible-playbook"), "-i", str(ANSIBLE / "inventories/example/hosts.yml")]
    argv += [str(ANSIBLE / "playbooks/observability.yml"), "-e", f"observability_dir={tmp_path}"]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, cwd=ANSIBLE)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {j["job_name"]: j for j in yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]}
    assert jobs["megamoe-gateway"]["static_configs"][0]["targets"] == ["192.0.2.3:8405"]
    assert "megamoe-engine" not in jobs  # ATOM's server has no /metrics
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run(
            [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
