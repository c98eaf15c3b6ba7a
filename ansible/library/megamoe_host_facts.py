"""Reads what decides whether a node can serve, in one round trip; changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_host_facts
short_description: Facts of a GPU node in the shape that megamoe plan and preflight read, and its release records
description: >-
  The facts are those of C(megamoe preflight --collect), read by the same file. Free disk, release records and state
  of the node come with them. Reads only.
options:
  paths:
    description: Directories whose file system is measured.
    type: list
    elements: str
    default: []
  model_path:
    description: Directory of the checkpoint.
    type: str
    default: ""
  state_dir:
    description: Directory of the release records.
    type: str
    required: true
"""

import glob
import importlib.util
import json
import os
import socket

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.megamoe_collect_facts import collect, read, space


def loaded(path):
    """The JSON object in a file; {} when it is absent or torn, which reads as "nothing recorded"."""
    try:
        value = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def free_gib(path):
    """Free space of the file system that holds path or its nearest existing parent, GiB."""
    found = space(path)
    return round(found["free_bytes"] / 2**30, 1) if found else 0.0


def answers(path):
    """True when somebody listens on a UNIX socket: its file outlives an engine that was stopped or removed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(5)
        try:
            link.connect(path)
        except OSError:
            return False
    return True


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "str", "default": []},
            "model_path": {"type": "str", "default": ""},
            "state_dir": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    state_dir = module.params["state_dir"]
    records = sorted(glob.glob(os.path.join(state_dir, "releases", "*.json")))
    module.exit_json(
        changed=False,
        facts=collect(module.params["model_path"]),
        disk_free_gib={path: free_gib(path) for path in module.params["paths"]},
        # A torn record is none: nobody can go back to it.
        records={os.path.basename(path)[:-5]: loaded(path) for path in records if loaded(path)},
        state=loaded(os.path.join(state_dir, "state.json")),
        has_systemd=os.path.isdir("/run/systemd/system"),
        has_engine=answers("/var/run/docker.sock"),
        # Ansible's apt module needs its binding to say what it would do; when it installs, it fetches that by itself.
        can_check_packages=not os.path.exists("/usr/bin/apt-get") or importlib.util.find_spec("apt") is not None,
    )


if __name__ == "__main__":
    main()
