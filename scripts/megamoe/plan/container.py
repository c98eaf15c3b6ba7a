"""DEPLOY to one structured container specification; the Ansible role, `docker run` and compose all come from it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from megamoe.deploy.profiles import Profile
from megamoe.deploy.schema import Deploy, Ulimit
from megamoe.deploy.sizes import engine_bytes
from megamoe.plan.effective import CACHE_DIR_IN_CONTAINER, STATUS_DIR_IN_CONTAINER, env_of, flags_of

LABEL = "io.megamoe."


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything that decides how the container runs. None means that the engine's default applies."""

    name: str
    image: str
    command: list[str]
    env: dict[str, str]
    devices: list[str]
    group_add: list[str]  # numbers (or keep-groups); empty when only the host knows them
    group_add_from_host: list[str]  # device nodes whose group numbers must be added on the host
    ipc_mode: str
    init: bool
    stop_timeout: int
    shm_size: int | None  # bytes
    ulimits: dict[str, dict[str, int]]
    security_opts: list[str]
    cap_add: list[str]
    cap_drop: list[str]
    privileged: bool
    read_only: bool
    tmpfs: list[str]
    volumes: list[str]
    network_mode: str
    ports: list[str]
    labels: dict[str, str]
    user: str | None
    healthcheck: dict[str, Any]  # test (list), interval_s, timeout_s, retries, start_period_s
    restart_policy: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HostGroups:
    """Numeric groups of the GPU device nodes of one host. Empty: no facts."""

    kfd: int | None = None
    render: tuple[int, ...] = ()
    names: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> list[str]:
        return [str(gid) for gid in sorted({*([self.kfd] if self.kfd is not None else []), *self.render})]


def host_groups(facts: dict[str, Any]) -> HostGroups:
    """Reads host.groups and host.dev from facts; anything of another shape counts as unknown."""
    host = facts.get("host")
    host = host if isinstance(host, dict) else {}
    dev: dict[str, Any] = host["dev"] if isinstance(host.get("dev"), dict) else {}
    named: dict[str, Any] = host["groups"] if isinstance(host.get("groups"), dict) else {}

    def gid(node: Any) -> int | None:
        value = node.get("gid") if isinstance(node, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    render = tuple(
        g
        for path, node in dev.items()
        if re.fullmatch(r"/dev/dri/renderD\d+", str(path)) and (g := gid(node)) is not None
    )
    return HostGroups(
        gid(dev.get("/dev/kfd")),
        render,
        {str(k): v for k, v in named.items() if isinstance(v, int) and not isinstance(v, bool)},
    )


def wants_gpu(deploy: Deploy) -> bool:
    return deploy.engine == "atom"


def build(deploy: Deploy, profile: Profile, facts: dict[str, Any]) -> ContainerSpec:
    """The specification of an accepted DEPLOY. Order of all lists is stable, so that equal input gives equal text."""
    given, defaults = deploy.container, profile.container
    devices = given.devices if given.devices is not None else list(defaults["devices"])
    groups, from_host = _groups(deploy, facts, devices)
    ulimits = given.ulimits if given.ulimits is not None else dict(defaults["ulimits"])
    env = env_of(deploy, profile)
    volumes = [f"{deploy.model.path}:{deploy.model.path}:ro", f"{given.status_dir}:{STATUS_DIR_IN_CONTAINER}"]
    draft = deploy.args.draft_model
    if draft is not None and not _is_mounted(draft, [deploy.model.path, *(v.split(":")[1] for v in given.volumes)]):
        volumes.append(f"{draft}:{draft}:ro")
    if given.cache_dir:
        # One directory per image: a compile cache of another image is stale code (ROCm/ATOM recipes/DeepSeek-V4.md).
        volumes.append(f"{given.cache_dir}/{digest_of(deploy.image)[:16]}:{CACHE_DIR_IN_CONTAINER}")
    private = given.ipc in ("private", "shareable")
    spec = ContainerSpec(
        name=given.name,
        image=deploy.image,
        command=["serve", *flags_of(deploy)],
        env=env,
        devices=devices,
        group_add=groups,
        group_add_from_host=from_host,
        ipc_mode=given.ipc,
        init=given.init,
        stop_timeout=given.stop_timeout,
        shm_size=engine_bytes(given.shm_size) if private and given.shm_size is not None else None,
        ulimits={
            name: ({"soft": v.soft, "hard": v.hard} if isinstance(v, Ulimit) else {"soft": v, "hard": v})
            for name, v in sorted(ulimits.items())
        },
        security_opts=given.security_opts if given.security_opts is not None else list(defaults["security_opts"]),
        cap_add=sorted(_cap(c) for c in (given.cap_add if given.cap_add is not None else defaults["cap_add"])),
        cap_drop=sorted(_cap(c) for c in (given.cap_drop or [])),
        privileged=given.privileged,
        read_only=given.read_only,
        tmpfs=list(given.tmpfs),
        volumes=volumes + [v for v in given.volumes if v not in volumes],
        network_mode=given.network_mode,
        ports=_ports(deploy),
        labels={},
        user=given.user,
        healthcheck=_healthcheck(deploy, profile),
        restart_policy=given.restart_policy,
    )
    labels = {
        LABEL + "backend": deploy.args.moe_backend,
        LABEL + "engine": deploy.engine,
        LABEL + "plan-hash": plan_hash(spec, given.labels),
        LABEL + "profile": profile.name,
    }
    return ContainerSpec(**{**_shallow(spec), "labels": dict(sorted({**given.labels, **labels}.items()))})


def plan_hash(spec: ContainerSpec, user_labels: dict[str, str]) -> str:
    """sha256 over the specification without host-specific group numbers: equal on all hosts of one deployment."""
    body = {k: v for k, v in spec.as_dict().items() if k not in ("group_add", "group_add_from_host", "labels")}
    text = json.dumps({**body, "user_labels": user_labels}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(image: str) -> str:
    """The 64 hex digits of NAME@sha256:HEX or sha256:HEX; "" when there are none."""
    found = re.search(r"sha256:([0-9a-f]{64})\Z", image)
    return found[1] if found else ""


def _shallow(spec: ContainerSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ContainerSpec.__dataclass_fields__}


def _is_mounted(path: str, places: list[str]) -> bool:
    """Whether a path lies in one of the places that are mounted."""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _cap(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _groups(deploy: Deploy, facts: dict[str, Any], devices: list[str]) -> tuple[list[str], list[str]]:
    """Names never reach the engine: they would be looked up in the image, where render is another number."""
    given = deploy.container.group_add
    if given is not None and "keep-groups" in given:
        return ["keep-groups"], []
    nodes = (
        ["/dev/kfd", "/dev/dri/renderD128"] if wants_gpu(deploy) and any(d.startswith("/dev/") for d in devices) else []
    )
    if given is not None and not given:
        return [], []  # the user asked for none (a root container needs none)
    known = host_groups(facts)
    numbers = [str(g) for g in given or [] if re.fullmatch("[0-9]+", str(g))]
    named = [str(g) for g in given or [] if str(g) not in numbers]
    if given is not None and not named:
        return list(dict.fromkeys(numbers)), []
    resolved = [str(known.names[g]) for g in named if g in known.names and g != "render"]
    if known.numbers():
        return list(dict.fromkeys([*numbers, *resolved, *known.numbers()])), []
    return list(dict.fromkeys([*numbers, *resolved])), nodes


def _ports(deploy: Deploy) -> list[str]:
    given = deploy.container
    if given.network_mode in ("host", "none") or given.network_mode.startswith(("container:", "ns:")):
        return []
    return list(given.ports) or [f"{deploy.args.port}:{deploy.args.port}"]


def _healthcheck(deploy: Deploy, profile: Profile) -> dict[str, Any]:
    """Asks /health only: a correct answer is the smoke test's job. python3 is in both images, curl is not."""
    code = f"import urllib.request as u;u.urlopen('http://127.0.0.1:{deploy.args.port}/health',timeout=5)"
    return {
        "test": ["CMD", "python3", "-c", code],
        "interval_s": 30,
        "timeout_s": 10,
        "retries": 3,
        "start_period_s": profile.start_period_s,
    }
