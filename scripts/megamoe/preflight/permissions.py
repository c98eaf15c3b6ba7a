"""Whether the container's user can use the device nodes: by really opening them, then by numbers and modes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding
from megamoe.preflight.reading import Facts, finding, mapping, num, text, unknown

WHY = "the engine's ranks open it read-write; a monitoring tool that lists the GPUs does not need that"


def permissions(facts: Facts, deploy: Deploy) -> list[Finding]:
    """The first thing that is certain. rocm-smi's success is no evidence (ROCm/ROCm-docker#116, #93)."""
    return next(iter(_findings(facts, deploy)), [])


def _findings(facts: Facts, deploy: Deploy) -> Iterator[list[Finding]]:
    host, probe = mapping(facts.get("host")), mapping(facts.get("probe"))
    nodes = {str(p): mapping(d) for p, d in mapping(host.get("dev")).items()}
    owners = {p: int(g) for p, d in nodes.items() if (g := num(d.get("gid"))) is not None}
    opened = probe.get("open_kfd_rdwr")
    listed = probe.get("container_groups")
    have = {int(g) for g in listed if num(g) is not None} if isinstance(listed, list) else None
    numbers = ", ".join(map(str, sorted(set(owners.values())))) or "the number from `stat -c %g /dev/kfd`"
    fix = f"give numeric groups: container.group_add: [{numbers}]; names resolve inside the image to other numbers"
    drift = _drift(facts)
    closed = [p for p, d in nodes.items() if (bits := _rights(d)) is not None and not (bits[1] or bits[2])]
    # Without container.user the image's own user counts; where that is unknown too, it may be root.
    user = deploy.container.user or text(mapping(facts.get("image")).get("user")) or "0"
    root = user.split(":")[0] in ("0", "root")
    refused = isinstance(opened, str) and opened != "OK"
    shut = "/dev/kfd" in closed and opened == "EACCES"  # then a group number is no remedy
    if refused and not shut:
        yield [_refused(str(opened), owners.get("/dev/kfd"), have, drift, fix)]
    if closed and opened != "OK":
        yield [finding("DEVICE_MODE", "error", f"{', '.join(sorted(closed)[:9])}: the node is closed to its group "
                                               "(mode "
                       f"{text(nodes[closed[0]].get('mode'), 8)})", "no group number helps when the group has no "
                                                                    "rights",
                       "restore the driver's udev rule (70-amdgpu.rules: GROUP render, MODE 0660) and reload it with "
                       "`udevadm control --reload` and `udevadm trigger`")]  # fmt: skip
    if have is not None and not root:
        # A node that anybody may open needs no group, and one that really opened has proven itself.
        lacking = {g: p for p, g in owners.items() if g not in have and not (_rights(nodes[p]) or (0, 0, 0))[2]
                   and not (opened == "OK" and p == "/dev/kfd")}  # fmt: skip
        if lacking:
            shown = ", ".join(f"{g} ({p})" for g, p in sorted(lacking.items())[:9])
            yield [finding("DEVICE_PERMISSION", "error", f"the container lacks group {shown}{drift}", WHY, fix)]
    if "dev" in host and "/dev/kfd" not in nodes and opened is None and nodes:
        yield [finding("DEVICE_UNUSABLE", "error", "render nodes are there, /dev/kfd is not", "there is no compute "
                       "without it; tools that only list GPUs still work", "load the whole driver (`modprobe amdgpu`), "
                       "then see `dmesg | grep kfd`")]  # fmt: skip
    on_host = probe.get("host_open_kfd_rdwr")
    if opened is None and isinstance(on_host, str) and on_host not in ("OK", "EACCES", "EPERM"):
        yield [finding("DEVICE_UNUSABLE", "error", f"opening /dev/kfd on the host gives {on_host[:20]}", WHY,
                       "load amdgpu (`modprobe amdgpu`), then see `dmesg | grep amdgpu`")]  # fmt: skip
    names = [str(g) for g in deploy.container.group_add or [] if not str(g).isdecimal() and str(g) != "keep-groups"]
    if opened is None and drift and names:
        yield [finding("GROUP_DRIFT", "warn", f"container.group_add has the names {', '.join(names)}{drift}", "an "
            "engine "
                       "looks a name up inside the image, so the container would get the wrong "
                       "number", fix)]  # fmt: skip
    if opened is None:
        yield [unknown("KFD_ACCESS", "whether the container's user can open /dev/kfd is unknown", "only a real open as "
                       "that user is evidence", "collect facts as root, or give probe.open_kfd_rdwr")]  # fmt: skip


def _refused(opened: str, owner: int | None, have: set[int] | None, drift: str, fix: str) -> Finding:
    if opened not in ("EACCES", "EPERM"):
        return finding("DEVICE_UNUSABLE", "error", f"opening /dev/kfd gives {opened[:20]}", WHY, "ENOENT: the node "
            "was not "
                       "passed or amdgpu is not loaded; EINVAL: driver and user space do not fit")  # fmt: skip
    what = f"the container's user may not open /dev/kfd ({opened}){drift}; the node belongs to group " \
           f"{'unknown' if owner is None else owner}"  # fmt: skip
    if opened == "EPERM":
        fix = f"EPERM comes from the device rules: list /dev/kfd in container.devices. Then {fix}"
    elif owner is not None and have is not None and owner in have:
        fix = "the group is given already, so it is a user namespace (rootless engine: group_add: [keep-groups] with " \
              "podman and crun) or SELinux (`ausearch -m avc -ts recent`)"  # fmt: skip
    return finding("DEVICE_PERMISSION", "error", what, WHY, fix)


def _drift(facts: Facts) -> str:
    """Groups of one name and two numbers, as words; "" when none is known."""
    image = mapping(mapping(facts.get("image")).get("groups"))
    host = mapping(mapping(facts.get("host")).get("groups"))
    return "".join(f"; group {n} is {image[n]} in the image and {g} on the host" for n, g in host.items()
                   if n in image and image[n] != g)  # fmt: skip


def _rights(node: Facts) -> tuple[bool, bool, bool] | None:
    """Whether owner, group and others may read and write; None when the mode cannot be read."""
    mode = text(node.get("mode"), 8)
    if not re.fullmatch(r"0?[0-7]{3}", mode):
        return None
    owner, group, others = (int(digit) & 6 == 6 for digit in mode[-3:])
    return owner, group, others
