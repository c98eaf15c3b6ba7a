"""Planned container specification against `docker inspect` or `podman inspect`. Pure.

A field that the inspection does not carry is unknown, said as such, and never counted as equal. Groups of the plan that
only the host knows are unknown without facts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from megamoe.deploy.sizes import human
from megamoe.plan.container import ContainerSpec, digest_of

State = Literal["same", "drift", "unknown"]
DEFAULT_SHM = 64 << 20  # what both engines give a private ipc namespace
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One compared field; planned and running are shown as text."""

    field: str
    state: State
    planned: str
    running: str


def compare(spec: ContainerSpec, inspect: dict[str, Any], spelled: frozenset[str] = frozenset()) -> list[Row]:
    """Every field of the plan, in a fixed order. `inspect` is one element of the engine's list.

    Args:
        spelled: environment names that DEPLOY itself gives: missing, they are drift even in a shortened inspection.
    """
    config, host = _mapping(inspect, "Config"), _mapping(inspect, "HostConfig")
    rows = [_state(inspect), _image(spec, inspect), *_args(spec, inspect, config), *_env(spec, config, spelled)]
    ipc = _ipc_mode(inspect, config, host)
    rows += [_name(spec, inspect), _ipc(spec, ipc), _shm(spec, ipc, host), _init(spec, host)]
    rows.append(_simple("stop_timeout", spec.stop_timeout, _get(config, "StopTimeout", _get(host, "StopTimeout"))))
    rows.append(_network(spec, host))
    rows += _devices(spec, host)
    rows.append(_groups(spec, host))
    rows.append(_ulimits(spec, host))
    rows += [
        _words("security_opts", spec.security_opts, _security(spec, host)),
        _words("cap_add", spec.cap_add, _caps(host, "CapAdd")),
        _words("cap_drop", spec.cap_drop, _dropped(spec, inspect, host)),
    ]
    rows += [
        _simple("privileged", spec.privileged, _get(host, "Privileged")),
        _simple("read_only", spec.read_only, _get(host, "ReadonlyRootfs")),
        _volumes(spec, inspect, host),
        _restart(spec, host),
    ]
    if spec.user is not None:
        rows.append(_simple("user", spec.user, _get(config, "User")))
    rows += _labels(spec, config)
    return rows


def _mapping(node: dict[str, Any], key: str) -> dict[str, Any]:
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def _get(node: dict[str, Any], key: str, default: Any = _MISSING) -> Any:
    return node.get(key, default)


def _row(field: str, planned: Any, running: Any, same: bool) -> Row:
    return Row(field, "same" if same else "drift", str(planned), str(running))


def _unknown(field: str, planned: Any, why: str = "not in the inspection") -> Row:
    return Row(field, "unknown", str(planned), why)


def _simple(field: str, planned: Any, running: Any) -> Row:
    if running is _MISSING or running is None:
        return _unknown(field, planned)
    return _row(field, planned, running, running == planned)


def _state(inspect: dict[str, Any]) -> Row:
    state = _mapping(inspect, "State")
    status = _get(state, "Status", _get(state, "Running"))
    if status is _MISSING:
        return _unknown("state", "running")
    shown = "running" if status is True else "not running" if status is False else str(status)
    if shown != "running" and "ExitCode" in state:
        shown += f" (exit code {state['ExitCode']}{', out of memory' if state.get('OOMKilled') is True else ''})"
    return _row("state", "running", shown, shown == "running")


def _image(spec: ContainerSpec, inspect: dict[str, Any]) -> Row:
    wanted = digest_of(spec.image)
    texts = inspect.get("RepoDigests")
    seen = [str(t) for t in texts] if isinstance(texts, list) else []
    seen += [
        str(v)
        for v in (inspect.get("ImageDigest"), inspect.get("ImageName"), _mapping(inspect, "Config").get("Image"))
        if v
    ]
    found = list(dict.fromkeys(d for text in seen if (d := digest_of(text))))
    ident = digest_of(str(inspect.get("Image", ""))) or str(inspect.get("Image", ""))
    if spec.image.startswith("sha256:"):  # a loaded archive is pinned by image id
        return (
            _row("image digest", f"sha256:{wanted}", ident or "none", ident == wanted)
            if ident
            else _unknown("image digest", f"sha256:{wanted}")
        )
    if not found:
        return _unknown(
            "image digest",
            f"sha256:{wanted}",
            f"no digest in the inspection (image id {ident[:12] or 'none'}); add the image's RepoDigests",
        )
    # Config.Image names what was asked for; a RepoDigests list or ImageDigest says what it is, so that one decides.
    real = [d for d in (digest_of(str(t)) for t in (texts if isinstance(texts, list) else [])) if d] or found
    return _row("image digest", f"sha256:{wanted}", ", ".join(f"sha256:{d}" for d in real), wanted in real)


def _pairs(words: list[str]) -> dict[str, tuple[str, ...]]:
    """Flags with their values; --a=b is --a b, and aliases of ATOM are one name."""
    alias = {
        "-tp": "--tensor-parallel-size",
        "-dp": "--data-parallel-size",
        "-pcp": "--prefill-context-parallel-size",
        "--kv_cache_dtype": "--kv-cache-dtype",
        "--index_cache_dtype": "--index-cache-dtype",
        "--enable-eplb": "--eplb-enable",
    }
    out: dict[str, tuple[str, ...]] = {}
    current: str | None = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, eq, value = word.partition("=")
            current = alias.get(name, name)
            out[current] = (value,) if eq else ()
        elif current is not None:
            out[current] = (*out[current], word)
    return out


def _args(spec: ContainerSpec, inspect: dict[str, Any], config: dict[str, Any]) -> Iterator[Row]:
    words: Any = inspect.get("Args")
    if not isinstance(words, list):
        words = config.get("Cmd")
    if isinstance(words, str):
        try:
            words = shlex.split(words)
        except ValueError:  # an unbalanced quote: still words, if not the shell's
            words = words.split()
    if not isinstance(words, list):
        yield _unknown("args", shlex.join(spec.command))
        return
    planned, running = _pairs(spec.command), _pairs([str(w) for w in words])
    whole = "--model" in running or "serve" in words
    for flag in [*planned, *(f for f in running if f not in planned)]:
        a, b = planned.get(flag), running.get(flag)
        if b is None and not whole:
            yield _unknown(f"args {flag}", _flag(a), "not in these Args, which are shortened: they name no --model")
            continue
        yield _row(f"args {flag}", _flag(a), _flag(b), a == b)


def _flag(values: tuple[str, ...] | None) -> str:
    return "not given" if values is None else " ".join(values) or "given"


def _env(spec: ContainerSpec, config: dict[str, Any], spelled: frozenset[str]) -> Iterator[Row]:
    listed = config.get("Env")
    if not isinstance(listed, list):
        yield _unknown("env", f"{len(spec.env)} variables")
        return
    running = dict(str(entry).partition("=")[::2] for entry in listed)
    whole = "PATH" in running  # every image sets it, so an inspection without it has been shortened
    for name, wanted in spec.env.items():
        have = running.get(name)
        if have is None and not whole and name not in spelled:
            yield _unknown(f"env {name}", wanted, "not in this Env, which is shortened: it has no PATH")
        elif have is not None and name == "MORI_SHMEM_HEAP_SIZE":
            from megamoe.deploy.sizes import mori_bytes_as_parsed

            yield _row(f"env {name}", wanted, have, str(mori_bytes_as_parsed(have)) == wanted)
        else:
            yield _row(f"env {name}", wanted, "missing" if have is None else have, have == wanted)
    for name in sorted(running.keys() - spec.env.keys()):
        # The image brings variables of its own; only those that steer the engine count as an addition.
        if re.match(r"(ATOM|MORI|AITER|FLYDSL|FUSED_MEGA|HIP_VISIBLE|ROCR_VISIBLE|CUDA_VISIBLE|HSA_OVERRIDE)", name):
            yield Row(
                f"env {name}", "unknown", "not planned", "set; from the image or by hand (compare with the image)"
            )


def _name(spec: ContainerSpec, inspect: dict[str, Any]) -> Row:
    name = inspect.get("Name")
    return (
        _unknown("name", spec.name)
        if not isinstance(name, str)
        else Row("name", "same" if name.lstrip("/") == spec.name else "unknown", spec.name, name.lstrip("/"))
    )


def _is_podman(inspect: dict[str, Any]) -> bool:
    return "OCIRuntime" in inspect or "ImageDigest" in inspect


def _ipc_mode(inspect: dict[str, Any], config: dict[str, Any], host: dict[str, Any]) -> Any:
    """The ipc mode, as far as the engine tells it.

    podman 4.3 prints "shareable" for host, private and shareable alike (measured); its own command line tells more.
    """
    mode = _get(host, "IpcMode")
    if mode != "shareable" or not _is_podman(inspect):
        return mode
    words = [str(w) for w in _list(config.get("CreateCommand"))]
    given = [
        w.partition("=")[2] or after
        for w, after in zip(words, [*words[1:], ""], strict=True)
        if w == "--ipc" or w.startswith("--ipc=")
    ]
    return given[-1] if given else _MISSING


def _ipc(spec: ContainerSpec, mode: Any) -> Row:
    return _simple("ipc", spec.ipc_mode, mode)


def _shm(spec: ContainerSpec, mode: Any, host: dict[str, Any]) -> Row:
    if spec.ipc_mode == "host":
        return Row("shm_size", "same", "host", "host") if mode == "host" else _unknown("shm_size", "host")
    wanted, have = spec.shm_size or DEFAULT_SHM, host.get("ShmSize")
    if not isinstance(have, int) or isinstance(have, bool):
        return _unknown("shm_size", human(wanted))
    return _row("shm_size (ShmSize)", human(wanted), human(have), have == wanted)


def _security(spec: ContainerSpec, host: dict[str, Any]) -> Any:
    """Without label=disable where docker adds it by itself: with host ipc, and to privileged containers."""
    listed = _get(host, "SecurityOpt")
    added = (spec.ipc_mode == "host" or spec.privileged) and "label=disable" not in spec.security_opts
    return [o for o in listed if o != "label=disable"] if added and isinstance(listed, list) else listed


def _init(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    # docker leaves Init out (older ones print null) for a container that was made without --init; a shortened
    # inspection leaves it out too, but then it lacks what every engine prints.
    if "Init" not in host and not {"Runtime", "Devices", "RestartPolicy"} <= host.keys():
        return _unknown("init", spec.init)
    have = host.get("Init") is True
    return _row("init", "on" if spec.init else "off", "on" if have else "off", have == spec.init)


def _network(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    have = host.get("NetworkMode")
    same = {"default": "bridge"}.get(str(have), str(have)) == {"default": "bridge"}.get(
        spec.network_mode, spec.network_mode
    )
    return (
        _unknown("network_mode", spec.network_mode)
        if have is None
        else _row("network_mode", spec.network_mode, have, same)
    )


def _devices(spec: ContainerSpec, host: dict[str, Any]) -> Iterator[Row]:
    listed = host.get("Devices", _MISSING)
    if listed is _MISSING:
        yield _unknown("devices", ", ".join(spec.devices) or "none")
        return
    have = {str(d.get("PathOnHost")) for d in _list(listed) if isinstance(d, dict)}
    for request in _list(host.get("DeviceRequests")):
        have |= {str(name) for name in _list(request.get("DeviceIDs"))} if isinstance(request, dict) else set()
    wanted = {d.split(":")[0] for d in spec.devices}
    # podman lists what is inside a directory instead of the directory
    covered = {w for w in wanted if w in have or any(h.startswith(w + "/") for h in have)}
    extra = {h for h in have if not any(h == w or h.startswith(w + "/") for w in wanted)}
    yield _row(
        "devices",
        ", ".join(sorted(wanted)) or "none",
        ", ".join(sorted(have)) or "none",
        covered == wanted and not extra,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _groups(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    listed = host.get("GroupAdd", _MISSING)
    if spec.group_add_from_host:
        shown = (
            "none" if listed in (_MISSING, None) else ", ".join(map(str, listed)) if isinstance(listed, list) else "?"
        )
        return _unknown(
            "groups", "the numbers of " + ", ".join(spec.group_add_from_host), f"{shown}; give --facts to compare"
        )
    return _words("groups", spec.group_add, listed)


def _words(field: str, planned: list[str], running: Any) -> Row:
    shown = ", ".join(sorted(planned)) or "none"
    if running is _MISSING:
        return _unknown(field, shown)
    have = sorted(str(x) for x in running) if isinstance(running, list) else []
    return _row(field, shown, ", ".join(have) or "none", have == sorted(planned))


def _caps(host: dict[str, Any], key: str) -> Any:
    listed = host.get(key, _MISSING)
    return [str(c).upper().removeprefix("CAP_") for c in listed] if isinstance(listed, list) else listed


def _dropped(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Any:
    """podman lists what its defaults lack against docker's, as if a person had dropped it (measured with 4.3)."""
    listed = _caps(host, "CapDrop")
    if not _is_podman(inspect) or not isinstance(listed, list):
        return listed
    return [cap for cap in listed if cap in spec.cap_drop or cap not in ("AUDIT_WRITE", "MKNOD", "NET_RAW")]


def _ulimits(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    listed = host.get("Ulimits", _MISSING)
    wanted = {n: (v["soft"], v["hard"]) for n, v in spec.ulimits.items()}
    if listed is _MISSING:
        return _unknown("ulimits", _limits(wanted))
    have: dict[str, tuple[Any, Any]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            name = str(entry.get("Name", "")).lower().removeprefix("rlimit_")  # podman writes RLIMIT_MEMLOCK
            have[name] = (entry.get("Soft"), entry.get("Hard"))
    # podman adds nofile and nproc of its own, so only planned limits and foreign ones that docker would list count
    return _row(
        "ulimits",
        _limits(wanted),
        _limits(have),
        all(have.get(n) == v for n, v in wanted.items()) and not have.keys() - wanted.keys() - {"nofile", "nproc"},
    )


def _limits(limits: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{n}={s}:{h}" for n, (s, h) in sorted(limits.items())) or "none"


def _volumes(spec: ContainerSpec, inspect: dict[str, Any], host: dict[str, Any]) -> Row:
    planned = sorted(_bind(v) for v in spec.volumes)
    mounts, binds = inspect.get("Mounts"), host.get("Binds")
    if isinstance(mounts, list):
        have = sorted(
            (str(m.get("Source")), str(m.get("Destination")), m.get("RW") is False)
            for m in mounts
            if isinstance(m, dict) and m.get("Type", "bind") == "bind"
        )
    elif isinstance(binds, list):
        have = sorted(_bind(str(b)) for b in binds)
    else:
        return _unknown("volumes", _binds(planned))
    return _row("volumes", _binds(planned), _binds(have), planned == have)


def _bind(text: str) -> tuple[str, str, bool]:
    parts = [*text.split(":"), "", ""]
    return parts[0], parts[1], "ro" in parts[2].split(",")


def _binds(binds: list[tuple[str, str, bool]]) -> str:
    return ", ".join(f"{s}:{t}{':ro' if ro else ''}" for s, t, ro in binds) or "none"


def _restart(spec: ContainerSpec, host: dict[str, Any]) -> Row:
    policy = host.get("RestartPolicy")
    if not isinstance(policy, dict):
        return _unknown("restart_policy", spec.restart_policy)
    name = str(policy.get("Name") or "no")
    count = policy.get("MaximumRetryCount")
    have = f"{name}:{count}" if name == "on-failure" and count else name
    return _row("restart_policy", spec.restart_policy, have, have == spec.restart_policy)


def _labels(spec: ContainerSpec, config: dict[str, Any]) -> Iterator[Row]:
    labels = config.get("Labels", _MISSING)
    if labels is _MISSING:
        yield _unknown("labels", f"{len(spec.labels)} labels")
        return
    have = labels if isinstance(labels, dict) else {}
    for name, wanted in spec.labels.items():
        yield _row(f"label {name}", wanted, have.get(name, "missing"), have.get(name) == wanted)
