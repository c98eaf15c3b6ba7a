"""Container flags: what docker and podman do with them, and what a rank that dies leaves behind."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from difflib import get_close_matches

from megamoe.deploy.schema import DP_PORT, Ulimit
from megamoe.deploy.sizes import GIB, engine_bytes, human
from megamoe.plan.container import digest_of, host_groups
from megamoe.plan.effective import CACHE_DIR_IN_CONTAINER, STATUS_DIR_IN_CONTAINER
from megamoe.plan.rule import Context, Hit, key, refuse, warn

_IMAGE = re.compile(
    r"(?P<name>(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?\Z"
)
_ULIMITS = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
]
# Where images keep compiled or generated code. Sources: ROCm/ATOM, ROCm/aiter, ROCm/mori, Triton, PyTorch defaults.
_CACHE = re.compile(r"/(\.cache|\.triton|\.aiter|\.mori|aiter_configs|torchinductor[^/]*|\.flydsl)(/|\Z)")
_CODE = re.compile(
    r"(/(site|dist)-packages(/|\Z))|^/(app|opt/(megamoe|aiter|venv|rocm|flydsl|atom|mori)|usr/(local/)?lib)(/|\Z)", re.I
)
# What the image cannot run without; a mount at one of these, or above it, hides it. /app: the pinned ATOM.
_IMAGE_OWN = ("/app", "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt/megamoe", "/opt/rocm", "/opt/venv", "/proc",
              "/sbin", "/sys", "/usr/bin", "/usr/lib", "/var/lib")  # fmt: skip
_HOST_ROOTS = ("", "/etc", "/usr", "/var", "/boot", "/lib", "/bin", "/sbin", "/root", "/proc", "/sys", "/dev", "/run")
# Options of a bind mount that docker takes, and those that podman takes beside them.
_MOUNT_OPTIONS = re.compile("ro|rw|z|Z|r?private|r?shared|r?slave|nocopy|cached|delegated|consistent")
_PODMAN_OPTIONS = re.compile("U|O|(no)?(dev|exec|suid)|r?bind|copy|idmap|r?unbindable|[a-z]+=.*")
_SECURITY_KEYS = ("apparmor", "label", "mask", "no-new-privileges", "proc-opts", "seccomp", "systempaths", "unmask",
                  "writable-cgroups", "credentialspec")  # fmt: skip
# capabilities(7), and the engines' word for all of them.
_CAPS = """
    ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH
    FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE
    NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE
    SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
"""
_MAX_ID = 2147483647  # opencontainers/runc libcontainer/user: the largest uid and gid that the engines take
MIN_STOP_TIMEOUT = 60  # seconds; ROCm/ATOM closes its ranks within 5 s + 1 s after open requests have ended
MEMLOCK_DEFAULT = 8 << 20  # the kernel's own hard limit (MLOCK_LIMIT), which a user has where nobody raised it


def image(c: Context) -> Iterator[Hit]:
    text = c.deploy.image
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return
    found = _IMAGE.match(text)
    if found is None:
        yield refuse(
            "image_malformed",
            f"image is {text[:120]!r}",
            "neither NAME@sha256:<64 hex digits> nor sha256:ID",
            "give the reference that `docker inspect --format '{{index .RepoDigests 0}}' IMAGE` prints",
            "image",
        )
        return
    if found["digest"] is None:
        yield refuse(
            "image_not_pinned",
            f"image {text!r} has no digest",
            "a tag can be re-pointed: two hosts, or two days, would run different code under one name",
            "append @sha256:<digest> of the image that passed its gates",
            "image",
        )
    elif found["tag"] and not c.deploy.image_tag_is_comment:
        yield refuse(
            "image_tag_and_digest",
            f"image {text!r} has a tag and a digest",
            "the engine pulls by digest and ignores the tag without a word, so the tag may be untrue",
            "drop the tag, or set image_tag_is_comment: true (tag not verified)",
            "image",
        )
    if (
        c.container.engine == "podman"
        and found["name"].split("/")[0] not in ("localhost",)
        and not re.match(r"[^/]*[.:][^/]*/", found["name"])
    ):
        yield refuse(
            "podman_short_name",
            f"image {text!r} names no registry",
            "podman has no default registry: it asks, or refuses without a terminal; docker would take docker.io",
            f"write the registry, such as docker.io/{'' if '/' in found['name'] else 'library/'}{found['name']}",
            "image",
            "container.engine",
        )


def ipc_and_shm(c: Context) -> Iterator[Hit]:
    ipc, shm = c.container.ipc, c.container.shm_size
    size = engine_bytes(shm) if shm is not None else None
    if ipc not in ("host", "private", "shareable", "none") and not ipc.startswith("container:"):
        yield refuse(
            "ipc_mode",
            f"container.ipc is {ipc!r}",
            "engines know host, private, shareable, none, container:NAME",
            "use host (what upstream runs) or private with a shm_size",
            "container.ipc",
        )
    if ipc == "none" and c.on_gpu:
        yield refuse(
            "ipc_mode",
            "container.ipc is 'none'",
            "the container gets no /dev/shm, and RCCL needs it",
            "use host, or private with shm_size: 16g",
            "container.ipc",
        )
    if shm is not None and (size is None or size == 0):
        yield refuse(
            "shm_size_malformed",
            f"container.shm_size is {shm!r}",
            "not a size the engines parse, or zero",
            "write it like 16g or 512m",
            "container.shm_size",
        )
    elif shm is not None and (ipc in ("host", "none") or ipc.startswith("container:")):
        pair = f"container.ipc: {ipc} together with container.shm_size: {shm}"
        if c.container.engine == "podman":
            yield refuse(
                "podman_ipc_host_shm_size",
                pair,
                "podman refuses the pair: it exits 125 and starts nothing",
                "remove shm_size (that namespace brings its own /dev/shm), or set ipc: private",
                "container.engine",
                "container.ipc",
                "container.shm_size",
            )
        else:
            yield warn(
                "shm_size_no_effect",
                pair,
                "docker accepts shm_size but it has no effect: that namespace brings its own /dev/shm; it is left "
                "out of what is rendered",
                "remove shm_size, or set ipc: private to make it count",
                "container.ipc",
                "container.shm_size",
            )
    elif ipc in ("private", "shareable") and c.on_gpu and not _own_shm(c):
        if shm is None:
            yield refuse(
                "shm_default_64m",
                f"container.ipc is {ipc!r} and container.shm_size is not given",
                "/dev/shm would be the 64 MiB default; RCCL then fails with 'unhandled system error'",
                "set ipc: host, or shm_size: 16g",
                "container.ipc",
                "container.shm_size",
            )
        elif size is not None and size <= 64 << 20:
            yield refuse(
                "shm_default_64m",
                f"container.shm_size is {human(size)}",
                "RCCL needs more than the 64 MiB default and fails with 'unhandled system error'",
                "set shm_size: 16g",
                "container.shm_size",
            )
        elif size is not None and size < 8 * GIB and c.layout.ranks > 1:
            yield warn(
                "shm_small",
                f"container.shm_size is {human(size)} for {c.layout.ranks} ranks",
                "below 8 GiB has been seen to run out; upstream CI uses 16 GiB",
                "set shm_size: 16g",
                "container.shm_size",
            )


def _own_shm(c: Context) -> bool:
    """Whether DEPLOY mounts something at /dev/shm itself."""
    return any(entry.split(":")[0] == "/dev/shm" for entry in c.container.tmpfs) or any(
        volume.split(":")[1:2] == ["/dev/shm"] for volume in c.container.volumes
    )


def stopping(c: Context) -> Iterator[Hit]:
    make = refuse if c.on_gpu else warn
    if not c.container.init:
        yield make(
            "init_off",
            "container.init is false",
            "nothing reaps ranks that die; zombies keep GPU contexts and VRAM is held with no owner",
            "set container.init: true",
            "container.init",
        )
    if c.container.stop_timeout < MIN_STOP_TIMEOUT:
        yield make(
            "stop_timeout_short",
            f"container.stop_timeout is {c.container.stop_timeout} s",
            "ranks that are SIGKILLed in a collective leave VRAM held with no owner; requests need time to end",
            f"set container.stop_timeout: {MIN_STOP_TIMEOUT} or more",
            "container.stop_timeout",
        )
    policy = c.container.restart_policy
    if not re.fullmatch(r"no|always|unless-stopped|on-failure(:[0-9]{1,4})?", policy):
        yield refuse(
            "restart_policy",
            f"container.restart_policy is {policy!r}",
            "engines know no, on-failure[:N], unless-stopped and always",
            "use no",
            "container.restart_policy",
        )
    elif policy != "no" and c.on_gpu:
        yield warn(
            "restart_without_gate",
            f"container.restart_policy is {policy!r}",
            "a restarted server takes traffic without its gates, and a crash loop hides the first cause",
            "use no: Ansible starts it again, then validates",
            "container.restart_policy",
        )


def devices(c: Context) -> Iterator[Hit]:
    given = c.container.devices
    listed = given if given is not None else list(c.profile.container["devices"])
    for device in listed:
        node = re.fullmatch(r"/dev/[A-Za-z0-9_./-]+(:/[A-Za-z0-9_./-]+)?(:[rwm]{1,3})?", device)
        climbs = ".." in re.split("[/:]", device)
        if (node is None or climbs) and not re.fullmatch(r"[a-z0-9.-]+/[a-z0-9-]+=[A-Za-z0-9._-]+", device):
            yield refuse(
                "device_malformed",
                f"container.devices has {device!r}",
                "neither a path below /dev nor a CDI name such as amd.com/gpu=all",
                "list /dev/kfd and /dev/dri",
                "container.devices",
            )
    for repeated in sorted({d for d in listed if listed.count(d) > 1}):
        yield warn(
            "device_twice",
            f"container.devices has {repeated!r} twice",
            "engines differ in what they do with it",
            "list it once",
            "container.devices",
        )
    if not c.on_gpu:
        return
    by_name = [d.partition("=")[2] for d in listed if d.startswith("amd.com/gpu=")]
    if by_name:
        if "all" not in by_name and len(set(by_name)) < c.layout.ranks:
            yield refuse(
                "device_missing",
                f"container.devices names {len(set(by_name))} GPU(s) by CDI for {c.layout.ranks} ranks",
                "each rank owns one GPU and MegaMoE needs all of them visible in every process",
                "list amd.com/gpu=all",
                "container.devices",
                "args.tensor_parallel",
            )
        return
    # Only a node that keeps its name counts: the runtime looks for it there.
    same = [_node(d) for d in listed if _node(d)[0] == _node(d)[1]]
    nodes = {source for source, _, _ in same}
    render = [n for n in nodes if n.startswith("/dev/dri/renderD")]
    missing = [n for n in ("/dev/kfd", "/dev/dri") if n not in nodes and not (n == "/dev/dri" and render)]
    if missing:
        moved = [d for d in listed if _node(d)[0] in missing]
        yield refuse(
            "device_missing",
            f"container.devices lacks {' and '.join(missing)}"
            + (f" ({', '.join(moved)} puts it where the runtime does not look)" if moved else ""),
            "without /dev/kfd there is no compute, without the render nodes no memory; rocm-smi may still work",
            f"add {', '.join(missing)} to container.devices",
            "container.devices",
        )
    if "/dev/dri" not in nodes and render and len(render) < c.layout.ranks:
        yield refuse(
            "device_missing",
            f"container.devices has {len(render)} render nodes for {c.layout.ranks} ranks",
            "each rank owns one GPU and MegaMoE needs all of them visible in every process",
            "list /dev/dri as a whole",
            "container.devices",
            "args.tensor_parallel",
        )
    for source, _, allowed in sorted(same):
        if (source in ("/dev/kfd", "/dev/dri") or source in render) and not {"r", "w"} <= set(allowed):
            yield refuse(
                "device_rights",
                f"container.devices gives {source} with rights {allowed!r}",
                "the runtime opens it for reading and writing",
                f"write {source} without rights",
                "container.devices",
            )


def _node(device: str) -> tuple[str, str, str]:
    """(on the host, in the container, rights) of HOST[:CONTAINER][:RIGHTS]."""
    source, *rest = device.split(":")
    inside = rest[0] if rest and rest[0].startswith("/") else source
    allowed = rest[-1] if rest and not rest[-1].startswith("/") else "rwm"
    return posixpath.normpath(source), posixpath.normpath(inside), allowed


def groups(c: Context) -> Iterator[Hit]:
    given = [str(g) for g in c.container.group_add or []]
    known = host_groups(c.facts)
    if "keep-groups" in given:
        if c.container.engine == "docker":
            yield refuse(
                "keep_groups_docker",
                "container.group_add has keep-groups with engine docker",
                "it is podman's word; docker looks for a group of that name and fails",
                "leave group_add out: the numbers of /dev/kfd and renderD* are added",
                "container.group_add",
                "container.engine",
            )
        if len(given) > 1:
            yield refuse(
                "keep_groups_alone",
                f"container.group_add is {given}",
                "podman refuses keep-groups together with any other group",
                "list keep-groups alone",
                "container.group_add",
            )
        return
    if c.container.engine == "docker" and c.container.rootless and c.on_gpu:
        yield refuse(
            "rootless_groups",
            "container.rootless is true with engine docker",
            "the user namespace maps the "
            "host's render group away, and docker has no keep-groups: /dev/kfd stays closed",
            "run docker as root, or podman with group_add: [keep-groups]",
            "container.rootless",
            "container.engine",
        )
    if c.container.engine == "podman" and c.container.rootless and c.on_gpu:
        yield refuse(
            "rootless_groups",
            "container.rootless is true without keep-groups",
            "in a user namespace a numeric "
            "group is another group on the host: /dev/kfd stays closed although rocm-smi works",
            "set container.group_add: [keep-groups] (needs crun)",
            "container.rootless",
            "container.group_add",
        )
    names = [g for g in given if not re.fullmatch(r"-?[0-9]+", g)]
    if names and c.on_gpu:
        numbers = known.numbers()
        rendered = (
            f"rendered as the numbers {', '.join(numbers)} of this host's device nodes"
            if numbers
            else ("left out; the numbers of the device nodes are read on the host")
        )
        yield warn(
            "group_names",
            f"container.group_add has names: {', '.join(names)}",
            f"an engine looks a name up inside the image, where render is another number than on the host; {rendered}",
            "leave group_add out",
            "container.group_add",
        )
    for number in (g for g in given if g not in names):
        if not 0 <= int(number[:18]) <= _MAX_ID:
            yield refuse(
                "group_number",
                f"container.group_add has {number[:40]}",
                f"engines take group numbers from 0 to {_MAX_ID}",
                "leave group_add out",
                "container.group_add",
            )
    needed = [n for n in known.numbers() if n != "0"]
    if c.container.group_add == [] and c.on_gpu and not _root(c) and needed and not _open_to_all(c):
        yield refuse(
            "group_mismatch",
            f"container.group_add is empty, but the device nodes of this host belong to {', '.join(needed)}",
            "the container's user could not open /dev/kfd; rocm-smi would work all the same",
            f"add {', '.join(needed)}, or leave group_add out",
            "container.group_add",
            "container.user",
        )
    if given and not names and c.on_gpu and needed and not set(needed) <= set(given):
        lacking = sorted(set(needed) - set(given), key=int)
        yield refuse(
            "group_mismatch",
            f"container.group_add is {given}, but the device nodes of this host belong to {', '.join(needed)}",
            "the container could not open /dev/kfd; rocm-smi would work all the same",
            f"add {', '.join(lacking)}, or leave group_add out",
            "container.group_add",
        )
    elif given and not names and c.on_gpu and not needed:
        yield warn(
            "group_hard_coded",
            f"container.group_add is {given}",
            "the numbers differ from host to host and no facts were given to check them",
            "leave group_add out, or give --facts",
            "container.group_add",
        )


def _root(c: Context) -> bool:
    """Whether the container's process is root, whom no group has to let in. The image's own user is not root."""
    return (c.container.user or "").split(":")[0] == "0"


def _open_to_all(c: Context) -> bool:
    """Whether the facts say that anybody may read and write every GPU node of the host."""
    host = c.facts.get("host")
    nodes = host.get("dev") if isinstance(host, dict) else None
    modes = [str(n.get("mode", "")) for n in nodes.values() if isinstance(n, dict)] if isinstance(nodes, dict) else []
    return bool(modes) and all(re.fullmatch(r"0?[0-7]{2}[67]", mode) for mode in modes)


def rights(c: Context) -> Iterator[Hit]:
    if c.container.privileged:
        yield warn(
            "privileged",
            "container.privileged is true",
            "the container gets every device and capability of the host; none of it has been shown to be needed",
            "set container.privileged: false",
            "container.privileged",
        )
    user = c.container.user
    if user is not None and not re.fullmatch(r"[0-9]+(:[0-9]+)?", user):
        yield refuse(
            "user_not_numeric",
            f"container.user is {user!r}",
            "a name is looked up inside the image and may be another user there",
            'write numbers, such as "1000:1000"',
            "container.user",
        )
    elif user is not None and any(int(part[:18]) > _MAX_ID for part in user.split(":")):
        yield refuse(
            "user_not_numeric",
            f"container.user is {user[:60]!r}",
            f"engines take numbers from 0 to {_MAX_ID}",
            'write numbers, such as "1000:1000"',
            "container.user",
        )
    room = {"container.cache_dir": c.container.cache_dir, "container.tmpfs": c.container.tmpfs}
    if c.container.read_only and c.on_gpu and not all(room.values()):
        yield warn(
            "read_only_without_room",
            "container.read_only is true without " + " and ".join(name for name, given in room.items() if not given),
            "the engine compiles at start and writes to /tmp and to its caches: 'Read-only file system'",
            "give container.cache_dir and container.tmpfs: [/tmp]",
            "container.read_only",
            "container.cache_dir",
            "container.tmpfs",
        )
    yield from _capabilities(c)
    for option in c.container.security_opts or []:
        name = re.split("[=:]", option, maxsplit=1)[0]
        if name not in _SECURITY_KEYS:
            near = get_close_matches(name, _SECURITY_KEYS, n=1)
            yield refuse(
                "security_opt",
                f"container.security_opts has {option[:80]!r}",
                "engines refuse an option that they do not know, and start nothing",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(_SECURITY_KEYS)}",
                "container.security_opts",
            )
    for name in c.container.ulimits or {}:
        if name not in _ULIMITS:
            yield refuse(
                "ulimit_unknown",
                f"container.ulimits has {name!r}",
                f"engines know {', '.join(_ULIMITS)}",
                "correct the name",
                "container.ulimits",
            )
    for name, value in (c.container.ulimits or {}).items():
        if isinstance(value, int) and value < -1:
            yield refuse(
                "ulimit_order",
                f"container.ulimits.{name} is {value}",
                "a limit is a number from 0 up, or -1 for none",
                "write -1 for no limit",
                "container.ulimits",
            )
        if not isinstance(value, int) and value.hard != -1 and (value.soft > value.hard or value.soft == -1):
            yield refuse(
                "ulimit_order",
                f"container.ulimits.{name} has soft {value.soft} above hard {value.hard}",
                "the kernel refuses it and the container does not start",
                "raise hard or lower soft",
                "container.ulimits",
            )
    yield from _rootless_memlock(c)
    if any("infiniband" in d for d in c.container.devices or []) and c.mega:
        memlock = (c.container.ulimits or c.profile.container["ulimits"]).get("memlock")
        if memlock not in (-1,) and getattr(memlock, "hard", None) != -1:
            yield refuse(
                "memlock",
                "RDMA devices are passed but ulimits.memlock is not -1",
                "the 8 MB default breaks memory registration",
                "set container.ulimits.memlock: -1",
                "container.devices",
                "container.ulimits",
            )


def _rootless_memlock(c: Context) -> Iterator[Hit]:
    """Only root raises a limit above the user's hard one, and -1 is not cut down to it (podman issue 19319)."""
    given = c.container.ulimits
    limit = (given if given is not None else c.profile.container["ulimits"]).get("memlock")
    hard = limit.hard if isinstance(limit, Ulimit) else limit
    if c.container.engine != "podman" or not c.container.rootless or hard is None or 0 <= hard <= MEMLOCK_DEFAULT:
        return
    yield warn(
        "memlock_rootless",
        f"podman is rootless and the memlock limit is {'unlimited' if hard == -1 else f'{hard} bytes'}"
        + ("" if given is not None else " (the profile's default)"),
        "where that is above the user's own hard limit, the container does not start: 'crun: setrlimit "
        "`RLIMIT_MEMLOCK`: Operation not permitted'",
        "give the user 'memlock unlimited' (hard) in /etc/security/limits.d and LimitMEMLOCK=infinity in a drop-in of "
        "user@.service, log in anew and check with `ulimit -Hl`; or give container.ulimits without memlock",
        "container.ulimits",
        "container.rootless",
        "container.engine",
    )


def _capabilities(c: Context) -> Iterator[Hit]:
    """Names that exist, and none that is both given and taken; what the profile adds counts as given."""

    def plain(names: list[str]) -> set[str]:
        return {name.upper().removeprefix("CAP_") for name in names}

    given = c.container.cap_add if c.container.cap_add is not None else list(c.profile.container["cap_add"])
    dropped = c.container.cap_drop or []
    for name in sorted((plain(given) | plain(dropped)).difference(_CAPS.split())):
        near = get_close_matches(name, _CAPS.split(), n=1)
        yield refuse(
            "cap_unknown",
            f"container.cap_add or cap_drop has {name[:60]!r}",
            "engines refuse a capability that does not exist, and start nothing",
            f"did you mean {near[0]}?" if near else "see capabilities(7)",
            "container.cap_add",
            "container.cap_drop",
        )
    both = sorted(plain(given) & plain(dropped))
    if both:
        default = "" if c.container.cap_add is not None else " (cap_add by the profile: it is not given)"
        yield refuse(
            "cap_both",
            f"{', '.join(both)} is in cap_add and in cap_drop{default}",
            "engines disagree on which one wins",
            "keep one of the two" if not default else "give container.cap_add without it, or drop another",
            "container.cap_add",
            "container.cap_drop",
        )


def _hides(target: str) -> bool:
    """Whether a mount at this place hides something that the image needs."""
    place = posixpath.normpath(target).rstrip("/")
    return any(own == place or own.startswith(place + "/") for own in _IMAGE_OWN)


def _unfit(path: str) -> str:
    """Why a host path cannot be mounted as it is; "" when it can."""
    if not path.startswith("/"):
        return ("a hub name or relative path would be resolved inside the container, where a download would vanish "
                "with it")
    if path.strip("/") == "":
        return "the whole host would be mounted over the image's own files"
    if ".." in path.split("/"):
        return "'..' means another directory on the host than inside the container, where links may differ"
    if path != path.strip() or any(ch in path for ch in ":,") or any(ord(ch) < 32 or ord(ch) == 127 for ch in path):
        return "':' and ',' separate the parts of a mount, and blanks at its ends or control characters do not survive"
    return ""


def _own_mounts(c: Context) -> dict[str, str]:
    """Where the plan itself mounts something: {path in the container: the field it comes from}."""
    own = {c.deploy.model.path: "model.path", STATUS_DIR_IN_CONTAINER: "container.status_dir"}
    if c.container.cache_dir:
        own[CACHE_DIR_IN_CONTAINER] = "container.cache_dir"
    return {posixpath.normpath(target): field for target, field in own.items()}


def _twice(targets: dict[str, str], target: str, entry: str, field: str) -> Iterator[Hit]:
    """Refuses a second mount at one place; else notes this one in `targets`."""
    target = posixpath.normpath(target)
    if target in targets:
        yield refuse(
            "volume_twice",
            f"{field} has {entry!r}: {targets[target]} mounts {target} already",
            "docker refuses two mounts at one place ('Duplicate mount point'), or one hides the other in silence",
            "keep one of the two",
            field,
        )
    targets.setdefault(target, f"{entry!r} in {field}")


def _over_code(target: str, entry: str, field: str) -> Iterator[Hit]:
    if _CODE.search(target) or _hides(target):
        yield refuse(
            "volume_over_code",
            f"{field} has {entry!r}",
            "it lays something else over the image's own files: the digest no longer says what runs, and Python of one "
            "version over native code of another has answered wrongly with all kernel tests green",
            "build an image with the change and pin its digest",
            field,
        )


def tmpfs(c: Context) -> Iterator[Hit]:
    targets = _own_mounts(c)
    for volume in c.container.volumes:
        _, _, target = volume.partition(":")
        targets.setdefault(posixpath.normpath(target.partition(":")[0]), f"{volume!r} in container.volumes")
    for entry in c.container.tmpfs:
        target = entry.partition(":")[0]
        if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
            yield refuse(
                "tmpfs_malformed",
                f"container.tmpfs has {entry!r}",
                "not PATH[:OPTIONS] with an absolute path below / in the container",
                "write such as /tmp:size=64m",
                "container.tmpfs",
            )
            continue
        yield from _twice(targets, target, entry, "container.tmpfs")
        yield from _over_code(target, entry, "container.tmpfs")


def volumes(c: Context) -> Iterator[Hit]:
    digest = digest_of(c.deploy.image)
    targets = _own_mounts(c)
    for volume in c.container.volumes:
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not all(parts):
            yield refuse(
                "volume_malformed",
                f"container.volumes has {volume!r}",
                "not HOST:CONTAINER[:OPTIONS]",
                "write both paths",
                "container.volumes",
            )
            continue
        source, target = parts[0], parts[1]
        if not source.startswith("/") or ".." in source.split("/"):
            yield refuse(
                "volume_relative",
                f"container.volumes has {volume!r}",
                "a relative or climbing host path means another directory, or a named volume, on each engine",
                "write an absolute host path",
                "container.volumes",
            )
        if not target.startswith("/"):
            yield refuse(
                "volume_malformed",
                f"container.volumes has {volume!r}",
                "the container path is not absolute",
                "write an absolute container path",
                "container.volumes",
            )
        options = set(parts[2].split(",")) if len(parts) == 3 else set()
        podman = c.container.engine == "podman"
        wrong = sorted(
            o for o in options if not (_MOUNT_OPTIONS.fullmatch(o) or (podman and _PODMAN_OPTIONS.fullmatch(o)))
        )
        if wrong or {"ro", "rw"} <= options:
            yield refuse(
                "volume_malformed",
                f"container.volumes has {volume!r}",
                f"{c.container.engine} does not know {', '.join(map(repr, wrong))}" if wrong else "both ro and rw",
                "write ro, rw or nothing after the container path",
                "container.volumes",
                "container.engine",
            )
        yield from _twice(targets, target, volume, "container.volumes")
        if _CACHE.search(target) and (not digest or digest[:12] not in source):
            yield refuse(
                "cache_not_keyed",
                f"container.volumes has {volume!r}",
                "a compile cache that outlives its image serves stale generated code (NameError after an upgrade)",
                "use container.cache_dir, which is keyed by the image digest",
                "container.volumes",
                "image",
            )
        if source.rstrip("/").endswith(("docker.sock", "podman.sock", "containerd.sock")):
            yield refuse(
                "engine_socket",
                f"container.volumes has {volume!r}",
                "it hands the host to the container",
                "remove it",
                "container.volumes",
            )
        elif source.rstrip("/") in _HOST_ROOTS and "ro" not in options:
            yield refuse(
                "host_root_mounted",
                f"container.volumes has {volume!r}",
                "it gives the container a system directory of the host to write to",
                "mount the one directory that is needed",
                "container.volumes",
            )
        yield from _over_code(target, volume, "container.volumes")
    for name, path in (
        ("container.status_dir", c.container.status_dir),
        ("container.cache_dir", c.container.cache_dir),
        ("model.path", c.deploy.model.path),
        ("args.draft_model", c.args.draft_model),
    ):
        if path is None:
            continue
        fix = "give an absolute host directory without ':', ',' or '..'"
        why = _unfit(path)
        if not why and name in ("model.path", "args.draft_model") and _hides(path):
            why = "it is mounted at the same path, where it would hide what the image needs"
            fix = "keep the model in a directory of its own, such as /models/NAME"
        if why:
            yield refuse("path_not_absolute", f"{name} is {path[:120]!r}", why, fix, name)


def network(c: Context) -> Iterator[Hit]:
    mode = c.container.network_mode
    if mode == "none":
        yield refuse(
            "network_none",
            "container.network_mode is 'none'",
            "nobody could reach the server",
            "use host or bridge",
            "container.network_mode",
        )
    if (mode == "host" or mode.startswith(("container:", "ns:"))) and c.container.ports:
        yield refuse(
            "ports_with_host",
            f"container.ports {c.container.ports} with network_mode {mode}",
            "published ports are discarded, or refused, on a network that is not the container's own",
            "remove ports, or use network_mode: bridge",
            "container.ports",
            "container.network_mode",
        )
    for repeated in sorted({p for p in c.container.ports if c.container.ports.count(p) > 1}):
        yield refuse(
            "port_malformed",
            f"container.ports has {repeated!r} twice",
            "the second one finds the port taken: 'port is already allocated'",
            "list it once",
            "container.ports",
        )
    for port in c.container.ports:
        found = re.fullmatch(r"(?:[0-9.]+:|\[[0-9a-f:]+\]:)?([0-9]{1,5}):([0-9]{1,5})(?:/tcp)?", port)
        if found is None or not all(0 < int(n) < 65536 for n in found.groups()):
            yield refuse(
                "port_malformed",
                f"container.ports has {port!r}",
                "not [ADDRESS:]HOST:CONTAINER",
                "write such as 127.0.0.1:8000:8000",
                "container.ports",
            )
        elif int(found[2]) != c.args.port:
            yield warn(
                "port_other",
                f"container.ports has {port!r}, the server listens on {c.args.port}",
                "nothing answers behind that port",
                f"publish {c.args.port}",
                "container.ports",
                "args.port",
            )
    if c.args.port == c.args.internal_port:
        yield refuse(
            "port_taken",
            f"args.port and args.internal_port are both {c.args.port}",
            "the ranks' rendezvous holds that port before the server binds it: [Errno 98] after start-up",
            "use another port",
            "args.port",
            "args.internal_port",
        )
    for name, value in (("args.port", c.args.port), ("args.internal_port", c.args.internal_port)):
        if value == DP_PORT:
            yield refuse(
                "port_taken",
                f"{name} is {DP_PORT}",
                "ATOM's data-parallel group always takes it",
                "use another port",
                name,
            )


def address(c: Context) -> Iterator[Hit]:
    """The address that the server binds: the health check asks 127.0.0.1, and a published port comes from outside."""
    bound = c.args.host
    shared = c.container.network_mode == "host"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9a-fA-F]*:[0-9a-fA-F:.]*", bound):
        yield refuse(
            "host_address",
            f"args.host is {bound[:60]!r}",
            "it is neither an address nor a name, so the server cannot bind it after the load",
            "write 0.0.0.0",
            "args.host",
        )
    elif not shared and bound in ("127.0.0.1", "localhost", "::1"):
        yield refuse(
            "host_address",
            f"args.host is {bound} with network_mode {c.container.network_mode}",
            "the server would hear its own container only; a published port reaches nobody",
            "set args.host: 0.0.0.0, and restrict the port with container.ports: [127.0.0.1:PORT:PORT]",
            "args.host",
            "container.network_mode",
        )
    elif bound not in ("0.0.0.0", "::", "127.0.0.1", "localhost"):
        yield warn(
            "host_address",
            f"args.host is {bound}",
            "the container's health check asks 127.0.0.1, where nothing answers then: healthy never comes",
            "set args.host: 0.0.0.0, or 127.0.0.1 with network_mode host",
            "args.host",
        )
    low = [f"args.{name} {value}" for name, value in (("port", c.args.port), ("internal_port", c.args.internal_port))
           if value < 1024]  # fmt: skip
    if low and shared and not _root(c):
        yield warn(
            "port_privileged",
            f"{', '.join(low)} with network_mode host",
            "on the host's network a user that is not root may bind ports from 1024 up only: EACCES, after the load",
            "use a port from 1024 up, or lower net.ipv4.ip_unprivileged_port_start on the host",
            "args.port",
            "args.internal_port",
            "container.network_mode",
            "container.user",
        )


def health(c: Context) -> Iterator[Hit]:
    if c.container.engine == "podman":
        yield Hit(
            "podman_health_timer",
            "info",
            "container.engine is podman: each health check is a transient systemd timer",
            "docker's daemon runs them itself; under podman without systemd none ever runs and the state stays "
            "'starting', and a rootless one ends with its user's session",
            "on a host with systemd nothing (rootless: `loginctl enable-linger USER`); elsewhere call `podman "
            "healthcheck run NAME` from a timer of your own, or watch /health from outside",
            key("container.engine"),
        )


RULES = (image, ipc_and_shm, stopping, devices, groups, rights, volumes, tmpfs, network, address, health)
