"""The gateway's configuration as its role renders it, without Ansible."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import yaml
from simulated import ANSIBLE


def loaded(path: Path) -> ModuleType:
    """A plugin, loaded as Ansible does: by path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filters_at(path: str) -> dict[str, Any]:
    """Filters by name, of a file below ansible/."""
    found: dict[str, Any] = loaded(ANSIBLE / path).FilterModule().filters()
    return found


def servers_of(hostvars: dict[str, Any], nodes: list[str], config: str = "") -> list[dict[str, Any]]:
    """gateway_servers of the role's filter plugin."""
    servers: list[dict[str, Any]] = filters_at("roles/gateway/filter_plugins/gateway.py")["gateway_servers"](
        hostvars, nodes, config
    )
    return servers


def as_this_user(config: str) -> str:
    """The configuration for an HAProxy that a test starts: only root can change its user and root directory."""
    lines = config.splitlines(keepends=True)
    dropped = () if os.geteuid() == 0 else ("user ", "group ", "chroot ")
    return "".join(line for line in lines if not line.strip().startswith(dropped))


def gateway_config(states: dict[str, str], address: str = "192.0.2.1", **values: Any) -> str:
    """haproxy.cfg for nodes at an address with these recorded states."""
    defaults = yaml.safe_load((ANSIBLE / "roles/gateway/defaults/main.yml").read_text())
    hostvars: dict[str, Any] = {
        name: {
            "ansible_host": address,
            "megamoe_deploy": {"args": {"port": 8000}},
            "preflight_result": {"state": {"state": state}},
        }
        for name, state in states.items()
    }
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters |= filters_at("roles/gateway/filter_plugins/gateway.py")
    environment.filters |= filters_at("filter_plugins/addresses.py") | {
        "to_json": json.dumps,
        "dirname": os.path.dirname,
    }
    template = environment.from_string((ANSIBLE / "roles/gateway/templates/haproxy.cfg.j2").read_text())
    given = {**defaults, "gateway_model": "/models/x", "gateway_api_key": "", **values}
    return template.render(**given, gateway_servers=servers_of(hostvars, list(states)), ansible_managed="test")
