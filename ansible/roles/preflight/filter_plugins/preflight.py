"""Finds the mistakes of an inventory on the controller, before any host is asked."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

# Read by playbooks, not by one role, so no argument_specs lists them.
SHARED = {
    "megamoe_deploy", "megamoe_wave_size", "megamoe_canary", "megamoe_state_dir", "megamoe_node_address",
    "megamoe_api_key",
}  # fmt: skip
INTERNAL = re.compile(r"megamoe_rehearsal_|[a-z_]+_(facts|result|spec)$")


def inventory_faults(hostvars: Mapping[str, Any], groups: Mapping[str, list[str]], roles: str) -> list[str]:
    """One sentence per mistake, with hosts and the fix; empty when the inventory can be used.

    Args:
        hostvars: variables by host, as Ansible has them.
        groups: hosts by group.
        roles: directory of the roles; the options of their argument_specs.yml are the known variables.
    """
    nodes = list(groups.get("megamoe_nodes", []))
    if not nodes:
        return ["Group megamoe_nodes has no host. Add the nodes to it."]
    faults = []
    known = set(SHARED)
    prefixes = {"megamoe"}
    for path in sorted(Path(roles).glob("*/meta/argument_specs.yml")):
        options = yaml.safe_load(path.read_text())["argument_specs"]["main"]["options"]
        known |= set(options)
        prefixes.add(path.parents[1].name)
    pattern = re.compile(f"(?:{'|'.join(sorted(prefixes))})_")
    unknown: dict[str, list[str]] = defaultdict(list)
    addresses: dict[str, list[str]] = defaultdict(list)
    for host in [*nodes, *groups.get("megamoe_gateway", [])]:
        for name in hostvars[host]:
            if pattern.match(name) and name not in known and not INTERNAL.match(name):
                unknown[name].append(host)
    for host in nodes:
        addresses[str(hostvars[host].get("ansible_host", host))].append(host)
    for name, hosts in sorted(unknown.items()):
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f" Did you mean {near[0]}?" if near else " Remove it."
        faults.append(f"{', '.join(hosts)}: no role knows the variable {name}.{hint}")
    faults += [
        f"{', '.join(hosts)} have one address, {address}. Give each node its own ansible_host."
        for address, hosts in addresses.items()
        if len(hosts) > 1
    ]
    wave = hostvars[nodes[0]].get("megamoe_wave_size", 1)
    if isinstance(wave, bool) or not str(wave).isdigit() or int(wave) < 1:
        faults.append(f"megamoe_wave_size is {wave!r}. It counts nodes per wave: give a whole number of at least 1.")
    canary = hostvars[nodes[0]].get("megamoe_canary", nodes[0])
    if canary not in nodes:
        faults.append(f"megamoe_canary is {canary!r}, which is not in megamoe_nodes ({', '.join(nodes)}).")
    datasets: dict[str, list[str]] = defaultdict(list)
    for host in nodes:
        datasets[str(hostvars[host].get("validate_dataset", ""))].append(host)
    faults += [
        f"{', '.join(hosts)}: validate_dataset is {path!r}, which is no file on the controller. The gate cannot decide "
        "without questions: set it to a file in GSM8K JSONL form."
        for path, hosts in datasets.items()
        if not Path(path).is_file()
    ]
    missing = [host for host in nodes if not isinstance(hostvars[host].get("megamoe_deploy"), Mapping)]
    if missing:
        faults.append(f"{', '.join(missing)}: megamoe_deploy is missing or no mapping. See inventories/example.")
    return faults


class FilterModule:
    """Ansible's hook."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {"preflight_inventory_faults": inventory_faults}
