"""Containers that stand for hosts: made when missing, left alone when right, replaced when of another image."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.engine import docker, inspect, labelled
from megamoe.rehearse.settings import LABEL, PREFIX, Settings

NETWORK = f"{PREFIX}net"
# What a container needs to stand for a host: mounts and an engine inside (SYS_ADMIN), bridges and firewall rules
# (NET_ADMIN), device nodes (MKNOD), py-spy and rocgdb as on a real node (SYS_PTRACE). No --privileged.
NODE_FLAGS = (
    "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "MKNOD", "--cap-add", "SYS_PTRACE",
    "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
    "--cgroupns=host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "--device-cgroup-rule", "a *:* rwm",
)  # fmt: skip
GATEWAY_FLAGS = (
    "--cap-add",
    "SYS_ADMIN",
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "apparmor=unconfined",
)


def up(settings: Settings, host_image: str, model: Path) -> list[str]:
    """Brings network, registry, gateway and nodes up; returns what was made (empty on a second run)."""
    made: list[str] = []
    if inspect("network", NETWORK) is None:
        docker("network", "create", "--label", LABEL, "--subnet", str(settings.subnet), NETWORK)
        made.append("network")
    key = _key(settings.state)
    made += _host(
        settings,
        "registry",
        settings.registry_address,
        host_image,
        (
            "--volume",
            f"{PREFIX}registry-data:/var/lib/docker-registry",
            "--publish",
            f"127.0.0.1:{settings.registry_port}:5000",
        ),
        {"MEGAMOE_NODE_ROLE": "registry"},
    )
    made += _host(
        settings,
        "gateway",
        settings.gateway_address,
        host_image,
        (*GATEWAY_FLAGS, "--publish", f"127.0.0.1:{settings.gateway_port}:8080"),
        {"MEGAMOE_NODE_ROLE": "gateway", "MEGAMOE_AUTHORIZED_KEY": key},
    )
    for name in settings.node_names():
        made += _host(
            settings,
            name,
            settings.node_address(name),
            host_image,
            (
                *NODE_FLAGS,
                "--volume",
                f"{PREFIX}{name}-engine:/var/lib/docker",
                "--volume",
                f"{model}:/models/rehearsal:ro",
            ),
            {
                "MEGAMOE_NODE_ROLE": "node",
                "MEGAMOE_AUTHORIZED_KEY": key,
                "MEGAMOE_REGISTRY": f"{settings.registry_address}:5000",
            },
        )
    # A run with fewer nodes than the last one: the others are not in the inventory, so they must not keep serving.
    wanted = {PREFIX + n for n in (*settings.node_names(), "registry", "gateway")}
    for extra in sorted(set(labelled("container")) - wanted):
        docker("rm", "--force", "--volumes", extra)
        made.append(f"removed {extra}")
    return made


def _host(
    settings: Settings, name: str, address: str, image: str, flags: tuple[str, ...], env: dict[str, str]
) -> list[str]:
    container = PREFIX + name
    environment = [word for k, v in sorted(env.items()) for word in ("--env", f"{k}={v}")]
    identity = ["--name", container, "--hostname", name, "--label", LABEL, "--network", NETWORK, "--ip", address]
    argv = ["--detach", *identity, *flags, *environment, image]
    # The recipe is the command itself: a container made by another one is replaced, like a re-installed machine.
    recipe = json.dumps(argv)
    found = inspect("container", container)
    if found and (found["Config"].get("Labels") or {}).get("org.megamoe.recipe") == recipe:
        if found["State"]["Running"]:
            return []
        docker("start", container)
        return [f"{name} (started)"]
    if found:
        docker("rm", "--force", container)
    for flag in flags:
        if flag.startswith(PREFIX) and inspect("volume", flag.split(":")[0]) is None:
            docker("volume", "create", "--label", LABEL, flag.split(":")[0])
    docker("run", "--label", f"org.megamoe.recipe={recipe}", *argv)
    return [name]


def _key(state: Path) -> str:
    """Public half of this checkout's rehearsal key, made when missing. It opens nothing but these containers."""
    path = state / "id_ed25519"
    if not path.is_file():
        state.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "megamoe-rehearsal", "-f", str(path)],
            check=True,
            timeout=30,
        )
    return path.with_suffix(".pub").read_text().strip()


def wait_ready(settings: Settings, *, deadline_s: float = 90) -> None:
    """Returns when every host answers over SSH and every node's engine answers; records the host keys.

    Raises:
        Problem: code "rehearse_node_down", exit 3: names the hosts that did not, with their last words.
    """
    end = time.monotonic() + deadline_s
    waiting = ["gateway", *settings.node_names()]
    while waiting:
        waiting = [name for name in waiting if not _answers(name)]
        if waiting and time.monotonic() > end:
            last = docker("logs", "--tail", "3", PREFIX + waiting[0], check=False).strip() or "it logged nothing"
            raise Problem(
                "rehearse_node_down",
                exit_code=Exit.UNREACHABLE,
                what=f"not up after {deadline_s:.0f} s: {', '.join(waiting)}; {waiting[0]} says: {last}",
                why="Ansible reaches the nodes over SSH, and they pull with an engine of their own",
                fix=f"see `docker logs {PREFIX}{waiting[0]}`; `make rehearse-down` starts afresh",
            )
        if waiting:
            time.sleep(1)
    # Pinned per run: a re-made node has new host keys, and asking a person would stop the play.
    lines = []
    for name in ("gateway", *settings.node_names()):
        address = settings.gateway_address if name == "gateway" else settings.node_address(name)
        public = docker("exec", PREFIX + name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()
        lines.append(f"{address} {public[0]} {public[1]}\n")
    (settings.state / "known_hosts").write_text("".join(lines))


def _answers(name: str) -> bool:
    engine = "true" if name == "gateway" else "docker info >/dev/null 2>&1"
    return bool(
        docker(
            "exec", PREFIX + name, "sh", "-c", f"pgrep -x sshd >/dev/null && {engine} && echo up", check=False
        ).strip()
    )


def write_inventory_data(settings: Settings, image: str, baseline: Path, folder: Path) -> Path:
    """cluster.json: what ansible/inventories/rehearsal/hosts.py turns into an inventory."""
    data: dict[str, Any] = {
        "schema_version": 1,
        "nodes": {name: settings.node_address(name) for name in settings.node_names()},
        "gateway": {"gateway": settings.gateway_address},
        "key": str(settings.state / "id_ed25519"),
        "known_hosts": str(settings.state / "known_hosts"),
        "image": image,
        "baseline": str(baseline),
        "report_dir": str(folder / "reports"),
        "engine_env": settings.engine_env(),
        "dataset": str(settings.questions),
        "fewshot": str(settings.fewshot or ""),
    }
    path = settings.state / "cluster.json"
    path.write_text(json.dumps(data, indent=2) + "\n")
    return path


def down() -> list[str]:
    """Removes what carries the rehearsal's label, and the images under its prefix; returns the names.

    Images are made by scripts that others use too and carry no label of ours, so those go by our own names for them.
    """
    gone: list[str] = []
    for kind, command in (
        ("container", ["rm", "--force"]),
        ("volume", ["volume", "rm"]),
        ("network", ["network", "rm"]),
        ("image", ["image", "rm", "--force"]),
    ):
        names = labelled(kind)
        if kind == "image":
            every = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
            names = sorted(set(names) | {name for name in every if name.startswith(PREFIX)})
        if names:
            docker(*command, *names, timeout_s=300)
            gone += [f"{kind} {name}" for name in names]
    return gone + _superseded_builds()


def _superseded_builds() -> list[str]:
    """Removes untagged builds of the reference image: earlier ones, and stages of the classic builder."""
    ask = ("image", "ls", "--quiet", "--filter", "dangling=true", "--filter", "label=io.megamoe.target=reference")
    gone: list[str] = []
    while found := sorted(set(docker(*ask).split())):
        # One that another was built upon goes only after that one, so those that refuse are tried again.
        for image in found:
            docker("image", "rm", image, check=False, timeout_s=300)
        left = set(docker(*ask).split())
        gone += [f"image {image} (no name)" for image in found if image not in left]
        if len(left) == len(found):
            break  # in use by somebody's container
    return gone
