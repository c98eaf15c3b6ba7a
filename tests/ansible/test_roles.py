"""What can be proven about the roles without a host: specs, inventory faults, the gateway's configuration, --check."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

pytest.importorskip("ansible", reason="ansible is not installed (extra `deploy`)")

from megamoe.deploy.load import parse_deploy
from megamoe.deploy.schema import DP_PORT, INTERNAL_PORT, PORT
from megamoe.preflight.judge import ports
from rendered import gateway_config, servers_of
from simulated import ANSIBLE, program

ROLES = sorted(p.parents[1].name for p in ANSIBLE.glob("roles/*/tasks/main.yml"))


def filters_of(role: str) -> Any:
    """The filter plugin of a role, loaded as Ansible does: by path."""
    spec = importlib.util.spec_from_file_location(role, ANSIBLE / f"roles/{role}/filter_plugins/{role}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults_of(hostvars: dict[str, Any], groups: dict[str, list[str]]) -> list[str]:
    faults: list[str] = filters_of("preflight").inventory_faults(hostvars, groups, str(ANSIBLE / "roles"))
    return faults


@pytest.fixture
def inventory(tmp_path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Two nodes that can be used."""
    questions = tmp_path / "q.jsonl"
    questions.write_text("{}\n")
    deploy = {"args": {"port": 8000}}
    common = {"megamoe_deploy": deploy, "validate_dataset": str(questions), "serve_cli": sys.executable}
    hostvars = {n: {**common, "ansible_host": f"192.0.2.{i}"} for i, n in enumerate(("a", "b"))}
    return hostvars, {"megamoe_nodes": ["a", "b"], "megamoe_gateway": []}


def specs_of(role: str) -> dict[str, Any]:
    text = (ANSIBLE / f"roles/{role}/meta/argument_specs.yml").read_text()
    specs: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]
    return specs


def test_there_are_the_roles_of_the_design() -> None:
    wanted = {"preflight", "host_tuning", "container_engine", "image", "model", "serve", "gateway", "validate"}
    assert wanted <= set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_describe_every_default_and_nothing_else(role: str) -> None:
    defaults = yaml.safe_load((ANSIBLE / f"roles/{role}/defaults/main.yml").read_text())
    options = specs_of(role)["options"]
    assert {k: v["default"] for k, v in options.items()} == defaults
    assert all(v["description"] for v in options.values())
    # A default is of its own type and one of its own choices; a list says of what. Templates get values in a play.
    plain = {name: default for name, default in defaults.items() if "{{" not in str(default)}
    keys = ("type", "elements", "choices")
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    typed = {name: {key: options[name][key] for key in keys if key in options[name]} for name in plain}
    assert ArgumentSpecValidator(typed).validate(plain).error_messages == []
    assert [n for n, o in options.items() if o["type"] == "list" and "elements" not in o] == []
    converts = {"int": int, "bool": bool, "dict": dict, "list": list}
    for name, default in plain.items():
        wanted = converts.get(options[name]["type"], str)
        assert isinstance(default, wanted) and isinstance(default, bool) == (wanted is bool), name
    assert all(name.startswith(role + "_") for name in options)


def test_the_example_inventory_names_every_variable_once_with_its_default() -> None:
    text = (ANSIBLE / "inventories/example/group_vars/all.yml").read_text()
    set_here = yaml.safe_load(text)
    named = re.findall(r"^(?:# )?([a-z]+_[a-z0-9_]+):", text, re.MULTILINE)
    known = {name: o["default"] for role in ROLES for name, o in specs_of(role)["options"].items()}
    assert sorted(named) == sorted(known | dict.fromkeys(filters_of("preflight").SHARED))
    for name in set(named) & set(known) - set(set_here):
        line = re.search(rf"^# ({name}: .*)$", text, re.MULTILINE)
        assert line is not None and yaml.safe_load(line[1]) == {name: known[name]}, name


def test_a_good_inventory_has_no_fault(inventory: tuple[dict[str, Any], dict[str, list[str]]]) -> None:
    assert faults_of(*inventory) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serve_supervisr": "systemd"}, ["serve_supervisr", "serve_supervisor"]),
        ({"ansible_host": "192.0.2.1"}, ["a, b", "192.0.2.1"]),
        ({"megamoe_wave_size": 3}, ["megamoe_wave_size", "not the same", "3 for a; 1 for b"]),
        ({"megamoe_canary": "b"}, ["megamoe_canary", "not the same", "b for a; a for b"]),
        ({"serve_supervisor": "systemdd"}, ["a: value of serve_supervisor must be one of: systemd", "systemdd"]),
        ({"serve_ready_timeout_s": "soon"}, ["a:", "serve_ready_timeout_s", "soon"]),
        ({"gateway_packages": {"haproxy": 1}}, ["a:", "gateway_packages"]),
        ({"megamoe_node_address": "192.0.2.1"}, ["a, b: the gateway would reach all of them at 192.0.2.1"]),
        ({"serve_address": "192.0.2.1"}, ["a, b: the gateway would reach", "192.0.2.1"]),
        ({"validate_dataset": "/nowhere.jsonl"}, ["/nowhere.jsonl"]),
        ({"validate_baseline": "/nowhere/run"}, ["a:", "/nowhere/run", "megamoe gsm8k"]),
        ({"serve_cli": "megamoe-of-another-life"}, ["a:", "megamoe-of-another-life", "pip install"]),
        ({"megamoe_deploy": None}, ["megamoe_deploy"]),
    ],
    ids=["unknown", "one_address", "two_waves", "two_canaries", "no_choice", "no_number", "no_list", "one_server",
         "one_serve_address", "no_questions", "no_baseline", "no_cli", "no_deploy"],
)
def test_a_bad_inventory_is_refused_with_host_and_value(
    inventory: tuple[dict[str, Any], dict[str, list[str]]], change: dict[str, Any], words: list[str]
) -> None:
    hostvars, groups = inventory
    hostvars["a"].update(change)
    faults = faults_of(hostvars, groups)
    assert len(faults) == 1, faults
    assert all(word in faults[0] for word in words)


def test_a_wave_of_nobody_and_a_canary_that_is_no_node_are_refused(
    inventory: tuple[dict[str, Any], dict[str, list[str]]],
) -> None:
    hostvars, groups = inventory
    for variables in hostvars.values():
        variables |= {"megamoe_wave_size": 0, "megamoe_canary": "z"}
    wave, canary = faults_of(hostvars, groups)
    assert "megamoe_wave_size is 0" in wave and "at least 1" in wave
    assert "megamoe_canary is 'z', which is not in megamoe_nodes (a, b)" in canary
    hostvars["c"] = {"ansible_host": "192.0.2.0"}
    assert any("a, c have one address" in f for f in faults_of(hostvars, {**groups, "megamoe_gateway": ["c"]}))


def test_a_host_of_both_groups_and_a_group_that_nobody_reads_are_refused(
    inventory: tuple[dict[str, Any], dict[str, list[str]]],
) -> None:
    hostvars, groups = inventory
    (both,) = faults_of(hostvars, {**groups, "megamoe_gateway": ["b"]})
    assert "b: in megamoe_nodes and in megamoe_gateway" in both
    (slip,) = faults_of(hostvars, {**groups, "megamoe_gateways": ["c"]})
    assert "megamoe_gateways" in slip and "Did you mean megamoe_gateway?" in slip


def test_a_node_is_not_refused_for_what_its_own_release_holds() -> None:
    facts = {
        "listening_ports": [22, 8000, 8006, 29500],
        "containers": [{"name": "megamoe", "gpu": True}, {"name": "x", "gpu": True}],
        "gpus": [{"id": 0, "vram_total_mb": 10, "vram_used_mb": 9}], "kfd_processes": [{"pid": 1, "vram_mb": 9}],
    }  # fmt: skip
    deploy = {"args": {"port": 8000}}
    own = filters_of("preflight").foreign_facts(facts, {"state": "serving", "port": 8000}, deploy)
    assert own["listening_ports"] == [22] and [c["name"] for c in own["containers"]] == ["x"]
    assert "vram_used_mb" not in own["gpus"][0] and "kfd_processes" not in own
    # Nothing is recorded, or the engine does not run our container: then whoever holds the port is a stranger.
    assert filters_of("preflight").foreign_facts(facts, {}, deploy) == facts
    gone = {**facts, "containers": []}
    assert filters_of("preflight").foreign_facts(gone, {"state": "serving", "port": 8000}, deploy) == gone


def test_every_port_that_preflight_asks_for_is_forgiven_to_the_running_release() -> None:
    """Otherwise no serving node could be upgraded: the internal port and ATOM's 29500 are taken, too."""
    filters = filters_of("preflight")
    assert (filters.PORT, filters.INTERNAL_PORT, filters.DP_PORT) == (PORT, INTERNAL_PORT, DP_PORT)
    text = (ANSIBLE.parent / "tests/cases/base.yml").read_text()
    for change in ({}, {"port": 9000}, {"internal_port": 9001}):
        raw = yaml.safe_load(text)
        raw["args"] |= change
        deploy = parse_deploy(yaml.safe_dump(raw)).deploy
        taken = [deploy.args.port, deploy.args.internal_port, DP_PORT]
        held = {"listening_ports": taken, "containers": [{"name": "megamoe"}]}
        raw["args"] = change  # as group_vars give it: what is left out has its default
        assert len(ports(held, deploy)) == 1
        assert ports(filters_of("preflight").foreign_facts(held, {"state": "serving"}, raw), deploy) == []


def test_a_lock_is_left_behind_only_when_its_owner_is_known_to_be_gone() -> None:
    preflight = filters_of("preflight")
    mine = preflight.lock_owner("site.yml")
    assert f"process {mine['pid']}" in mine["who"]
    assert not preflight.lock_has_ended(mine, 10**9, 60, "")  # alive on this machine, whatever its age
    assert preflight.lock_has_ended({**mine, "started_ticks": "1"}, 0, 60, "")  # the number is another process now
    assert preflight.lock_has_ended({**mine, "pid": 2**22 + 1}, 0, 60, "")
    other = {**mine, "machine": "elsewhere", "id": "elsewhere:1:1"}
    assert not preflight.lock_has_ended(other, 59, 60, "")
    assert preflight.lock_has_ended(other, 61, 60, "")
    assert preflight.lock_has_ended(other, 0, 60, "elsewhere:1:1")
    assert not preflight.lock_has_ended(other, 0, 60, "someone else")


def test_of_two_playbooks_that_come_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run/lock.json"
    script = ANSIBLE / "library/megamoe_node_lock.py"

    def ask(**params: Any) -> subprocess.Popen[str]:
        body = json.dumps({"ANSIBLE_MODULE_ARGS": {"path": str(path), "_ansible_remote_tmp": str(tmp_path), **params}})
        return subprocess.Popen([sys.executable, str(script), body], stdout=subprocess.PIPE, text=True)

    def told(process: subprocess.Popen[str]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(process.communicate(timeout=60)[0])
        return answer

    both = [ask(owner={"id": str(i), "who": f"owner {i}"}, state="held") for i in range(4)]
    results = [told(p) for p in both]
    assert sorted(r["held"] for r in results) == [False, False, False, True]
    winner = next(i for i, r in enumerate(results) if r["held"])
    assert {r["holder"]["who"] for r in results} == {f"owner {winner}"}
    assert not told(ask(owner={"id": "x"}, state="free"))["held"] and path.exists()  # not ours to give back
    taken = told(ask(owner={"id": "x", "who": "x"}, state="held", replace=str(winner)))
    assert taken["held"] and taken["taken_over"]
    told(ask(owner={"id": "x"}, state="free"))
    assert not path.exists() and list(path.parent.iterdir()) == []


def servers_in(text: str) -> dict[str, bool]:
    """Server -> whether it gets requests, of a configuration."""
    lines = [line for line in text.splitlines() if line.strip().startswith("server ")]
    return {line.split()[1]: not line.endswith(" disabled") for line in lines}


def test_only_nodes_recorded_as_serving_get_requests() -> None:
    text = gateway_config({"good": "serving", "bad": "stopped", "half": "deploying", "out": "drained", "new": ""})
    assert servers_in(text) == {"good": True, "bad": False, "half": False, "out": False, "new": False}


def test_a_node_that_this_run_does_not_read_stays_as_the_gateway_has_it() -> None:
    before = gateway_config({"a": "serving", "b": "stopped"})
    deploy = {"megamoe_deploy": {"args": {"port": 8000}}, "ansible_host": "192.0.2.1"}
    read = {**deploy, "preflight_result": {"state": {"state": "serving", "port": 8000}}}
    servers = servers_of({"a": deploy, "b": deploy, "c": read}, ["a", "b", "c"], before)
    assert {s["name"]: s["enabled"] for s in servers} == {"a": True, "b": False, "c": True}


def play(tmp_path: Path, playbook: str, inventory_text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a playbook against an inventory file, with Ansible's own state under tmp_path."""
    path = tmp_path / "hosts.yml"
    path.write_text(inventory_text)
    # Roles call megamoe, which stands beside this Python.
    search = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    own = {"PATH": search, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")}
    env = {**os.environ, **own, "ANSIBLE_NOCOLOR": "1"}
    argv = [program("ansible-playbook"), "-i", str(path), str(ANSIBLE / playbook), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, cwd=ANSIBLE)


def test_a_play_that_any_error_ends_ends_the_playbook_when_a_host_is_lost_too() -> None:
    """ansible-core 2.19 plays the next play after a lost host unless max_fail_percentage is set, too."""
    plays = [(path.name, play) for path in (ANSIBLE / "site.yml", *(ANSIBLE / "playbooks").glob("*.yml"))
             for play in yaml.safe_load(path.read_text())]  # fmt: skip
    fatal = [(name, play) for name, play in plays if play.get("any_errors_fatal")]
    assert len(fatal) > 4
    assert [(name, play["name"]) for name, play in fatal if play.get("max_fail_percentage") != 0] == []


def test_a_play_whose_roles_reload_something_does_so_though_a_later_task_fails() -> None:
    """Otherwise the file is new, the program runs the old one, and the next run finds nothing changed."""
    roles = {p.parents[1].name for p in ANSIBLE.glob("roles/*/handlers/main.yml")}
    assert roles == {"container_engine", "gateway"}
    plays = [(path.name, play) for path in (ANSIBLE / "site.yml", *(ANSIBLE / "playbooks").glob("*.yml"))
             for play in yaml.safe_load(path.read_text())]  # fmt: skip
    using = [(name, play) for name, play in plays if roles & {r["role"] for r in play.get("roles", [])}]
    assert len(using) == 2 and all(play.get("force_handlers") is True for _, play in using)


def test_no_play_that_a_limit_would_leave_out_asks_judges_or_shows() -> None:
    """--limit NODE leaves out a play of localhost: teardown once removed a node unasked."""
    plays = [(path.name, play) for path in (ANSIBLE / "site.yml", *(ANSIBLE / "playbooks").glob("*.yml"))
             for play in yaml.safe_load(path.read_text())]  # fmt: skip
    local = [(name, play["name"]) for name, play in plays if play.get("hosts") == "localhost"]
    # observability.yml asks no host; what site.yml checks there, preflight checks where a limit left it out.
    assert local == [
        ("site.yml", "Check the inventory"),
        ("observability.yml", "Write what Prometheus and Grafana need"),
    ]


@pytest.mark.slow
def test_ansible_lint_finds_nothing_in_profile_production_and_nothing_is_skipped(tmp_path: Path) -> None:
    env = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH', '')}"
    argv = [program("ansible-lint"), "--offline", "--nocolor", "--strict", "--profile", "production", "."]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=env, cwd=ANSIBLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed: 0 failure(s), 0 warning(s)" in done.stderr
    texts = {path: path.read_text() for path in ANSIBLE.rglob("*.yml")}
    assert [path for path, text in texts.items() if "noqa" in text or "skip_ansible_lint" in text] == []
    configs = (".ansible-lint", ".ansible-lint.yml", ".config/ansible-lint.yml", ".ansible-lint-ignore")
    assert [c for c in configs for folder in (ANSIBLE, ANSIBLE.parent) if (folder / c).exists()] == []


def test_an_empty_inventory_does_not_end_green(tmp_path: Path) -> None:
    done = play(tmp_path, "site.yml", "all: {}\n")
    assert done.returncode != 0
    assert "megamoe_nodes has no host" in done.stdout + done.stderr


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, Any]:
    """Variables with which this machine can stand for a node whose preflight passes."""
    (tmp_path / "q.jsonl").write_text("{}\n")
    deploy = yaml.safe_load((ANSIBLE / "inventories/rehearsal/group_vars/all.yml").read_text())["megamoe_deploy"]
    deploy |= {"image": "registry.test/x@sha256:" + "1" * 64, "env": {}, "args": {**deploy["args"], "port": 47123}}
    return {
        "validate_dataset": str(tmp_path / "q.jsonl"), "validate_policy": "rehearsal", "ansible_become": False,
        "preflight_disk_gib": {"/": 0}, "preflight_lock_path": str(tmp_path / "lock/l.json"),
        "megamoe_state_dir": str(tmp_path / "state"), "serve_supervisor": "container", "megamoe_deploy": deploy,
        "ansible_python_interpreter": sys.executable,
    }  # fmt: skip


LATER = ("host_tuning", "container_engine", "model", "rollout")


def inventory_of(shared: dict[str, Any], **nodes: dict[str, Any]) -> str:
    return yaml.safe_dump({"all": {"children": {"megamoe_nodes": {"hosts": nodes}}, "vars": shared}}, width=10**6)


def test_a_host_without_ssh_is_refused_by_name_before_any_change(tmp_path: Path, shared: dict[str, Any]) -> None:
    with socket.socket() as closed:  # bound, not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        lost = {"ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}
        here = {"ansible_connection": "local", "ansible_host": "here"}
        done = play(tmp_path, "site.yml", inventory_of(shared, lost=lost, here=here))
    assert done.returncode != 0
    assert "lost (127.0.0.1) does not answer over SSH" in done.stdout, done.stdout
    assert "Nothing was changed on any host" in done.stdout
    # The reachable node is not touched either: no task of a later role ran on it, and it is not locked.
    for role in LATER:
        assert f"TASK [{role}" not in done.stdout
    assert not (tmp_path / "lock").exists() and not (tmp_path / "state").exists()


def test_one_look_names_every_mistake_of_the_inventory(tmp_path: Path, shared: dict[str, Any]) -> None:
    wrong = {"serve_supervisr": "x", "megamoe_wave_size": 0, "validate_policy": "v4-pro-fusd"}
    one = {"ansible_connection": "local", "ansible_host": "192.0.2.1"}
    done = play(tmp_path, "site.yml", inventory_of({**shared, **wrong}, n1=one, n2=one))
    assert done.returncode != 0
    for words in ("Refused before the first change", "n1, n2: no role knows the variable serve_supervisr",
                  "n1, n2 have one address, 192.0.2.1", "megamoe_wave_size is 0"):  # fmt: skip
        assert words in done.stdout, words
    policy = {**shared, "validate_policy": "v4-pro-fusd"}
    done = play(tmp_path, "site.yml", inventory_of(policy, n1={"ansible_connection": "local"}))
    assert done.returncode != 0
    assert "there is no policy named 'v4-pro-fusd'" in done.stdout and "use 'v4-pro-fused'" in done.stdout
    assert "n1" in done.stdout and "TASK [preflight : Reach" not in done.stdout


def test_a_secret_that_cannot_be_read_is_refused_with_the_way_to_the_vault(
    tmp_path: Path, shared: dict[str, Any]
) -> None:
    (tmp_path / "password").write_text("canary-password\n")
    argv = [program("ansible-vault"), "encrypt_string", "--vault-password-file", str(tmp_path / "password")]
    env = {**os.environ, "ANSIBLE_HOME": str(tmp_path / "home")}
    made = subprocess.run([*argv, "canary-key-5d1e"], capture_output=True, text=True, timeout=60, env=env)
    assert made.returncode == 0, made.stderr
    text = inventory_of(shared, n1={"ansible_connection": "local"})
    vaulted = text + "    megamoe_api_key: " + made.stdout.replace("\n", "\n    ").rstrip() + "\n"
    missing = play(tmp_path, "site.yml", vaulted)
    assert missing.returncode != 0
    assert "n1: the value of megamoe_api_key cannot be read" in missing.stdout and "--ask-vault-pass" in missing.stdout
    undefined = play(tmp_path, "site.yml", inventory_of({**shared, "megamoe_api_key": "{{ vault_key }}"},
                                                        n1={"ansible_connection": "local"}))  # fmt: skip
    assert undefined.returncode != 0
    assert "megamoe_api_key cannot be read" in undefined.stdout and "ansible-vault create" in undefined.stdout
