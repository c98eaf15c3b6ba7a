"""A container specification as the exact `docker run` / `podman run` line and as a compose file."""

from __future__ import annotations

import shlex
from typing import Any

from megamoe.deploy.schema import Deploy
from megamoe.plan.container import ContainerSpec


def run_command(spec: ContainerSpec, deploy: Deploy) -> str:
    """The shell command that starts the container. Groups that only the host knows are read with stat there.

    Shell-quoted: the one unquoted part is `$(stat -c %g NODE)`, which is meant to run on the host.
    """
    parts: list[tuple[str, ...]] = [(deploy.container.engine, "run", "--detach"), ("--name", spec.name)]
    parts += [("--init",)] if spec.init else []
    parts += [("--stop-timeout", str(spec.stop_timeout)), ("--restart", spec.restart_policy)]
    parts += [("--network", spec.network_mode), ("--ipc", spec.ipc_mode)]
    if spec.shm_size is not None:
        parts.append(("--shm-size", str(spec.shm_size)))
    parts += [("--device", device) for device in spec.devices]
    parts += [("--group-add", group) for group in spec.group_add]
    lines = [shlex.join(part) for part in parts]
    lines += [f'--group-add "$(stat -c %g {shlex.quote(node)})"' for node in spec.group_add_from_host]
    tail: list[tuple[str, ...]] = []
    tail += [("--user", spec.user)] if spec.user is not None else []
    tail += [("--ulimit", f"{name}={v['soft']}:{v['hard']}") for name, v in spec.ulimits.items()]
    tail += [("--security-opt", option) for option in spec.security_opts]
    tail += [("--cap-add", cap) for cap in spec.cap_add] + [("--cap-drop", cap) for cap in spec.cap_drop]
    tail += [("--privileged",)] if spec.privileged else []
    tail += [("--read-only",)] if spec.read_only else []
    tail += [("--tmpfs", entry) for entry in spec.tmpfs] + [("--volume", entry) for entry in spec.volumes]
    tail += [("--publish", port) for port in spec.ports]
    tail += [("--label", f"{key}={value}") for key, value in spec.labels.items()]
    check = spec.healthcheck
    # --health-cmd takes one string that the engine runs with a shell, hence the second level of quoting.
    tail += [
        ("--health-cmd", shlex.join(check["test"][1:])),
        ("--health-interval", f"{check['interval_s']}s"),
        ("--health-timeout", f"{check['timeout_s']}s"),
        ("--health-retries", str(check["retries"])),
        ("--health-start-period", f"{check['start_period_s']}s"),
    ]
    tail += [("--env", f"{key}={value}") for key, value in spec.env.items()]
    lines += [shlex.join(part) for part in tail]
    lines += [shlex.quote(spec.image), shlex.join(spec.command)]
    text = " \\\n  ".join(lines)
    made = _directories_to_make(deploy, spec)
    # docker makes a missing host directory, podman refuses to start ("statfs: no such file or directory").
    return f"{shlex.join(['mkdir', '-p', *made])} &&\n{text}" if deploy.container.engine == "podman" and made else text


def _directories_to_make(deploy: Deploy, spec: ContainerSpec) -> list[str]:
    """Host directories of evidence and caches, which are ours; the model's is not, and its absence must show."""
    ours = [path for path in (deploy.container.status_dir, deploy.container.cache_dir) if path]
    return [source for volume in spec.volumes if (source := volume.split(":")[0]) in ours
            or (deploy.container.cache_dir and source.startswith(deploy.container.cache_dir.rstrip("/") + "/"))]


def compose(spec: ContainerSpec) -> str:
    """A compose file with the one service. `$` is doubled: compose would substitute it.

    Groups that only the host knows are variables with a message that says how to get them.
    """
    import yaml

    service: dict[str, Any] = {
        "container_name": spec.name,
        "image": spec.image,
        "command": spec.command,
        "environment": spec.env,
        "init": spec.init,
        "stop_grace_period": f"{spec.stop_timeout}s",
        "restart": spec.restart_policy,
        "ipc": spec.ipc_mode,
        "network_mode": spec.network_mode,
        "volumes": spec.volumes,
        "labels": spec.labels,
    }
    for key, value in (
        ("devices", spec.devices),
        ("group_add", list(spec.group_add)),
        ("shm_size", spec.shm_size),
        ("security_opt", spec.security_opts),
        ("cap_add", spec.cap_add),
        ("cap_drop", spec.cap_drop),
        ("tmpfs", spec.tmpfs),
        ("ports", spec.ports),
        ("user", spec.user),
        ("ulimits", spec.ulimits),
        ("privileged", spec.privileged),
        ("read_only", spec.read_only),
    ):
        if value:
            service[key] = value
    check = spec.healthcheck
    service["healthcheck"] = {
        "test": check["test"],
        "interval": f"{check['interval_s']}s",
        "timeout": f"{check['timeout_s']}s",
        "retries": check["retries"],
        "start_period": f"{check['start_period_s']}s",
    }
    service = _escaped(service)
    if spec.group_add_from_host:
        service["group_add"] = [
            *service.get("group_add", []),
            *(
                f"${{{_variable(node)}:?export {_variable(node)}=`stat -c %g {node}`}}"
                for node in spec.group_add_from_host
            ),
        ]
    text: str = yaml.safe_dump({"services": {"moe": service}}, sort_keys=True, width=4096, allow_unicode=True)
    return text


def _variable(node: str) -> str:
    return "MEGAMOE_GID_" + node.rsplit("/", 1)[-1].upper()


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
