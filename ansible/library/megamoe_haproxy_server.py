"""Moves one server of HAProxy between ready and drain over the runtime socket, and waits until that is true."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_haproxy_server
short_description: Drain a server until it has no session, or make it ready until its health check passes
description: >-
  Talks to the runtime API on a UNIX socket. No socket or no such server means there is nothing to drain. Worker
  processes that an earlier reload left behind still carry requests, which the socket of the current one does not show:
  they are asked through the master's socket and count as well.
options:
  socket:
    description: Path of the admin socket.
    type: str
    required: true
  master_socket:
    description: Path of the master's socket; absent means that no earlier worker can be asked.
    type: str
    default: ""
  backend:
    description: Name of the backend.
    type: str
    required: true
  server:
    description: Name of the server.
    type: str
    required: true
  state:
    description: C(drain) waits for zero sessions, C(ready) waits for UP, C(look) returns what is.
    type: str
    choices: [drain, ready, look]
    required: true
  port:
    description: Port on which the server answers from now on, for C(ready); 0 leaves it.
    type: int
    default: 0
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

# srv_admin_state of `show servers state` (HAProxy management guide 9.3): forced maintenance 1, forced drain 8.
FORCED_OUT = 0x01 | 0x08


def ask(path, command):
    """Answer of the runtime API to one command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(path)
        link.sendall(command.encode() + b"\n")
        link.shutdown(socket.SHUT_WR)  # the master answers and then waits for more, a worker hangs up by itself
        answer = b""
        while True:
            part = link.recv(65536)
            if not part:
                return answer.decode(errors="replace")
            answer += part


def row(text, backend, server):
    """The server's line of `show stat` as a dict, or None when it is not configured."""
    for line in csv.DictReader(io.StringIO(text.lstrip("# \n"))):
        if line.get("pxname") == backend and line.get("svname") == server:
            return line
    return None


def state_of(text, server):
    """The server's line of `show servers state` as a dict: a version, a line of names after "#", a line per server."""
    names = next((line[1:].split() for line in text.splitlines() if line.startswith("#")), [])
    for line in text.splitlines():
        fields = dict(zip(names, line.split(), strict=False))
        if fields.get("srv_name") == server:
            return fields
    return {}


def forced_out(fields):
    """True when an administrator or the configuration keeps requests away, whatever the health check says."""
    return bool(int(fields.get("srv_admin_state", 0)) & FORCED_OUT)


def commands(fields, name, wanted, port):
    """What must be said to the runtime API so that the server is as wanted; nothing when it is."""
    said = []
    if wanted == "ready" and port and fields.get("srv_port") != str(port):
        said.append(f"set server {name} addr {fields.get('srv_addr')} port {port}")
    if forced_out(fields) != (wanted == "drain"):
        said.append(f"set server {name} state {wanted}")
    return said


def old_workers(text):
    """Process ids under "# old workers" of the master's `show proc`."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            inside = line.startswith("# old workers")
        elif inside and line.split() and line.split()[0].isdigit():
            found.append(line.split()[0])
    return found


def sessions_left_behind(master, backend, server):
    """Sessions on the server in workers of before a reload; 0 where there is no master socket."""
    if not master or not os.path.exists(master):
        return 0
    total = 0
    for pid in old_workers(ask(master, "show proc")):
        line = row(ask(master, f"@!{pid} show stat"), backend, server)
        total += int((line or {}).get("scur") or 0)
    return total


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "str", "required": True},
            "master_socket": {"type": "str", "default": ""},
            "backend": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "ready", "look"], "required": True},
            "port": {"type": "int", "default": 0},
            "timeout_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    path, master, backend, server = (module.params[k] for k in ("socket", "master_socket", "backend", "server"))
    wanted = module.params["state"]
    try:
        now = row(ask(path, "show stat"), backend, server) if os.path.exists(path) else None
    except OSError:  # a socket file that a stopped process left behind
        now = None
    if now is None:
        if wanted == "ready":
            module.fail_json(
                msg=f"{server} is not a server of HAProxy's backend {backend} (socket {path}), so no request can reach "
                "it. Run site.yml: its gateway role writes every node of the inventory into the configuration."
            )
        module.exit_json(changed=False, sessions=0, present=False, status="absent")
    if wanted == "look":
        module.exit_json(changed=False, present=True, status=now["status"], sessions=int(now["scur"] or 0))
    fields = state_of(ask(path, f"show servers state {backend}"), server)
    todo = commands(fields, f"{backend}/{server}", wanted, module.params["port"])
    change = bool(todo)
    if module.check_mode:
        module.exit_json(changed=change, present=True)
    for command in todo:
        answer = ask(path, command).strip()
        if answer and "nothing changed" not in answer and "changed from" not in answer:
            module.fail_json(msg=f"HAProxy did not take `{command}`: {answer}")
    deadline = time.monotonic() + module.params["timeout_s"]
    while True:
        now = row(ask(path, "show stat"), backend, server) or {"status": "gone", "scur": "0"}
        sessions = int(now["scur"] or 0)
        if wanted == "drain" and sessions == 0:
            sessions += sessions_left_behind(master, backend, server)
        if sessions == 0 if wanted == "drain" else now["status"].startswith("UP"):
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
