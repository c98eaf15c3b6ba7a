"""The gateway's configuration as its role renders it, without Ansible."""

from __future__ import annotations

import importlib.util
from typing import Any

import jinja2
import yaml
from simulated import ANSIBLE


def servers_of(hostvars: dict[str, Any], nodes: list[str], config: str = "") -> list[dict[str, Any]]:
    """gateway_servers of the role's filter plugin."""
    spec = importlib.util.spec_from_file_location("gateway", ANSIBLE / "roles/gateway/filter_plugins/gateway.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.servers(hostvars, nodes, config)  # type: ignore[no-any-return]


def gateway_config(states: dict[str, str], **values: Any) -> str:
    """haproxy.cfg for nodes with these recorded states."""
    defaults = yaml.safe_load((ANSIBLE / "roles/gateway/defaults/main.yml").read_text())
    hostvars: dict[str, Any] = {
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
    given = {**defaults, "gateway_model": "/models/x", "gateway_api_key": "", **values}
    return template.render(**given, gateway_servers=servers_of(hostvars, list(states)), ansible_managed="test")
