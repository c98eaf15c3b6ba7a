"""The gateway's list of servers, from the release records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SERVER = re.compile(
    r"^\s+server (?P<name>\S+) (?P<address>\S+):(?P<port>\d+) check(?P<out> disabled)?\s*$", re.MULTILINE
)


def servers(hostvars: Mapping[str, Mapping[str, Any]], nodes: list[str], config: str) -> list[dict[str, Any]]:
    """Every node of the inventory as a server; only those recorded as serving are enabled.

    A node that this run does not read (--limit) stays as the gateway has it now: nothing was learnt about it.

    Args:
        hostvars: variables by host; preflight_result is there when the node was read, rollout_state when changed.
        nodes: hosts of megamoe_nodes.
        config: HAProxy's configuration as it is on the gateway; "" on a first run.
    """
    now = {found["name"]: found for found in SERVER.finditer(config)}
    result = []
    for node in nodes:
        variables = hostvars[node]
        port = (variables["megamoe_deploy"].get("args") or {}).get("port", 8000)
        enabled = node in now and now[node]["out"] is None
        if "preflight_result" in variables and "state" in variables["preflight_result"]:
            state = variables.get("rollout_state", variables["preflight_result"]["state"])
            enabled = state.get("state") == "serving"
            port = state.get("port", port) if enabled else port
        elif node in now:
            port = now[node]["port"]
        # The default of serve_address, which is not among the variables of a host that does not set it.
        fallback = variables.get("megamoe_node_address", variables.get("ansible_host", node))
        address = variables.get("serve_address", fallback)
        result.append({"name": node, "address": str(address), "port": int(port), "enabled": enabled})
    return result


def quoted(text: str) -> str:
    """One word of HAProxy's configuration, whatever it holds: in single quotes, where nothing else has a meaning."""
    return "'" + text.replace("'", "'\\''") + "'"


class FilterModule:
    """Ansible's hook."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {"gateway_servers": servers, "gateway_quoted": quoted}
