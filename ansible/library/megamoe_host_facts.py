"""Reads what decides whether a node can serve, in one round trip; changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_host_facts
short_description: Facts of a GPU node in the shape that megamoe plan and preflight read
description: Device nodes and their groups, GPU counts, kernel command line, disk and ports. Reads only.
options:
  paths:
    description: Directories whose file system is measured.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports that must be known as free or taken.
    type: list
    elements: int
    default: []
  state_dir:
    description: Directory of the release records.
    type: str
    required: true
"""

import glob
import grp
import json
import os
import shutil
import stat
import subprocess

from ansible.module_utils.basic import AnsibleModule


def read(path, default=None):
    """Text of a small file, or default when it cannot be read."""
    try:
        with open(path) as handle:
            return handle.read().strip()
    except (OSError, UnicodeDecodeError):
        return default


def device(path):
    """Mode, uid and gid of a device node."""
    info = os.stat(path)
    return {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "uid": info.st_uid, "gid": info.st_gid}


def output(argv):
    """Standard output of a tool, or None when it is absent, fails or hangs: unknown is not fine and not a crash."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def listening(ports):
    """{port: True} for those of `ports` that a TCP socket listens on. Source: /proc/net/tcp, state 0A."""
    taken = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A":
                taken.add(int(fields[1].rsplit(":", 1)[1], 16))
    return {str(port): port in taken for port in ports}


def free_gib(path):
    """Free space of the file system that holds path or its nearest existing parent, GiB."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    return round(shutil.disk_usage(path).free / 2**30, 1)


def collect(paths, ports, state_dir):
    """All facts; a key that could not be read is left out."""
    nodes = [p for p in ["/dev/kfd", *sorted(glob.glob("/dev/dri/renderD*"))] if os.path.exists(p)]
    groups = {g.gr_name: g.gr_gid for g in grp.getgrall() if g.gr_name in ("video", "render", "docker")}
    facts = {"host": {"groups": groups, "dev": {p: device(p) for p in nodes}}, "cmdline": read("/proc/cmdline", "")}
    balancing = read("/proc/sys/kernel/numa_balancing")
    if balancing is not None:
        facts["numa_balancing"] = int(balancing)
    lspci = output(["lspci", "-n", "-d", "1002:75a3"])
    if lspci is not None:
        facts["lspci_accelerators"] = len(lspci.strip().splitlines())
    listed = output(["amd-smi", "list", "--json"])
    try:
        if listed is not None:
            facts["rocm_smi_gpus"] = len(json.loads(listed))
    except ValueError:
        pass  # an unreadable list is an unknown count, which the judge reports as such
    driver = read("/sys/module/amdgpu/version")
    if driver is not None:
        facts["amdgpu_version"] = driver
    facts["disk_free_gib"] = {p: free_gib(p) for p in paths}
    facts["ports_taken"] = listening(ports)
    records = {}
    for path in sorted(glob.glob(os.path.join(state_dir, "releases", "*.json"))):
        try:
            records[os.path.basename(path)[:-5]] = json.loads(read(path, ""))
        except ValueError:
            records[os.path.basename(path)[:-5]] = {}
    try:
        state = json.loads(read(os.path.join(state_dir, "state.json"), "{}"))
    except ValueError:
        state = {}
    return {
        "facts": facts,
        "records": records,
        "state": state,
        "has_systemd": os.path.isdir("/run/systemd/system"),
        "has_engine": os.path.exists("/var/run/docker.sock"),
    }


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "state_dir": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **collect(**module.params))


if __name__ == "__main__":
    main()
