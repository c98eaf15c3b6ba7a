"""Ansible connection plugin: hosts that exist only as one JSON file each, for tests of order, decisions and growth.

A module never runs: its name and arguments are read from what Ansible would send, and the answer comes from the file.
What a module really does on a host is the matter of the rehearsal (tests/rollout), not of this.
MEGAMOE_FAKE_DIR holds HOST.json: files, dirs, containers, images, haproxy, faults.
"""

from __future__ import annotations

import ast
import base64
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: fakenode
short_description: hosts that exist only as one JSON file each
description: For tests of order, decisions and growth.
author: megamoe-recipe
options: {}
"""
EMPTY = {"files": {}, "dirs": [], "containers": {}, "images": [], "haproxy": {}, "faults": [], "log": []}
Args = dict[str, Any]


@contextmanager
def node(host: str) -> Iterator[dict[str, Any]]:
    """The host's state, locked while it is changed: Ansible's workers are processes."""
    path = Path(os.environ["MEGAMOE_FAKE_DIR"]) / f"{host}.json"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else json.loads(json.dumps(EMPTY))
        yield state
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(path)


def running(state: dict[str, Any]) -> dict[str, Any] | None:
    """The one container that runs, None when none does."""
    return next((c for c in state["containers"].values() if c["running"]), None)


def fault(state: dict[str, Any]) -> str:
    """The fault that the running release carries in its environment."""
    return str((running(state) or {"env": {}})["env"].get("MEGAMOE_REHEARSAL_FAULT", ""))


def host_facts(state: dict[str, Any], args: Args) -> Args:
    records = {
        Path(p).stem: json.loads(t)
        for p, t in state["files"].items()
        if p.startswith(args["state_dir"] + "/releases/")
    }
    facts = {
        "host": {"groups": {"render": 992, "video": 44}, "dev": {}},
        "cmdline": "iommu=pt",
        "listening_ports": [22] + ([8000] if running(state) or "port_taken" in state["faults"] else []),
        "containers": [{"name": n, "gpu": False} for n, c in state["containers"].items() if c["running"]],
        "shm": {"total_bytes": 1 << 40, "free_bytes": 1 << 40},
    }
    free = 0.5 if "disk_full" in state["faults"] else 500.0
    return {
        "facts": facts,
        "disk_free_gib": dict.fromkeys(args.get("paths", []), free),
        "records": records,
        "state": json.loads(state["files"].get(args["state_dir"] + "/state.json", "{}")),
        "has_systemd": False,
        "has_engine": True,
        "can_check_packages": True,
    }


def docker_container(state: dict[str, Any], args: Args, check: bool) -> Args:
    name, now = args["name"], state["containers"].get(args["name"])
    if args["state"] in ("absent", "stopped"):
        if now is None and args["state"] == "stopped":
            return {"failed": True, "msg": "Cannot create container when image is not specified!"}
        changed = now is not None and (args["state"] == "absent" or now["running"])
        if changed and not check:
            if args["state"] == "absent":
                del state["containers"][name]
            else:
                now["running"] = False
        return {"changed": changed}
    if args.get("restart") and now:
        state["log"].append(["restart", name])
        return {"changed": True}
    wanted = {"image": args["image"], "env": args["env"], "command": args["command"], "running": True}
    if args["state"] == "present":  # made, and started by systemd; whether it runs is not compared
        wanted["running"] = now is not None and now == {**wanted, "running": True}
    if args["image"] not in state["images"] and not check:
        return {"failed": True, "msg": f"no such image {args['image']}"}
    changed = now != wanted
    if changed and not check:
        state["containers"][name] = wanted
        state["log"].append(["run", name, args["image"]])
    return {"changed": changed, "actions": [{"changed": "x"}] if changed else [], "container": {}}


def haproxy_server(state: dict[str, Any], args: Args) -> Args:
    config = state["files"].get("/etc/haproxy/haproxy.cfg", "")
    if f"server {args['server']} " not in config:
        return {"present": False, "sessions": 0}
    found = re.search(rf"server {re.escape(args['server'])} \S+ check( disabled)?", config)
    now = state["haproxy"].get(args["server"], "drain" if found is not None and found[1] else "ready")
    if args["state"] == "look":
        return {"status": "UP" if now == "ready" else "MAINT", "sessions": 0}
    if args["state"] == "ready" and found is not None and found[1]:
        return {"failed": True, "msg": "ready at run time, disabled in the file: a restart would lose the node"}
    state["haproxy"][args["server"]] = args["state"]
    changed = now != args["state"]
    if changed:
        state["log"].append([args["state"], args["server"], time.time()])
    return {"changed": changed, "sessions": 0, "status": "UP" if args["state"] == "ready" else "DRAIN"}


def command(state: dict[str, Any], argv: list[str], stdin: str | None) -> Args:
    """The commands that the roles run on a host."""
    out, err, rc = "", "", 0
    if argv[:2] == ["docker", "exec"] and "smoke" in argv:
        state["log"].append(["smoke", argv, stdin])
        if "lost_at_smoke" in state["faults"]:
            raise AnsibleConnectionFailure("the host went away")
        rc = 1 if fault(state) == "http_5xx" or "smoke_fails" in state["faults"] else 0
        out = json.dumps({"command": "smoke", "status": "fail" if rc else "pass", "summary": "smoke", "findings": []})
    elif argv[:2] == ["docker", "exec"] and "status" in argv:
        share = state.get("epoch_share", 0.01)
        ranks = [{"rank": 0, "epoch_share": share}, {"rank": 1, "epoch_share": share / 2}]
        out = json.dumps({"data": {"ranks": ranks}})
    elif argv[:2] == ["docker", "run"]:
        rc = 2 if "model_torn" in state["faults"] else 0
        out = json.dumps({"command": "verify-model", "status": "refused" if rc else "pass", "findings": []})
    elif argv[:3] == ["docker", "container", "inspect"] and ".State.StartedAt" in argv[4]:
        out = "2026-12-02T09:00:00.0Z"
    elif argv[:3] == ["docker", "container", "inspect"]:
        now = running(state) or {"image": "", "labels": {}}
        out = json.dumps([{"Image": "sha256:1", "Config": {"Image": now["image"], "Labels": {}}}])
    elif argv[:1] == ["pgrep"]:
        rc = 0 if "started" in state["haproxy"] else 1
    elif argv[0] == "/usr/sbin/haproxy":
        state["haproxy"]["started"] = "yes"
    elif argv[0] == "pkill":
        state["log"].append(argv)
    elif argv[:2] == ["systemctl", "reset-failed"]:
        state["log"].append(argv)
        known = f"/etc/systemd/system/{argv[2]}" in state["files"]
        rc, err = (0, "") if known else (1, f"Failed to reset failed state: Unit {argv[2]} not loaded.")
    else:
        rc, out = 127, f"fakenode does not know {argv}"
    lines = out.splitlines()
    return {"changed": True, "rc": rc, "stdout": out, "stdout_lines": lines, "stderr": err, "failed": rc != 0}


def systemd(state: dict[str, Any], args: Args, check: bool) -> Args:
    """A unit of the name of a container starts and stops it; a unit without a file cannot be asked anything."""
    name, wanted = args.get("name"), args.get("state")
    if name is None or name in ("docker", "haproxy") or wanted is None:
        return {"changed": False}
    if f"/etc/systemd/system/{name}.service" not in state["files"]:
        return {"failed": True, "msg": f"Could not find the requested service {name}: host"}
    container = state["containers"].get(name)
    changed = wanted == "restarted" or bool(container and container["running"]) != (wanted == "started")
    if changed and not check:
        state["log"].append(["systemd", wanted, name])
        if container:
            container["running"] = wanted != "stopped"
    return {"changed": changed}


def uri(state: dict[str, Any]) -> Args:
    """A completion, as playbooks/status.yml asks for it."""
    if running(state) is None or fault(state) == "never_ready":
        return {"failed": True, "msg": "Status code was -1 and not [200]: Connection refused", "status": -1}
    return {"status": 200, "json": {"choices": [{"text": " Paris."}]}}


def ready(state: dict[str, Any]) -> Args:
    if running(state) is None or fault(state) == "never_ready":
        return {"failed": True, "msg": "megamoe did not answer a completion"}
    return {"text": " Paris.", "waited_s": 0.0}


def answer(name: str, args: Args, state: dict[str, Any], uploads: dict[str, str]) -> Args:
    """What the module would have said, and its effect on the host's state."""
    files, check = state["files"], bool(args.get("_ansible_check_mode"))
    path = args.get("path") or args.get("dest") or args.get("src") or ""
    short = name.rpartition(".")[2]
    if short == "ping":
        return {"ping": "pong"}
    if short == "megamoe_host_facts":
        return host_facts(state, args)
    if short == "megamoe_node_lock":
        holder = json.loads(files.get(path, "{}"))
        mine = holder.get("id") == args["owner"]["id"]
        if args["state"] == "free":
            files.pop(path, None) if mine and not check else None
            return {"held": False}
        if mine and "rebooted" in state["faults"]:  # since it was taken, and /run is empty after it
            state["faults"].remove("rebooted")
            holder, mine = {}, False
        taken = not holder or mine or holder["id"] == args.get("replace")
        if taken and not check:
            files[path] = json.dumps(args["owner"])
        return {"held": taken, "holder": args["owner"] if taken else holder, "age_s": 1, "renewed": mine}
    if short == "stat":
        there = path in files or path in state["dirs"] or path.startswith(("/usr/sbin", "/models"))
        text = files.get(path, "").encode()
        return {
            "stat": {"exists": there, "isdir": path in state["dirs"], "islnk": False, "mode": "0644", "uid": 0,
                     "gid": 0, "isreg": True, "checksum": hashlib.sha1(text).hexdigest(), "pw_name": "root",
                     "gr_name": "root"}
        }  # fmt: skip
    if short == "slurp":
        return {"content": base64.b64encode(files.get(path, "").encode()).decode(), "encoding": "base64"}
    if short == "file" and args.get("_diff_peek"):
        return {"state": "file" if path in files else "absent", "appears_binary": False}
    if short == "file":
        if args["state"] == "absent":
            below = [p for p in (*files, *state["dirs"]) if p == path or p.startswith(path + "/")]
            gone = sorted(set(below))
            for p in gone if not check else []:
                files.pop(p, None)
            if not check:
                state["dirs"] = [p for p in state["dirs"] if p not in gone]
            return {"changed": bool(gone)}
        changed = path not in state["dirs"] and path not in files
        if changed and not check and args["state"] == "directory":
            state["dirs"].append(path)
        return {"changed": changed, "path": path}
    if short == "copy":
        text = uploads.get(args["src"], "")
        changed = files.get(args["dest"]) != text
        if ("disk_full_later" in state["faults"] or f"no_write {args['dest']}" in state["faults"]) and changed:
            return {"failed": True, "msg": "[Errno 28] No space left on device"}
        files[args["dest"]] = text
        return {"changed": changed, "dest": args["dest"]}
    if short == "replace":
        new = re.sub(args["regexp"], args["replace"], files[path], flags=re.MULTILINE)
        changed, files[path] = new != files[path], new
        return {"changed": changed}
    if short == "docker_host_info":
        return {"host_info": {"OSType": "linux", "SecurityOptions": []}}
    if short == "docker_image_pull":
        if args["name"] in state["images"]:
            return {"changed": False}
        if "registry_down" in state["faults"]:
            return {"failed": True, "msg": "dial tcp: connection refused"}
        state["images"].append(args["name"])
        return {"changed": True}
    if short == "docker_image_info":
        other = "digest_mismatch" in state["faults"]
        names = args["name"] if isinstance(args["name"], list) else [args["name"]]
        digest = "x@sha256:" + "0" * 64 if other else names[0]
        created = "2026-12-01T00:00:00Z"
        return {"images": [{"Id": "sha256:1", "RepoDigests": [digest], "Config": {"User": ""}, "Created": created}]}
    if short == "docker_login":
        state["log"].append(["login", args["config_path"], args["registry_url"]])
        return {"changed": True}
    if short == "tempfile":
        state["dirs"].append(f"{args['path']}/{args['prefix']}x")
        return {"changed": True, "path": state["dirs"][-1]}
    if short == "docker_container":
        return docker_container(state, args, check)
    if short == "docker_container_info":
        found = state["containers"].get(args["name"])
        return {"exists": found is not None, "container": {"State": {"Running": found["running"]}} if found else None}
    if short == "uri":
        return uri(state)
    if short == "megamoe_ready":
        return ready(state)
    if short == "command" and check:  # as Ansible's own does: it is skipped and has no output
        return {"skipped": True, "rc": 0, "stdout": "", "stderr": "", "msg": "Command would have run"}
    if short == "command":
        return command(state, args["argv"], args.get("stdin"))
    if short == "megamoe_haproxy_server":
        return haproxy_server(state, args)
    if short in ("systemd_service", "systemd"):
        return systemd(state, args, check)
    if short in ("sysctl", "package", "apt"):
        return {"changed": False}
    return {"failed": True, "msg": f"fakenode does not know the module {name}"}


class Connection(ConnectionBase):  # type: ignore[misc] # ansible ships no types
    """See the module's docstring."""

    transport = "fakenode"
    has_pipelining = True

    def _connect(self) -> Connection:
        if "unreachable" in self._state_faults():
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh: Connection refused")
        self._connected = True
        return self

    def _state_faults(self) -> list[str]:
        path = Path(os.environ["MEGAMOE_FAKE_DIR"]) / f"{self._play_context.remote_addr}.json"
        return list(json.loads(path.read_text()).get("faults", [])) if path.exists() else []

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if not in_data:
            made = re.search(r"ansible-tmp-[\d.-]+", cmd)
            text = f"{made[0]}=/root/.ansible/tmp/{made[0]}" if made and "mkdir" in cmd else "/root"
            return 0, text.encode() + b"\n", b""
        # What a process table of the host would show, for the search for secrets.
        with (Path(os.environ["MEGAMOE_FAKE_DIR"]) / "argv.log").open("a") as log:
            log.write(cmd + "\n")
        name = re.search(rb"^ansible_module='([^']+)'", in_data, re.MULTILINE)
        params = re.search(rb"^params=(.*),$", in_data, re.MULTILINE)
        if name is None or params is None:
            return 1, b"", b"fakenode could not read the module's arguments: " + in_data[:100]
        args = json.loads(ast.literal_eval(params[1].decode()))["ANSIBLE_MODULE_ARGS"]
        host = self._play_context.remote_addr
        uploads_file = Path(os.environ["MEGAMOE_FAKE_DIR"]) / f"{host}.uploads"
        with node(host) as state:
            uploads = json.loads(uploads_file.read_text()) if uploads_file.exists() else {}
            result = answer(name[1].decode(), args, state, uploads)
        result.setdefault("changed", False)
        return 0, json.dumps(result).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        uploads_file = Path(os.environ["MEGAMOE_FAKE_DIR"]) / f"{self._play_context.remote_addr}.uploads"
        with node(self._play_context.remote_addr):  # for its lock
            uploads = json.loads(uploads_file.read_text()) if uploads_file.exists() else {}
            uploads[out_path] = Path(in_path).read_text()
            uploads_file.write_text(json.dumps(uploads))

    def fetch_file(self, in_path: str, out_path: str) -> None:
        raise AnsibleConnectionFailure("nothing is fetched in these tests")

    def close(self) -> None:
        self._connected = False
