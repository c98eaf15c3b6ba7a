"""Planned container specification against `docker inspect` or `podman inspect`. Pure.

A field that the inspection does not carry is unknown, said as such, and never counted as equal. Groups of the plan that
only the host knows are unknown without facts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from megamoe.deploy.sizes import human
from megamoe.plan.container import ContainerSpec, digest_of
from megamoe.verify_deploy.arguments import argument_rows
from megamoe.verify_deploy.environment import environment_rows
from megamoe.verify_deploy.rows import MISSING, Row, compared, is_whole, listed, mapping, simple, unknown, words

DEFAULT_SHM = 64 << 20  # what both engines give a private ipc namespace
DEFAULT_STOP_S = 10  # what docker gives a container that was made without --stop-timeout, and then does not print
IDENTITY = "image digest"


def compare(
    spec: ContainerSpec,
    inspect: dict[str, Any],
    spelled: frozenset[str] = frozenset(),
    image_env: Mapping[str, str] | None = None,
) -> list[Row]:
    """Every field of the plan, in a fixed order. `inspect` is one element of the engine's list.

    Args:
        spelled: environment names that DEPLOY itself gives: missing, they are drift even in a shortened inspection.
        image_env: environment of the image; None when only the container was inspected.
    """
    config, host = mapping(inspect, "Config"), mapping(inspect, "HostConfig")
    rows = [_state(inspect), _image(spec, inspect), *argument_rows(spec.command, inspect, config)]
    rows += environment_rows(spec.env, config, spelled, image_env)
    ipc = _ipc_mode(inspect, config, host)
    rows += [_name(spec, inspect), simple("ipc", spec.ipc_mode, ipc), _shm(spec, ipc, host), _init(spec, inspect, host)]
    rows += [_stop_timeout(spec, inspect, config, host), _network(spec, host), *_devices(spec, host)]
    rows += [_groups(spec, config, host), _ulimits(spec, inspect, host), *_resources(inspect, host)]
    rows += [
        words("security_opts", spec.security_opts, _security(spec, host)),
        words("cap_add", spec.cap_add, _caps(host, "CapAdd")),
        words("cap_drop", spec.cap_drop, _dropped(spec, inspect, host)),
        *_pid_mode(host),
        simple("privileged", spec.privileged, host.get("Privileged", MISSING)),
        simple("read_only", spec.read_only, host.get("ReadonlyRootfs", MISSING)),
        _volumes(spec, inspect, host),
        *_tmpfs(spec, inspect, host),
        *_ports(spec, host),
        simple("restart_policy", spec.restart_policy, _restart(host)),
    ]
    if spec.user is not None:
        rows.append(simple("user", spec.user, config.get("User", MISSING)))
    rows += [*_healthcheck(spec, inspect, config), *_labels(spec, config)]
    return rows


_BESIDE = {  # flags that engines print next to a status that may still read "running"
    "Paused": "paused",
    "Restarting": "being restarted",
    "OOMKilled": "the kernel killed a process of it for memory",
    "Dead": "dead: its removal failed",
}


def _state(inspect: dict[str, Any]) -> Row:
    """Running and nothing against it. Older podman calls Health Healthcheck."""
    state = mapping(inspect, "State")
    status = next((s for s in (state.get("Status"), state.get("Running")) if isinstance(s, (str, bool))), None)
    if status is None:
        return unknown("state", "running")
    shown = "running" if status is True else "not running" if status is False else status
    if shown != "running" and "ExitCode" in state:
        shown += f" (exit code {state['ExitCode']}{', out of memory' if state.get('OOMKilled') is True else ''})"
    if shown != "running":
        return compared("state", "running", shown, False)
    against = [said for flag, said in _BESIDE.items() if state.get(flag) is True]
    health = [mapping(state, key).get("Status") for key in ("Health", "Healthcheck")]
    against += ["its health check fails"] if "unhealthy" in health else []
    if against:
        return compared("state", "running", f"running, but {', '.join(against)}", False)
    odd = [f"{flag} is {state[flag]!r:.40}" for flag in _BESIDE if not isinstance(state.get(flag, False), bool)]
    return unknown("state", "running", f"{', '.join(odd)}, which no engine prints") if odd else compared(
        "state", "running", shown, True)


def restarts(inspect: dict[str, Any]) -> int:
    """How often the engine started it again after it had ended; 0 where the inspection does not say."""
    count = inspect.get("RestartCount")
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def _image(spec: ContainerSpec, inspect: dict[str, Any]) -> Row:
    wanted = digest_of(spec.image)
    planned = f"sha256:{wanted}"
    image = inspect.get("Image")
    ident = (digest_of(image) or image) if isinstance(image, str) else ""
    if spec.image.startswith("sha256:"):  # a loaded archive is pinned by image id
        return compared(IDENTITY, planned, ident, ident == wanted) if ident else unknown(IDENTITY, planned)
    # Config.Image names what was asked for; a RepoDigests list or ImageDigest says what it is, so those decide.
    real = _digests(listed(inspect.get("RepoDigests"))) or _digests([inspect.get("ImageDigest")])
    found = real or _digests([inspect.get("ImageName"), mapping(inspect, "Config").get("Image")])
    if not found:
        why = f"no digest in the inspection (image id {ident[:12] or 'none'}); add the image's RepoDigests"
        return unknown(IDENTITY, planned, why)
    return compared(IDENTITY, planned, ", ".join(f"sha256:{d}" for d in found), wanted in found)


def _digests(texts: list[Any]) -> list[str]:
    return list(dict.fromkeys(d for text in texts if isinstance(text, str) and (d := digest_of(text))))


def _name(spec: ContainerSpec, inspect: dict[str, Any]) -> Row:
    name = inspect.get("Name")
    if not isinstance(name, str):
        return unknown("name", spec.name)
    # Another name is no drift by itself: --inspect may be of a container that was started by hand.
    return Row("name", "same" if name.lstrip("/") == spec.name else "unknown", spec.name, name.lstrip("/"))


def _is_podman(inspect: dict[str, Any]) -> bool:
    return "OCIRuntime" in inspect or "ImageDigest" in inspect


def _ipc_mode(inspect: dict[str, Any], config: dict[str, Any], host: dict[str, Any]) -> Any:
    """The ipc mode, as far as the engine tells it.

    podman 4.3 prints "shareable" for host, private and shareable alike (measured); its own command line tells more.
    """
    mode = host.get("IpcMode", MISSING)
    if mode != "shareable" or not _is_podman(inspect):
        return mode
    spelled = [str(w) for w in listed(config.get("CreateCommand"))]
    given = [
        w.partition("=")[2] or after
        for w, after in zip(spelled, [*spelled[1:], ""], strict=True)
        if w == "--ipc" or w.startswith("--ipc=")
    ]
    return given[-1] if given else MISSING


def _shm(spec: ContainerSpec, mode: Any, host: dict[str, Any]) -> Row:
    if spec.ipc_mode == "host":
        return Row("shm_size", "same", "host", "host") if mode == "host" else unknown("shm_size", "host")
    wanted, have = spec.shm_size or DEFAULT_SHM, host.get("ShmSize")
    if not isinstance(have, int) or isinstance(have, bool):
        return unknown("shm_size", human(wanted))
    return compared("shm_size (ShmSize)", human(wanted), human(have), have == wanted)


def _security(spec: ContainerSpec, host: dict[str, Any]) -> Any:
    """Without label=disable where docker adds it by itself: with host ipc, and to privileged containers."""
    given = host.get("SecurityOpt", MISSING)
    added = (spec.ipc_mode == "host" or spec.privileged) and "label=disable" not in spec.security_opts
    return [o for o in given if o != "label=disable"] if added and isinstance(given, list) else given


def _init(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Row:
    # docker leaves Init out (older ones print null) for a container that was made without --init.
    if "Init" not in host and not is_whole(inspect):
        return unknown("init", spec.init)
    have = host.get("Init") is True
    return compared("init", "on" if spec.init else "off", "on" if have else "off", have == spec.init)


def _stop_timeout(spec: ContainerSpec, inspect: dict[str, Any], config: dict[str, Any], host: dict[str, Any]) -> Row:
    have = config.get("StopTimeout", host.get("StopTimeout"))
    return simple("stop_timeout", spec.stop_timeout, DEFAULT_STOP_S if have is None and is_whole(inspect) else have)


def _network(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    names = {"default": "bridge"}
    have = host.get("NetworkMode")
    shown = names.get(have, have) if isinstance(have, str) else have
    return simple("network_mode", names.get(spec.network_mode, spec.network_mode), shown)


def _devices(spec: ContainerSpec, host: dict[str, Any]) -> Iterator[Row]:
    planned = [_device(d) for d in spec.devices]
    shown = ", ".join(sorted(map(_device_text, planned))) or "none"
    given, requests = host.get("Devices", MISSING), host.get("DeviceRequests")
    if given is MISSING or (given is not None and not isinstance(given, list)):
        yield unknown("devices", shown)
        return
    have = [
        (str(d.get("PathOnHost")), str(d.get("PathInContainer") or d.get("PathOnHost")),
         str(d.get("CgroupPermissions") or "rwm"))
        for d in listed(given) if isinstance(d, dict)
    ]  # fmt: skip
    for request in listed(requests):
        if isinstance(request, dict):  # a CDI name, or GPUs by another vendor's driver
            ids = listed(request.get("DeviceIDs")) or [f"{request.get('Count')} of {request.get('Driver') or 'any'}"]
            have += [(str(i), str(i), "rwm") for i in ids]
    # podman lists what is inside a directory instead of the directory
    extra = [h for h in have if not any(_is_of(h, p) for p in planned)]
    missing = [p for p in planned if not any(_is_of(h, p) for h in have)]
    text = ", ".join(sorted(map(_device_text, have))) or "none"
    yield compared("devices", shown, text, not extra and not missing)
    # What opens devices beside the list; not every engine prints it.
    if "DeviceCgroupRules" in host:
        yield words("device_cgroup_rules", [], host["DeviceCgroupRules"])


def _device(text: str) -> tuple[str, str, str]:
    """(on the host, in the container, rights) of HOST[:CONTAINER][:RIGHTS]."""
    source, *rest = text.split(":")
    inside = rest[0] if rest and rest[0].startswith("/") else source
    return source, inside, rest[-1] if rest and not rest[-1].startswith("/") else "rwm"


def _is_of(have: tuple[str, str, str], planned: tuple[str, str, str]) -> bool:
    below = have[0][len(planned[0]):] if have[0].startswith(planned[0].rstrip("/") + "/") else None
    place = have[0] == planned[0] and have[1] == planned[1]
    return (place or (below is not None and have[1] == planned[1] + below)) and set(have[2]) == set(planned[2])


def _device_text(device: tuple[str, str, str]) -> str:
    source, inside, rights = device
    return source + (f":{inside}" if inside != source else "") + (f":{rights}" if set(rights) != set("rwm") else "")


def _groups(spec: ContainerSpec, config: dict[str, Any], host: dict[str, Any]) -> Row:
    given = host.get("GroupAdd", MISSING)
    if spec.group_add == ["keep-groups"] and not listed(given):  # podman hands this word to the runtime
        kept = mapping(config, "Annotations").get("run.oci.keep_original_groups") == "1"
        return compared("groups", "keep-groups", "keep-groups", True) if kept else unknown("groups", "keep-groups")
    if not spec.group_add_from_host:
        return words("groups", spec.group_add, given)
    planned = "the numbers of " + ", ".join(spec.group_add_from_host)
    if given is MISSING or (given is not None and not isinstance(given, list)):
        return unknown("groups", planned)
    if named := sorted(str(g) for g in given or [] if not str(g).isdecimal()):
        return compared("groups", planned, f"{', '.join(named)}: names, which the image resolves", False)
    if not given and spec.user not in (None, "0", "0:0", "root"):
        return compared("groups", planned, "none", False)
    return unknown("groups", planned, f"{', '.join(map(str, given or [])) or 'none'}; give --facts to compare")


def _caps(host: dict[str, Any], key: str) -> Any:
    given = host.get(key, MISSING)
    return [str(c).upper().removeprefix("CAP_") for c in given] if isinstance(given, list) else given


def _dropped(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Any:
    """podman lists what its defaults lack against docker's, as if a person had dropped it (measured with 4.3)."""
    given = _caps(host, "CapDrop")
    if not _is_podman(inspect) or not isinstance(given, list):
        return given
    return [cap for cap in given if cap in spec.cap_drop or cap not in ("AUDIT_WRITE", "MKNOD", "NET_RAW")]


def _ulimits(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Row:
    given = host.get("Ulimits", MISSING)
    wanted = {n: (v["soft"], v["hard"]) for n, v in spec.ulimits.items()}
    if given is MISSING or (given is not None and not isinstance(given, list)):
        return unknown("ulimits", _limits(wanted))
    have: dict[str, tuple[Any, Any]] = {}
    for entry in given or []:
        if isinstance(entry, dict):
            name = str(entry.get("Name", "")).lower().removeprefix("rlimit_")  # podman writes RLIMIT_MEMLOCK
            have[name] = (entry.get("Soft"), entry.get("Hard"))
    if _is_podman(inspect):  # podman adds these two of its own
        have = {n: v for n, v in have.items() if n in wanted or n not in ("nofile", "nproc")}
    return compared("ulimits", _limits(wanted), _limits(have), have == wanted)


def _limits(limits: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{n}={s}:{h}" for n, (s, h) in sorted(limits.items())) or "none"


def _resources(inspect: dict[str, Any], host: dict[str, Any]) -> Iterator[Row]:
    """Limits that no plan sets: memory, CPU and processes. 0, -1, "" and null are none."""
    keys = ["Memory", "MemorySwap", "NanoCpus", "CpuQuota", "CpusetCpus", "CpusetMems", "PidsLimit"]
    keys = [k for k in keys if k in host and not (k == "PidsLimit" and _is_podman(inspect))]  # podman's own is 2048
    if keys:
        have = [f"{k} {host[k]}" for k in keys if host[k] not in (None, 0, -1, "")]
        yield compared("resource_limits", "none", ", ".join(have) or "none", not have)


def _pid_mode(host: dict[str, Any]) -> Iterator[Row]:
    if isinstance(mode := host.get("PidMode"), str):
        yield compared("pid_mode", "private", mode or "private", mode in ("", "private"))


def _volumes(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Row:
    planned = sorted({_bind(v) for v in spec.volumes})
    mounts, binds = inspect.get("Mounts"), host.get("Binds")
    if isinstance(mounts, list):
        have = sorted({_mount(m) for m in mounts if isinstance(m, dict) and not _unnamed(m)})
    elif isinstance(binds, list):
        have = sorted({_bind(str(b)) for b in binds})
    else:
        return unknown("volumes", _binds(planned))
    return compared("volumes", _binds(planned), _binds(have), planned == have)


def _mount(mount: dict[str, Any]) -> tuple[str, str, bool]:
    """A named volume by its name, as it was given; a bind by its source."""
    source = mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")
    return str(source), str(mount.get("Destination")), mount.get("RW") is False


def _unnamed(mount: dict[str, Any]) -> bool:
    """tmpfs has a row of its own; a volume without a name comes from the image."""
    kind = mount.get("Type", "bind")
    return kind == "tmpfs" or (kind == "volume" and bool(re.fullmatch(r"[0-9a-f]{64}|", str(mount.get("Name") or ""))))


def _bind(text: str) -> tuple[str, str, bool]:
    parts = [*text.split(":"), "", ""]
    return parts[0], parts[1], "ro" in parts[2].split(",")


def _binds(binds: list[tuple[str, str, bool]]) -> str:
    return ", ".join(f"{s}:{t}{':ro' if ro else ''}" for s, t, ro in binds) or "none"


def _tmpfs(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Iterator[Row]:
    """docker leaves Tmpfs out when there is none; podman adds options of its own to those given."""
    given = host.get("Tmpfs")
    wanted = {p: {o for o in options.split(",") if o} for p, _, options in (t.partition(":") for t in spec.tmpfs)}
    if not isinstance(given, dict):
        if given is None and is_whole(inspect):
            given = {}
        elif wanted or given is not None:
            yield unknown("tmpfs", ", ".join(spec.tmpfs) or "none")
            return
        else:
            return
    have = {str(p): {o for o in str(options or "").split(",") if o} for p, options in given.items()}
    same = have.keys() == wanted.keys() and all(
        options <= have[p] if _is_podman(inspect) else options == have[p] for p, options in wanted.items()
    )
    shown = ", ".join(f"{p}:{o}" if o else str(p) for p, o in sorted(given.items(), key=str))
    yield compared("tmpfs", ", ".join(sorted(spec.tmpfs)) or "none", shown or "none", same)


def _ports(spec: ContainerSpec, host: dict[str, Any]) -> Iterator[Row]:
    """Published ports; with host networking there are none on either side."""
    if "PortBindings" not in host and not spec.ports:
        return
    given = host.get("PortBindings", MISSING)
    if given is MISSING or (given is not None and not isinstance(given, dict)):
        yield unknown("ports", ", ".join(spec.ports) or "none")
        return
    have = []
    for inside, places in (given or {}).items():
        for place in listed(places):
            if isinstance(place, dict):
                address, port = str(place.get("HostIp") or ""), str(place.get("HostPort") or "")
                have.append(":".join([*([address] if address not in ("", "0.0.0.0") else []), port,
                                      str(inside).removesuffix("/tcp")]))  # fmt: skip
    wanted = [p.removesuffix("/tcp").removeprefix("0.0.0.0:") for p in spec.ports]
    yield words("ports", wanted, have)


def _restart(host: dict[str, Any]) -> Any:
    policy = host.get("RestartPolicy")
    if not isinstance(policy, dict):
        return MISSING
    name, count = str(policy.get("Name") or "no"), policy.get("MaximumRetryCount")
    return f"{name}:{count}" if name == "on-failure" and count else name


def _healthcheck(spec: ContainerSpec, inspect: dict[str, Any], config: dict[str, Any]) -> Iterator[Row]:
    """The command and its times. `docker run --health-cmd` stores the command as one line for a shell.

    podman's is not compared: what it prints was not seen, and it runs no check where systemd does not run.
    """
    given = config.get("Healthcheck")
    if _is_podman(inspect) or not (isinstance(given, dict) or is_whole(inspect)):
        return
    given = given if isinstance(given, dict) else {}
    test = [str(word) for word in listed(given.get("Test"))]
    if test[:1] == ["CMD-SHELL"]:
        try:
            test = ["CMD", *shlex.split(" ".join(test[1:]))]
        except ValueError:  # not what the plan renders, so it differs as it stands
            test = ["CMD", *test]
    wanted = spec.healthcheck
    plan = [wanted["test"], *(wanted[k] for k in ("interval_s", "timeout_s", "start_period_s", "retries"))]
    times = [_seconds(given.get(k)) for k in ("Interval", "Timeout", "StartPeriod")]
    have = [test, *times, given.get("Retries")]
    yield compared("healthcheck", _check_text(plan), _check_text(have), plan == have)


def _seconds(nanoseconds: Any) -> Any:
    number = isinstance(nanoseconds, int) and not isinstance(nanoseconds, bool)
    return nanoseconds / 1e9 if number else nanoseconds


def _check_text(check: list[Any]) -> str:
    return f"{shlex.join(check[0])} every {check[1]} s, timeout {check[2]} s, start {check[3]} s, retries {check[4]}"


def _labels(spec: ContainerSpec, config: dict[str, Any]) -> Iterator[Row]:
    labels = config.get("Labels", MISSING)
    if labels is MISSING:
        yield unknown("labels", f"{len(spec.labels)} labels")
        return
    have = labels if isinstance(labels, dict) else {}
    for name, wanted in spec.labels.items():
        yield compared(f"label {name}", wanted, have.get(name, "missing"), have.get(name) == wanted)
