"""Moves one server of HAProxy between ready and drain over the runtime socket, and waits until that is true."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_haproxy_server
short_description: Drain a server until it has no session, or make it ready until its health check passes
description: Talks to the runtime API on a UNIX socket. No socket or no such server means there is nothing to drain.
options:
  socket:
    description: Path of the admin socket.
    type: str
    required: true
  backend:
    description: Name of the backend.
    type: str
    required: true
  server:
    description: Name of the server.
    type: str
    required: true
  state:
    description: C(drain) waits for zero sessions, C(ready) waits for UP.
    type: str
    choices: [drain, ready]
    required: true
  timeout_s:
    description: Seconds to wait.
    type: int
    default: 300
"""

import csv
import io
import os
import socket
import time

from ansible.module_utils.basic import AnsibleModule


def ask(path, command):
    """Answer of the runtime API to one command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(path)
        link.sendall(command.encode() + b"\n")
        answer = b""
        while True:
            part = link.recv(65536)
            if not part:
                return answer.decode(errors="replace")
            answer += part


def row(path, backend, server):
    """The server's line of `show stat` as a dict, or None when it is not configured."""
    text = ask(path, "show stat").lstrip("# ")
    for line in csv.DictReader(io.StringIO(text)):
        if line["pxname"] == backend and line["svname"] == server:
            return line
    return None


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "str", "required": True},
            "backend": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "ready"], "required": True},
            "timeout_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    path, backend, server = (module.params[k] for k in ("socket", "backend", "server"))
    wanted = module.params["state"]
    try:
        now = row(path, backend, server) if os.path.exists(path) else None
    except OSError:  # a socket file that a stopped process left behind
        now = None
    if now is None:
        if wanted == "ready":
            module.fail_json(msg=f"{server} is not a server of HAProxy's backend {backend} (socket {path})")
        module.exit_json(changed=False, sessions=0, present=False)
    draining = now["status"].startswith(("DRAIN", "MAINT"))
    change = draining != (wanted == "drain")
    if module.check_mode:
        module.exit_json(changed=change, present=True)
    if change:
        ask(path, f"set server {backend}/{server} state {wanted}")
    deadline = time.monotonic() + module.params["timeout_s"]
    while True:
        now = row(path, backend, server) or {"status": "gone", "scur": "0"}
        sessions = int(now["scur"] or 0)
        done = sessions == 0 if wanted == "drain" else now["status"].startswith("UP")
        if done:
            module.exit_json(changed=change, present=True, sessions=sessions, status=now["status"])
        if time.monotonic() > deadline:
            module.fail_json(
                msg=f"{server} is {now['status']} with {sessions} sessions after {module.params['timeout_s']} s, "
                f"wanted {wanted}. A drain that does not end has requests longer than gateway_drain_timeout_s; "
                "a server that does not come UP fails the completion check: see its container's log.",
                sessions=sessions,
            )
        time.sleep(0.5)


if __name__ == "__main__":
    main()
