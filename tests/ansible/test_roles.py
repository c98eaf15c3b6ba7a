"""What can be proven about the roles without a host: specs, inventory faults, the gateway's configuration, --check."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ANSIBLE = Path(__file__).resolve().parents[2] / "ansible"
ROLES = sorted(p.parents[1].name for p in ANSIBLE.glob("roles/*/tasks/main.yml"))


def faults_of(hostvars: dict[str, Any], groups: dict[str, list[str]]) -> list[str]:
    """inventory_faults of the preflight role, loaded as Ansible does: by path."""
    spec = importlib.util.spec_from_file_location("preflight", ANSIBLE / "roles/preflight/filter_plugins/preflight.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.inventory_faults(hostvars, groups, str(ANSIBLE / "roles"))  # type: ignore[no-any-return]


@pytest.fixture
def inventory(tmp_path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Two nodes that can be used."""
    questions = tmp_path / "q.jsonl"
    questions.write_text("{}\n")
    common = {"megamoe_deploy": {"args": {"port": 8000}}, "validate_dataset": str(questions)}
    hostvars = {n: {**common, "ansible_host": f"192.0.2.{i}"} for i, n in enumerate(("a", "b"))}
    return hostvars, {"megamoe_nodes": ["a", "b"], "megamoe_gateway": []}


def test_there_are_the_roles_of_the_design() -> None:
    wanted = {"preflight", "host_tuning", "container_engine", "image", "model", "serve", "gateway", "validate"}
    assert wanted <= set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_describe_every_default_and_nothing_else(role: str) -> None:
    defaults = yaml.safe_load((ANSIBLE / f"roles/{role}/defaults/main.yml").read_text())
    options = yaml.safe_load((ANSIBLE / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]["main"][
        "options"
    ]
    assert {k: v["default"] for k, v in options.items()} == defaults
    assert all(v["description"] for v in options.values())
    assert all(name.startswith(role + "_") for name in options)


def test_a_good_inventory_has_no_fault(inventory: tuple[dict[str, Any], dict[str, list[str]]]) -> None:
    assert faults_of(*inventory) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serve_supervisr": "systemd"}, ["serve_supervisr", "serve_supervisor"]),
        ({"ansible_host": "192.0.2.1"}, ["a, b", "192.0.2.1"]),
        ({"megamoe_wave_size": 0}, ["megamoe_wave_size", "at least 1"]),
        ({"megamoe_canary": "z"}, ["megamoe_canary", "z"]),
        ({"validate_dataset": "/nowhere.jsonl"}, ["/nowhere.jsonl"]),
        ({"megamoe_deploy": None}, ["megamoe_deploy"]),
    ],
    ids=["unknown_variable", "one_address", "wave_0", "unknown_canary", "no_questions", "no_deploy"],
)
def test_a_bad_inventory_is_refused_with_host_and_value(
    inventory: tuple[dict[str, Any], dict[str, list[str]]], change: dict[str, Any], words: list[str]
) -> None:
    hostvars, groups = inventory
    hostvars["a"].update(change)
    faults = faults_of(hostvars, groups)
    assert len(faults) == 1, faults
    assert all(word in faults[0] for word in words)


def rendered_gateway(states: dict[str, str]) -> str:
    """haproxy.cfg for nodes with these recorded states."""
    defaults = yaml.safe_load((ANSIBLE / "roles/gateway/defaults/main.yml").read_text())
    hostvars = {
        name: {
            "ansible_host": "192.0.2.1",
            "megamoe_deploy": {"args": {"port": 8000}},
            "preflight_result": {"state": {"state": state}},
        }
        for name, state in states.items()
    }
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = environment.filters["tojson"]
    template = environment.from_string((ANSIBLE / "roles/gateway/templates/haproxy.cfg.j2").read_text())
    values = {**defaults, "gateway_model": "/models/x", "gateway_api_key": ""}
    return template.render(**values, hostvars=hostvars, groups={"megamoe_nodes": list(states)}, ansible_managed="test")


def test_only_nodes_recorded_as_serving_are_behind_the_gateway() -> None:
    text = rendered_gateway({"good": "serving", "bad": "stopped", "half": "deploying"})
    assert [line.split()[1] for line in text.splitlines() if line.strip().startswith("server ")] == ["good"]


@pytest.mark.skipif(not Path("/usr/sbin/haproxy").is_file(), reason="haproxy is not installed")
def test_haproxy_accepts_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(rendered_gateway({"good": "serving"}))
    done = subprocess.run(["/usr/sbin/haproxy", "-c", "-f", str(config)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr


def play(tmp_path: Path, playbook: str, inventory_text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a playbook against an inventory file, with Ansible's own state under tmp_path."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    program = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if program is None:
        pytest.skip("ansible-playbook is not installed (extra `deploy`)")
    path = tmp_path / "hosts.yml"
    path.write_text(inventory_text)
    own = {"ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")}
    env = {**os.environ, **own, "ANSIBLE_NOCOLOR": "1"}
    argv = [program, "-i", str(path), str(ANSIBLE / playbook), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, cwd=ANSIBLE)


def test_an_empty_inventory_does_not_end_green(tmp_path: Path) -> None:
    done = play(tmp_path, "site.yml", "all: {}\n")
    assert done.returncode != 0
    assert "megamoe_nodes has no host" in done.stdout + done.stderr


def test_a_host_without_ssh_is_refused_by_name_before_any_change(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text("{}\n")
    with socket.socket() as closed:  # bound, not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        lost = {"ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}
        here = {"ansible_connection": "local", "ansible_host": "here"}
        shared = {
            "validate_dataset": str(tmp_path / "q.jsonl"),
            "ansible_become": False,
            "preflight_disk_gib": {"/": 0},
            "megamoe_deploy": {"args": {"port": 8000}, "gpu": {"count": 0}, "model": {"path": "/m"}},
        }
        nodes = {"megamoe_nodes": {"hosts": {"lost": lost, "here": here}}}
        done = play(tmp_path, "site.yml", yaml.safe_dump({"all": {"children": nodes, "vars": shared}}))
    assert done.returncode != 0
    assert "lost" in done.stdout and "unreachable=1" in done.stdout
    assert "TASK [preflight" in done.stdout
    # The reachable node is not touched either: no task of a later role ran on it.
    for role in ("host_tuning", "container_engine", "model", "rollout"):
        assert f"TASK [{role}" not in done.stdout
