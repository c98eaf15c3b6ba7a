#!/usr/bin/env python3
"""Collects facts of a GPU host as one JSON object. One file, standard library only, Python >= 3.9, changes nothing.

Ansible copies and runs it on bare hosts; megamoe.preflight imports it. A fact that could not be read is left out and
named in "unknown"; what only the image can tell has its reason in "unknown_because". Keys: shared contract of
`megamoe preflight --facts`. With `inside` one container of the image is started for a moment, and removed again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import grp
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035 - Python 3.9

AMD_VENDOR = "0x1002"
MAX_OUTPUT = 32 << 20  # bytes of one program: a kernel log has 1 MiB, a hundred inspections have less than 2
INSIDE_S = 120  # for one container of the image: torch is read from a cold disk
# Runs in the image. device_count asks the driver how many GPUs the process may use; no kernel and no memory on a GPU.
INSIDE = r"""
import errno, grp, json, os, re
out = {"image": {"groups": {}}, "container_groups": sorted({os.getegid(), *os.getgroups()})}
for name in ("video", "render"):
    try:
        out["image"]["groups"][name] = grp.getgrnam(name).gr_gid
    except KeyError:
        pass
try:
    os.close(os.open("/dev/kfd", os.O_RDWR))
    out["open_kfd_rdwr"] = "OK"
except OSError as error:
    out["open_kfd_rdwr"] = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
try:
    with open("/opt/rocm/.info/version") as file:
        out["image"]["rocm_version"] = re.match(r"[0-9.]*[0-9]", file.read().strip())[0]
except (OSError, TypeError):
    pass
try:
    import torch
    out["torch_device_count"] = torch.cuda.device_count()
    # What the library was built for: get_arch_list() answers [] where the driver shows no GPU.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    out["image"]["archs"] = (flags and flags() or "").split() or None
except Exception as error:
    out["torch_error"] = repr(error)[:200]
print(json.dumps(out))
"""
ACCELERATOR_CLASSES = ("0x1200", "0x0300", "0x0302", "0x0380")


def read(path: str) -> Optional[str]:  # noqa: UP045 - Python 3.9
    """Text of a small file, None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no pathlib needed here
            return file.read(1 << 20).strip()
    except OSError:
        return None


def asked(*argv: str, timeout: float = 20) -> Tuple[Optional[int], str, str]:  # noqa: UP006, UP045
    """Exit status of a program, its standard output, and what it said last when it failed. No shell, no input.

    (None, "", why) where it is absent, does not end in time (s) or prints without end: then it and all that it started
    are killed, also when this program is interrupted.
    """
    if shutil.which(argv[0]) is None:
        return None, "", "%s is not installed" % argv[0]  # noqa: UP031
    try:
        child = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 start_new_session=True)
    except OSError as error:
        return None, "", "%s cannot be started: %s" % (argv[0], error.strerror)  # noqa: UP031
    assert child.stdout is not None and child.stderr is not None
    pipes, out, last, finished = {child.stdout.fileno(), child.stderr.fileno()}, bytearray(), b"", False
    end = time.monotonic() + timeout
    try:
        while pipes:
            ready = select.select(list(pipes), [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                return None, "", "%s did not answer in %g s" % (argv[0], timeout)  # noqa: UP031
            for pipe in ready:
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    pipes.discard(pipe)
                elif pipe == child.stderr.fileno():
                    last = (last + chunk)[-4096:]
                else:
                    out += chunk
            if len(out) > MAX_OUTPUT:
                return None, "", "%s printed more than %d MiB" % (argv[0], MAX_OUTPUT >> 20)  # noqa: UP031
        child.wait(max(0.1, end - time.monotonic()))
        finished = True
    except subprocess.TimeoutExpired:
        return None, "", "%s did not end in %g s" % (argv[0], timeout)  # noqa: UP031
    finally:
        if not finished:  # its group too: a client may have started others that hold the pipes
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()
        child.stderr.close()
    said = last.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return child.returncode, out.decode("utf-8", "replace"), said if child.returncode else ""


def ended(*argv: str, timeout: float = 20) -> Optional[Tuple[int, str]]:  # noqa: UP006, UP045
    """Exit status and standard output of a program; None where it is absent or did not end in time (s)."""
    status, out, _ = asked(*argv, timeout=timeout)
    return None if status is None else (status, out)


def shown(value: object) -> str:
    """The first 200 characters of a text from elsewhere, without what a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in str(value)[:200])


def run(*argv: str) -> Optional[str]:  # noqa: UP045
    """Standard output of a program that is present and succeeds, None otherwise."""
    done = ended(*argv)
    return done[1] if done and done[0] == 0 else None


def as_json(text: Optional[str]) -> Any:  # noqa: UP045
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def open_rdwr(path: str) -> str:
    """"OK" or the errno name of really opening a device node for reading and writing."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EUNKNOWN")
    return "OK"


def open_as(path: str, uid: int, gid: int, groups: List[int]) -> str:  # noqa: UP006
    """open_rdwr with the identity that the container's process will have; a child drops root for it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        result = "EUNKNOWN"
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            result = open_rdwr(path)
        finally:
            os.write(writer, result.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


def group_numbers(groups: str, nodes: Dict[str, Any]) -> List[int]:  # noqa: UP006
    """The groups that the container gets: those named as numbers, else those of the device nodes."""
    return [int(g) for g in groups.split(",") if g.isdigit()] or sorted({n["gid"] for n in nodes.values()})


def probe_kfd(user: str, groups: str, nodes: Dict[str, Any]) -> Dict[str, Any]:  # noqa: UP006
    """What opening /dev/kfd gives: on the host, and as "UID:GID" with these groups (empty: those of the nodes).

    A container of root without a user namespace opens it as root does. Without root here, nobody else can be tried,
    and whom the container will run as must be known: "" tries nobody.
    """
    out: Dict[str, Any] = {"host_open_kfd_rdwr": open_rdwr("/dev/kfd")}  # noqa: UP006
    if os.geteuid() != 0 or not user or not os.path.exists("/dev/kfd"):  # noqa: PTH110
        return out
    numbers = group_numbers(groups, nodes)
    uid, _, gid = user.partition(":")
    if uid.isdigit() and (gid or uid).isdigit():
        out["container_groups"] = sorted({int(gid or uid), *numbers})
        out["open_kfd_rdwr"] = open_as("/dev/kfd", int(uid), int(gid or uid), numbers)
    return out


def devices() -> Dict[str, Any]:  # noqa: UP006
    out: Dict[str, Any] = {}  # noqa: UP006
    for path in ["/dev/kfd", *sorted(glob.glob("/dev/dri/renderD*"))]:  # noqa: PTH207
        try:
            facts = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        out[path] = {"mode": "%04o" % stat.S_IMODE(facts.st_mode), "uid": facts.st_uid, "gid": facts.st_gid}  # noqa: UP031
    return out


def pci() -> List[Dict[str, str]]:  # noqa: UP006
    out = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):  # noqa: PTH207
        kind = (read(path + "/class") or "")[:6]
        if read(path + "/vendor") == AMD_VENDOR and kind in ACCELERATOR_CLASSES:
            driver = os.path.realpath(path + "/driver")
            out.append({"address": os.path.basename(path), "device": read(path + "/device") or "",  # noqa: PTH119
                        "driver": os.path.basename(driver) if os.path.exists(path + "/driver") else ""})  # noqa: PTH110, PTH119
    return out


def smi_rows(*words: str) -> List[Dict[str, Any]]:  # noqa: UP006
    """Rows of `amd-smi ... --json`; newer releases wrap the list in an object."""
    raw = as_json(run("amd-smi", *words, "--json"))
    found = raw.get("gpu_data") if isinstance(raw, dict) else raw
    return [r for r in found if isinstance(r, dict)] if isinstance(found, list) else []


def driver_version() -> Optional[str]:  # noqa: UP045
    """The release of the amdgpu driver package (30.30.3); the module's own version is another series."""
    for row in smi_rows("static", "--driver"):
        driver = part(row, "driver")
        version = driver.get("version") or driver.get("driver_version")
        if isinstance(version, str) and version not in ("", "N/A"):
            return version
    return None


def firmware_bundles() -> Optional[List[str]]:  # noqa: UP006, UP045
    """PLDM bundle of each GPU, without repetition."""
    out = set()
    for row in smi_rows("firmware"):
        for entry in entries(row.get("fw_list")):
            name = str(entry.get("fw_id", entry.get("fw_name", ""))) if isinstance(entry, dict) else ""
            if "PLDM" in name.upper():
                out.add(str(entry.get("fw_version", "")))
    return sorted(out - {"", "N/A"}) or None


def part(of: Dict[str, Any], key: str) -> Dict[str, Any]:  # noqa: UP006
    """A mapping inside a mapping, {} when it is absent or something else."""
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> List[Any]:  # noqa: UP006
    """A list, [] when it is absent or something else."""
    return value if isinstance(value, list) else []


def engine_info(engine: str) -> Optional[Dict[str, Any]]:  # noqa: UP006, UP045
    """Where the engine that answers really runs: operating system, kernel, rootless, its data root."""
    raw = as_json(run(engine, "info", "--format", "{{json .}}"))
    if not isinstance(raw, dict):
        return None
    host, store, options = part(raw, "host"), part(raw, "store"), raw.get("SecurityOptions")  # podman: host, store
    security, system = part(host, "security"), part(host, "distribution")
    return {"engine": engine, "os": str(raw.get("OperatingSystem") or system.get("distribution") or ""),
            "kernel": str(raw.get("KernelVersion") or host.get("kernel") or ""),
            "rootless": bool(security.get("rootless")) or any("rootless" in str(o) for o in entries(options)),
            "root": str(raw.get("DockerRootDir") or store.get("graphRoot") or "")}


def image_facts(engine: str, image: str) -> Tuple[Optional[bool], Dict[str, Any]]:  # noqa: UP006, UP045
    """Whether the image is on this host (None: its engine does not answer), and what its configuration says.

    archs: what torch has code for (PYTORCH_ROCM_ARCH, set in AMD's bases), else what aiter is compiled for.
    rocm_version only where it is written with three numbers: "7.2" may be 7.2.0 or 7.2.4, and the difference decides.
    """
    listed = as_json(run(engine, "image", "inspect", image))
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
        return (False if run(engine, "info") is not None else None), {}
    settings = part(listed[0], "Config")
    env = dict(str(e).partition("=")[::2] for e in entries(settings.get("Env")))
    out: Dict[str, Any] = {"user": str(settings.get("User") or listed[0].get("User") or "0:0")}  # noqa: UP006
    for name in ("PYTORCH_ROCM_ARCH", "GPU_ARCHS"):
        archs = re.findall(r"gfx[0-9a-f]{3,5}\b", env.get(name, ""))
        if archs:
            out["archs"] = sorted(set(archs))
            break
    base = part(settings, "Labels").get("org.opencontainers.image.base.name")
    said = [env.get("ROCM_VERSION", ""), *re.findall(r"rocm(\d[\d.]*)", str(base))]
    versions = [v for v in said if re.match(r"\d+\.\d+\.\d+$", v)]
    if versions:
        out["rocm_version"] = versions[0]
    return True, out


def inside_image(engine: str, image: str, user: str, groups: List[str]) -> Tuple[Dict[str, Any], str]:  # noqa: UP006
    """What one container of the image sees, started with the devices and groups of the deployment, and removed.

    ({}, why) when it did not end well. It pulls nothing, has no network, and can write nothing.
    """
    name = f"megamoe-preflight-{os.getpid()}"
    argv = [engine, "run", "--rm", "--pull", "never", "--name", name, "--network", "none", "--read-only",
            "--entrypoint", "python3"]
    for device in ("/dev/kfd", "/dev/dri"):
        if os.path.exists(device):  # noqa: PTH110
            argv += ["--device", device]
    for group in groups:
        argv += ["--group-add", group]
    if user:
        argv += ["--user", user]
    status = None
    try:
        status, out, why = asked(*argv, image, "-c", INSIDE, timeout=INSIDE_S)
    finally:
        if status is None:  # its client was ended, the container may live on; the name is ours alone
            run(engine, "rm", "--force", name)
    if status is None:
        return {}, f"a container of the image gave no answer: {why}"
    found = as_json(out.strip().rpartition("\n")[2])
    if status != 0 or not isinstance(found, dict):
        return {}, f"a container of the image ended with {status} and no answer" + (f": {shown(why)}" if why else "")
    return answer(found), shown(found.get("torch_error") or "the image does not say")


def answer(found: Dict[str, Any]) -> Dict[str, Any]:  # noqa: UP006
    """What INSIDE prints, without what has another type: an image's python3 may be anything."""
    inner = part(found, "image")
    out: Dict[str, Any] = {}  # noqa: UP006
    groups = {str(n): g for n, g in part(inner, "groups").items() if type(g) is int}
    image: Dict[str, Any] = {"groups": groups} if isinstance(inner.get("groups"), dict) else {}  # noqa: UP006
    archs, version = inner.get("archs"), inner.get("rocm_version")
    if isinstance(archs, list) and archs and all(isinstance(a, str) for a in archs):
        image["archs"] = archs
    if isinstance(version, str):
        image["rocm_version"] = version
    out["image"] = image
    numbers, opened, counted = (found.get(k) for k in ("container_groups", "open_kfd_rdwr", "torch_device_count"))
    if isinstance(numbers, list) and all(type(n) is int for n in numbers):
        out["container_groups"] = numbers
    if isinstance(opened, str) and re.match(r"[A-Z0-9]{2,20}$", opened):
        out["open_kfd_rdwr"] = opened
    if type(counted) is int:
        out["torch_device_count"] = counted
    return out


def kfd_nodes() -> Optional[List[Dict[str, Any]]]:  # noqa: UP006, UP045
    base = "/sys/class/kfd/kfd/topology/nodes"
    if not os.path.isdir(base):  # noqa: PTH112
        return None
    out = []
    for path in sorted(glob.glob(base + "/*")):  # noqa: PTH207
        text = read(path + "/properties")
        if text is None:
            continue
        pairs = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        if int(pairs.get("simd_count", "0") or 0) > 0:
            location, domain = int(pairs.get("location_id", 0)), int(pairs.get("domain", 0))
            version = int(pairs.get("gfx_target_version", 0))
            bus, slot, function = location >> 8 & 255, location >> 3 & 31, location & 7
            out.append({"address": "%04x:%02x:%02x.%x" % (domain, bus, slot, function),  # noqa: UP031
                        "arch": "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100)})  # noqa: UP031
    return out


def gpus() -> List[Dict[str, Any]]:  # noqa: UP006
    """VRAM per GPU from sysfs, in MB (2**20 bytes)."""
    out: List[Dict[str, Any]] = []  # noqa: UP006
    for path in sorted(glob.glob("/sys/class/drm/card*/device/mem_info_vram_total")):  # noqa: PTH207
        base = os.path.dirname(path)  # noqa: PTH120
        total, used, busy = read(path), read(base + "/mem_info_vram_used"), read(base + "/gpu_busy_percent")
        if total and total.isdigit():
            entry: Dict[str, Any] = {"id": len(out), "vram_total_mb": int(total) >> 20,  # noqa: UP006
                                     "address": os.path.basename(os.path.realpath(base))}  # noqa: PTH119
            if used and used.isdigit():
                entry["vram_used_mb"] = int(used) >> 20
            if busy and busy.isdigit():
                entry["util"] = int(busy)
            for key, name in (("partition", "current_compute_partition"), ("memory_partition",
                                                                           "current_memory_partition")):
                mode = read(base + "/" + name)
                if mode:
                    entry[key] = mode
            errors = re.search(r"ue:\s*(\d+)", read(base + "/ras/umc_err_count") or "")
            if errors:
                entry["ecc_uncorrectable"] = int(errors.group(1))
            out.append(entry)
    return out


def megabytes(value: Any) -> Optional[float]:  # noqa: UP045
    """amd-smi's {"value": N, "unit": "MB"} as MB."""
    if isinstance(value, dict) and isinstance(value.get("value"), (int, float)):
        factor = {"B": 1 / 1048576, "KB": 1 / 1024, "MB": 1.0, "GB": 1024.0}.get(str(value.get("unit", "MB")).upper())
        return None if factor is None else value["value"] * factor
    return None


def smi_gpus() -> Optional[List[Dict[str, Any]]]:  # noqa: UP006, UP045
    raw = as_json(run("amd-smi", "metric", "--mem-usage", "--usage", "--json"))
    rows = raw.get("gpu_data") if isinstance(raw, dict) else raw
    if not isinstance(rows, list):
        return None
    out = []
    for row in rows:
        if isinstance(row, dict):
            usage = row.get("mem_usage")
            memory: Dict[str, Any] = usage if isinstance(usage, dict) else {}  # noqa: UP006
            total, used = megabytes(memory.get("total_vram")), megabytes(memory.get("used_vram"))
            entry: Dict[str, Any] = {"id": row.get("gpu")}  # noqa: UP006
            if total is not None:
                entry["vram_total_mb"] = int(total)
            if used is not None:
                entry["vram_used_mb"] = int(used)
            out.append(entry)
    return out


def kfd_processes() -> Optional[List[Dict[str, Any]]]:  # noqa: UP006, UP045
    base = "/sys/class/kfd/kfd/proc"
    if not os.path.isdir(base):  # noqa: PTH112
        return None
    out = []
    for path in sorted(glob.glob(base + "/*")):  # noqa: PTH207
        pid = os.path.basename(path)  # noqa: PTH119
        if not pid.isdigit():
            continue
        sizes = [read(f) for f in glob.glob(path + "/vram_*")]  # noqa: PTH207
        out.append({"pid": int(pid), "name": read("/proc/%s/comm" % pid) or "",  # noqa: UP031
                    "vram_mb": sum(int(s) for s in sizes if s and s.isdigit()) >> 20,
                    "alive": os.path.isdir("/proc/" + pid)})  # noqa: PTH112
    return out


def containers(engine: str) -> Optional[List[Dict[str, Any]]]:  # noqa: UP006, UP045
    """Running containers of an engine, with whether they hold GPU device nodes."""
    ids = run(engine, "ps", "-q")
    if ids is None:
        return None
    if not ids.split():
        return []
    rows = as_json(run(engine, "inspect", *ids.split()))
    if not isinstance(rows, list):
        return None
    out = []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("Id"), str):
            return None  # not the inspection of containers
        host = part(row, "HostConfig")
        paths = [str(d.get("PathOnHost", "")) for d in entries(host.get("Devices")) if isinstance(d, dict)]
        out.append({"name": str(row.get("Name", "")).strip("/"), "id": str(row.get("Id", ""))[:12], "engine": engine,
                    "gpu": bool(host.get("Privileged")) or any(p.startswith(("/dev/kfd", "/dev/dri")) for p in paths)})
    return out


def ports() -> Optional[List[int]]:  # noqa: UP006, UP045
    """Listening TCP ports."""
    out = set()
    text = (read("/proc/net/tcp") or "") + "\n" + (read("/proc/net/tcp6") or "")
    for line in text.splitlines():
        parts = line.split()
        if len(parts) > 3 and parts[3] == "0A":
            out.add(int(parts[1].rsplit(":", 1)[1], 16))
    return sorted(out) if text.strip() else None


def file_system(path: str) -> Optional[str]:  # noqa: UP045
    """Type of the file system that holds path, by the longest mount point that leads to it."""
    real = os.path.realpath(path)
    best, kind = "", None
    for line in (read("/proc/self/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) > 2:
            point = parts[1].replace("\\040", " ")
            inside = point == "/" or real == point or real.startswith(point + "/")
            if inside and len(point) >= len(best):
                best, kind = point, parts[2]
    return kind


def weights(path: str) -> Optional[int]:  # noqa: UP045
    """Bytes of the shards in the model directory, by their sizes alone; 0 when the directory is not there yet."""
    if not os.path.isdir(path):  # noqa: PTH112
        return 0
    try:
        return sum(os.stat(f).st_size for f in glob.glob(path + "/*.safetensors"))  # noqa: PTH116, PTH207
    except OSError:
        return None


def leftovers() -> List[str]:  # noqa: UP006
    """Shared memory segments that a collective library left behind: older than the youngest boot of a container."""
    out = []
    for path in sorted(glob.glob("/dev/shm/nccl-*") + glob.glob("/dev/shm/mori*")):  # noqa: PTH207
        try:
            if time.time() - os.stat(path).st_mtime > 3600:  # noqa: PTH116
                out.append(path)
        except OSError:
            continue
    return out


def stale_locks(cache: str) -> List[str]:  # noqa: UP006
    """Lock files in a compile cache that nobody has touched for an hour."""
    out: List[str] = []  # noqa: UP006
    for base, _, names in os.walk(cache):
        for name in names:
            path = os.path.join(base, name)  # noqa: PTH118
            try:
                if name.endswith(".lock") and time.time() - os.lstat(path).st_mtime > 3600:
                    out.append(path)
            except OSError:
                continue
        if len(out) > 100:
            break
    return sorted(out)[:100]


def space(path: str) -> Optional[Dict[str, Any]]:  # noqa: UP006, UP045
    """Total and free bytes, and the type, of the file system of path or its nearest parent."""
    while not os.path.exists(path) and path != "/":  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    kind = file_system(path)
    return {"total_bytes": facts.f_blocks * facts.f_frsize, "free_bytes": facts.f_bavail * facts.f_frsize,
            **({"fstype": kind} if kind else {})}


def of_image(facts: Dict[str, Any], image: str, engine: str, user: str, groups: str, inside: bool) -> None:  # noqa: UP006
    """Adds what the image decides: its own facts, whether its user opens /dev/kfd, and the GPUs that torch sees."""
    present, config = image_facts(engine, image) if image else (None, {})
    if present is not None:
        facts["image_present"] = present
    who, nodes = user or config.get("user", ""), facts["host"]["dev"]
    facts["probe"].update(probe_kfd(who, groups, nodes))
    why = "no image was named"
    if image:
        why = f"{engine} does not answer" if present is None else "the image is not on this host yet"
    if present:
        why = "only a container of the image can tell, and --inside-image was not given"
    if present and inside:
        # podman's word for all groups of who starts it: numbers would be others in its user namespace.
        kept = engine == "podman" and "keep-groups" in groups.split(",")
        given = ["keep-groups"] if kept else [str(number) for number in group_numbers(groups, nodes)]
        seen, why = inside_image(engine, image, user, given)
        config.update(part(seen, "image"))
        facts["probe"].update({k: seen[k] for k in ("open_kfd_rdwr", "container_groups") if k in seen})
        if "torch_device_count" in seen:
            facts["torch_device_count"] = seen["torch_device_count"]
    if config:
        facts["image"] = config
    missing = [f"image.{k}" for k in ("groups", "archs", "rocm_version") if k not in config]
    missing += [] if "torch_device_count" in facts else ["torch_device_count"]
    facts["unknown_because"] = dict.fromkeys(missing, why)


def collect(model_path: str = "", cache_dir: str = "", image: str = "", engine: str = "docker", user: str = "",
            groups: str = "", inside: str = "") -> Dict[str, Any]:  # noqa: UP006
    """All facts of this host, for a deployment: its model.path, cache_dir, image, engine, user and group numbers.

    inside: anything but "" starts one container of the image, for what only it can tell.
    """
    facts: Dict[str, Any] = {"collected_at": int(time.time()), "hostname": socket.gethostname(),  # noqa: UP006
                             "kernel": platform.release(), "env": {k: v for k, v in os.environ.items() if k.endswith(
                                 "_VISIBLE_DEVICES")}}
    named: Dict[str, int] = {}  # noqa: UP006
    for name in ("video", "render"):
        try:
            named[name] = grp.getgrnam(name).gr_gid
        except KeyError:
            continue
    facts["host"] = {"groups": named, "dev": devices(), "uid": os.geteuid()}
    facts["probe"] = {}
    of_image(facts, image, engine, user, groups, bool(inside))
    found = pci()
    facts["pci"], facts["lspci_accelerators"] = found, len(found)
    nodes = kfd_nodes()
    memory = gpus() or smi_gpus()
    optional: Dict[str, Any] = {  # noqa: UP006
        "kfd": nodes, "kfd_gpu_nodes": None if nodes is None else len(nodes), "gpus": memory or None,
        "kfd_processes": kfd_processes(), "cmdline": read("/proc/cmdline"),
        "amdgpu_version": read("/sys/module/amdgpu/version"), "amdgpu_initstate": read("/sys/module/amdgpu/initstate"),
        "listening_ports": ports(), "shm": space("/dev/shm"), "disk_model": space(model_path) if model_path else None,
        "driver_version": driver_version(), "firmware_bundle": firmware_bundles(), "engine_info": engine_info(engine),
        "model_bytes": weights(model_path) if model_path else None,
    }
    root = (optional["engine_info"] or {}).get("root") or "/var/lib/docker"
    optional["disk_docker"] = space(root)
    if engine == "podman":
        facts["podman_init"] = shutil.which("catatonit") is not None or any(
            os.path.exists(p + "/catatonit") for p in ("/usr/libexec/podman", "/usr/lib/podman"))  # noqa: PTH110
    facts["cdi_specs"] = sorted(glob.glob("/etc/cdi/*") + glob.glob("/var/run/cdi/*"))  # noqa: PTH207
    facts["shm_leftovers"] = leftovers()
    if cache_dir:
        facts["stale_locks"] = stale_locks(cache_dir)
    kernel_log = run("dmesg")
    if kernel_log is not None:  # the end of it: a host that runs for months has long begun to forget
        facts["dmesg"] = [line for line in kernel_log.splitlines() if "amdgpu" in line or "kfd" in line][-500:]
    smi = ended("rocm-smi", "--showid", "--json")
    if smi is not None:
        facts["probe"]["rocm_smi_exit"] = smi[0]
    rocm = as_json(smi[1]) if smi is not None and smi[0] == 0 else None
    if isinstance(rocm, dict):
        optional["rocm_smi_gpus"] = sum(1 for k in rocm if re.match(r"card\d+$", k))
    numa = read("/proc/sys/kernel/numa_balancing")
    optional["numa_balancing"] = int(numa) if numa and numa.isdigit() else None
    total = re.search(r"MemTotal:\s+(\d+) kB", read("/proc/meminfo") or "")
    optional["ram_bytes"] = int(total.group(1)) * 1024 if total else None
    info = run("rocminfo")
    if info:
        optional["archs"] = sorted(set(re.findall(r"\bgfx[0-9a-f]{3,5}\b", info)))
    held: List[Dict[str, Any]] = []  # noqa: UP006
    for engine in ("docker", "podman"):
        version = run(engine, "--version")
        if version:
            facts.setdefault("engines", {})[engine] = version.strip()
            rows = containers(engine)
            if rows is not None:
                held += rows
                optional["containers"] = held
    clock = run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    optional["clock_synchronised"] = None if clock is None else clock.strip() == "yes"
    facts.update({k: v for k, v in optional.items() if v is not None})
    facts["unknown"] = sorted(k for k, v in optional.items() if v is None)
    return facts


if __name__ == "__main__":
    json.dump(collect(*sys.argv[1:8]), sys.stdout, indent=2, sort_keys=True)
    print()
