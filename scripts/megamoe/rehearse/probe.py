"""What is really served at the end, asked from the gateway and from the nodes' engines, not from what Ansible said."""

from __future__ import annotations

import csv
import io
import json

from megamoe.rehearse.engine import docker
from megamoe.rehearse.settings import PREFIX, Settings

ASK_HAPROXY = (
    "for s in /run/haproxy/*.sock /run/haproxy*.sock /run/megamoe-gateway/*.sock; do "
    '[ -S "$s" ] && { echo "show stat" | socat -t 5 - "UNIX-CONNECT:$s"; exit 0; }; done'
)


def up_servers(stat_csv: str) -> list[str]:
    """Names of servers that HAProxy would send requests to, from the CSV of `show stat`. UP covers "UP 1/2" too.

    Source: HAProxy management guide, section 9.1: column svname is the server, status its state.
    """
    text = stat_csv.strip()
    if not text.startswith("# "):
        return []
    rows = csv.DictReader(io.StringIO(text[2:]))
    return sorted(
        {
            r["svname"]
            for r in rows
            if r["svname"] not in ("FRONTEND", "BACKEND") and (r["status"] or "").startswith("UP")
        }
    )


def gateway_backends(settings: Settings) -> list[str]:
    """Nodes that the gateway sends requests to now; empty when no gateway runs."""
    return up_servers(docker("exec", PREFIX + "gateway", "sh", "-c", ASK_HAPROXY, check=False))


def faulty_nodes(settings: Settings) -> list[str]:
    """Nodes on which a container runs that carries this run's fault in its environment."""
    if settings.fault == "none":
        return []
    found = []
    for name in settings.node_names():
        running = docker("exec", PREFIX + name, "docker", "ps", "--quiet", check=False).split()
        if not running:
            continue
        text = docker("exec", PREFIX + name, "docker", "inspect", *running, check=False)
        containers = json.loads(text) if text.strip().startswith("[") else []
        if any(f"MEGAMOE_REHEARSAL_FAULT={settings.fault}" in (c["Config"].get("Env") or []) for c in containers):
            found.append(name)
    return found
