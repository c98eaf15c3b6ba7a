"""Finds the mistakes of an inventory on the controller, before any host is asked."""

from __future__ import annotations

import difflib
import getpass
import json
import os
import platform
import re
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

# Read by playbooks, not by one role, so no argument_specs lists them.
SHARED = {
    "megamoe_deploy", "megamoe_wave_size", "megamoe_canary", "megamoe_state_dir", "megamoe_node_address",
    "megamoe_api_key", "megamoe_release", "megamoe_break_lock",
}  # fmt: skip
GROUPS = ("megamoe_nodes", "megamoe_gateway")
INTERNAL = re.compile(r"megamoe_rehearsal_|megamoe_stage_|[a-z_]+_(facts|result|spec)$")
# What `megamoe preflight` asks to be free on an ATOM node; a test holds the numbers against its own.
PORT, INTERNAL_PORT, DP_PORT = 8000, 8006, 29500
Hostvars = Mapping[str, Mapping[str, Any]]


def options_of(roles: str) -> dict[str, dict[str, Any]]:
    """Role -> the variables that its argument_specs.yml lists, with their specification."""
    found = {}
    for path in sorted(Path(roles).glob("*/meta/argument_specs.yml")):
        specs = yaml.safe_load(path.read_text())["argument_specs"]
        options = [item for spec in specs.values() for item in spec.get("options", {}).items()]
        found[path.parents[1].name] = dict(options)
    return found


def inventory_faults(hostvars: Hostvars, groups: Mapping[str, list[str]], roles: str) -> list[str]:
    """One sentence per mistake, with hosts and the fix; empty when the inventory can be used.

    Args:
        hostvars: variables by host, as Ansible has them.
        groups: hosts by group.
        roles: directory of the roles; the options of their argument_specs.yml are the known variables.
    """
    nodes = list(groups.get("megamoe_nodes", []))
    if not nodes:
        return ["Group megamoe_nodes has no host. Add the nodes to it.", *_groups(groups)]
    by_role = options_of(roles)
    known = SHARED.union(*by_role.values())
    every = [*nodes, *groups.get("megamoe_gateway", [])]
    faults = _unreadable(hostvars, every, known) + _unknown(hostvars, every, known, {"megamoe", *by_role})
    values = {host: _Reader(hostvars[host]) for host in every}
    faults += _wrong(values, every, by_role)
    faults += _addresses(hostvars, nodes, every) + _groups(groups)
    faults += _waves(values, nodes)
    faults += _grouped(
        nodes,
        lambda host: values[host]("validate_dataset", ""),
        lambda path: not Path(str(path)).is_file(),
        "validate_dataset is {!r}, which is no file on the controller. The gate cannot decide without questions: set "
        "it to a file in GSM8K JSONL form.",
    )
    faults += _grouped(
        nodes,
        lambda host: values[host]("validate_baseline", ""),
        lambda path: bool(path) and not Path(str(path)).exists(),
        "validate_baseline is {!r}, which is not on the controller. The paired comparison needs the answers of a good "
        "run: make them with `megamoe gsm8k`, or set it to ''.",
    )
    faults += _grouped(
        nodes,
        lambda host: values[host]("serve_cli", "megamoe"),
        lambda cli: shutil.which(str(cli)) is None,
        "serve_cli is {!r}, which is no command on the controller's PATH. Plan, gate and checks are its verbs: run "
        "`pip install .` in the checkout, or set serve_cli to its path.",
    )
    missing = [host for host in nodes if not isinstance(values[host]("megamoe_deploy", None), Mapping)]
    if missing:
        faults.append(f"{', '.join(missing)}: megamoe_deploy is missing or no mapping. See inventories/example.")
    return faults


class _Reader:
    """A host's variables; what cannot be read counts as absent here and is reported once, by _unreadable."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.variables = variables

    def __call__(self, name: str, default: Any) -> Any:
        try:
            value = self.variables[name]
            str(value)  # a vaulted value is decrypted when it is read, not when it is fetched
        except Exception:  # Ansible raises several kinds here, of which only some are public
            return default
        return value


def _unreadable(hostvars: Hostvars, hosts: list[str], known: set[str]) -> list[str]:
    """Variables of ours without a value: the vault's password is missing, or a template names what is not there."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host in hosts:
        for name in sorted(set(hostvars[host]) & known):
            try:
                str(hostvars[host][name])
            except Exception as error:  # any kind of failure is the same fault to a person
                text = " ".join(str(error).split())
                found[name, text].append(host)
    faults = []
    for (name, text), where in found.items():
        vault = "vault" in text.lower() or "decrypt" in text.lower()
        fix = (
            "Give the password: --ask-vault-pass or --vault-password-file FILE; where the variable is defined nowhere, "
            "create it with `ansible-vault create`."
            if vault
            else "Define what it refers to; a secret belongs in a file of `ansible-vault create` beside group_vars."
        )
        faults.append(f"{', '.join(where)}: the value of {name} cannot be read ({text[:200]}). {fix}")
    return faults


def _unknown(hostvars: Hostvars, hosts: list[str], known: set[str], prefixes: set[str]) -> list[str]:
    """Variables with a prefix of ours that no role reads: a slip of the pen would leave the default in force."""
    pattern = re.compile(f"(?:{'|'.join(sorted(prefixes))})_")
    unknown: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        for name in hostvars[host]:
            if pattern.match(name) and name not in known and not INTERNAL.match(name):
                unknown[name].append(host)
    faults = []
    for name, where in sorted(unknown.items()):
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f" Did you mean {near[0]}?" if near else " Remove it."
        faults.append(f"{', '.join(where)}: no role knows the variable {name}.{hint}")
    return faults


def _wrong(values: Mapping[str, _Reader], hosts: list[str], by_role: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Values that are not of the type or the choices of their argument_specs.yml.

    Ansible itself checks a role's arguments when its turn comes, and never those of one entered by tasks_from.
    """
    found: dict[str, list[str]] = defaultdict(list)
    options = {name: spec for role in by_role.values() for name, spec in role.items()}
    for host in hosts:
        absent = object()
        given = {name: values[host](name, absent) for name in options}
        given = {name: value for name, value in given.items() if value is not absent}
        keys = ("type", "elements", "choices")
        specs = {name: {key: options[name][key] for key in keys if key in options[name]} for name in given}
        for error in ArgumentSpecValidator(specs).validate(given).error_messages:
            found[error].append(host)
    return [f"{', '.join(where)}: {error[:300]}. See inventories/example." for error, where in found.items()]


def _addresses(hostvars: Hostvars, nodes: list[str], every: list[str]) -> list[str]:
    """One machine under two names, and one server that the gateway would count twice."""
    machines: dict[str, list[str]] = defaultdict(list)
    servers: dict[str, list[str]] = defaultdict(list)
    for host in every:
        address = str(hostvars[host].get("ansible_host", host))
        port = hostvars[host].get("ansible_port", 22)
        machines[address + (f" port {port}" if port != 22 else "")].append(host)
        if host in nodes:
            fallback = hostvars[host].get("megamoe_node_address", address)
            servers[str(hostvars[host].get("serve_address", fallback))].append(host)
    faults = [
        f"{', '.join(hosts)} have one address, {address}. Give each host its own ansible_host."
        for address, hosts in machines.items()
        if len(set(hosts)) > 1
    ]
    named = set(map(tuple, machines.values()))
    return faults + [
        f"{', '.join(hosts)}: the gateway would reach all of them at {address} and take one server for several. "
        "Give each its own megamoe_node_address."
        for address, hosts in servers.items()
        if len(hosts) > 1 and tuple(hosts) not in named
    ]


def _groups(groups: Mapping[str, list[str]]) -> list[str]:
    """A host of both groups, and a group whose name no playbook knows: its hosts would silently be left out."""
    faults = []
    both = sorted(set(groups.get("megamoe_nodes", [])) & set(groups.get("megamoe_gateway", [])))
    if both:
        faults.append(
            f"{', '.join(both)}: in megamoe_nodes and in megamoe_gateway. A node that is drained or rebooted would "
            "take the gateway with it: put each host into one of the two groups."
        )
    for name in sorted(groups):
        if name.startswith("megamoe_") and name not in GROUPS and not name.startswith("megamoe_stage_"):
            near = difflib.get_close_matches(name, GROUPS, n=1)
            faults.append(
                f"{', '.join(groups[name])}: no playbook knows the group {name}. "
                + (f"Did you mean {near[0]}?" if near else f"The groups are {' and '.join(GROUPS)}.")
            )
    return faults


def _waves(values: Mapping[str, _Reader], nodes: list[str]) -> list[str]:
    faults = []
    for name, default in {"megamoe_wave_size": 1, "megamoe_canary": nodes[0]}.items():
        told: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            told[str(values[node](name, default))].append(node)
        if len(told) > 1:
            each = "; ".join(f"{value} for {', '.join(where)}" for value, where in told.items())
            faults.append(
                f"{name} is not the same for all nodes ({each}). It is one for the roll-out: set it for the group."
            )
    wave = values[nodes[0]]("megamoe_wave_size", 1)
    if isinstance(wave, bool) or not str(wave).isdigit() or int(wave) < 1:
        faults.append(f"megamoe_wave_size is {wave!r}. It counts nodes per wave: give a whole number of at least 1.")
    canary = values[nodes[0]]("megamoe_canary", nodes[0])
    if canary not in nodes:
        faults.append(f"megamoe_canary is {canary!r}, which is not in megamoe_nodes ({', '.join(nodes)}).")
    return faults


def _grouped(
    hosts: list[str], value_of: Callable[[str], Any], is_bad: Callable[[Any], bool], sentence: str
) -> list[str]:
    """One sentence per bad value, with the hosts that have it."""
    found: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        value = value_of(host)
        if is_bad(value):
            found[str(value)].append(host)
    return [f"{', '.join(where)}: {sentence.format(value)}" for value, where in found.items()]


def policy_faults(results: list[Mapping[str, Any]], probe: str) -> list[str]:
    """What `megamoe gate` says against the policies of validate_policy.

    It was asked to judge evidence at `probe`, where there is none: a policy that can be used gets as far as that.

    Args:
        results: of the looped command; stdout is the envelope.
        probe: the path that was given as evidence.
    """
    faults = []
    for result in results:
        try:
            finding = json.loads(result.get("stdout") or "{}")["findings"][0]
        except (ValueError, LookupError):
            said = str(result.get("stderr") or result.get("stdout") or result.get("msg") or "nothing")
            text = " ".join(said.split())[-200:]
            faults.append(f"validate_policy {result.get('item')!r} could not be read: megamoe gate said {text}")
            continue
        if not finding["what"].startswith(probe):
            faults.append(f"validate_policy: {finding['what']}: {finding['why']}. Fix: {finding['fix']}.")
    return faults


def foreign_facts(facts: Mapping[str, Any], state: Mapping[str, Any], deploy: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a node without what is this service's own doing, so that a converged node is not refused for serving.

    Its ports are taken by itself, and its memory is used by itself. Where a recorded release runs (or the engine cannot
    say), the ports, the container and (as nobody can tell its memory from a stranger's) the VRAM in use are left out:
    unknown, not free.
    """
    result = dict(facts)
    name = (deploy.get("container") or {}).get("name", "megamoe")
    running = facts.get("containers")
    runs = isinstance(running, list) and any(c.get("name") == name for c in running)
    # Where the engine answers and does not run our container, a taken port is a stranger's whatever the record says.
    if not state or (isinstance(running, list) and not runs):
        return result
    args = deploy.get("args") or {}
    ours = {int(state.get("port", 0)), DP_PORT}
    ours |= {int(args.get("port", PORT)), int(args.get("internal_port", INTERNAL_PORT))}
    if isinstance(facts.get("listening_ports"), list):
        result["listening_ports"] = [port for port in facts["listening_ports"] if port not in ours]
    if runs:
        result["containers"] = [c for c in running if c.get("name") != name]
        result["gpus"] = [{k: v for k, v in g.items() if k != "vram_used_mb"} for g in facts.get("gpus") or []] or None
        result.pop("kfd_processes", None)
    return {key: value for key, value in result.items() if value is not None}


def _started(pid: int) -> str:
    """When a process started, in ticks since boot, so that a number used again is not taken for it; "" when unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _playbook_pid() -> int:
    """The ansible-playbook process: filters run in forks of it, which carry its command line."""
    pid = os.getpid()
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        while True:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(f"/proc/{parent}/cmdline").read_bytes() != line:
                return pid
            pid = parent
    except (OSError, IndexError, ValueError):
        return os.getppid()  # no /proc on this controller


def lock_owner(playbook: str) -> dict[str, Any]:
    """Who runs this playbook: an identity that no other run has, and what a person wants to know about it."""
    pid = _playbook_pid()
    machine = socket.gethostname()
    began = _started(pid)
    return {
        "id": f"{machine}:{pid}:{began}",
        "machine": machine,
        "pid": pid,
        "started_ticks": began,
        "who": f"{getpass.getuser()} on {machine} (process {pid}, {playbook})",
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def lock_has_ended(holder: Mapping[str, Any], age_s: int, lease_s: int, broken: str) -> bool:
    """True when a lock's owner is known to be gone: its process ended, its lease ran out, or a person named it so."""
    if broken and broken in (holder.get("id"), holder.get("who")):
        return True
    if holder.get("machine") == socket.gethostname() and platform.system() == "Linux":
        return _started(int(holder.get("pid", 0))) != holder.get("started_ticks")
    return age_s > lease_s


class FilterModule:
    """Ansible's hook."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "preflight_inventory_faults": inventory_faults,
            "preflight_policy_faults": policy_faults,
            "preflight_foreign_facts": foreign_facts,
            "preflight_lock_owner": lock_owner,
            "preflight_lock_has_ended": lock_has_ended,
        }
