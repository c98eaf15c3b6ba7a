"""GPUs, driver, firmware and kernel of a host. Pure."""

from __future__ import annotations

import re

from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding
from megamoe.preflight.policy import policy, version_of
from megamoe.preflight.reading import Facts, finding, gib, mapping, num, rows, text, unknown


def count(facts: Facts, deploy: Deploy) -> list[Finding]:
    """GPU count from sources that must agree (ROCm/legacy-rocm-build#3856, #4454, #5008)."""
    expected = int(num(facts.get("expected_gpus")) or deploy.gpu.count)
    sources = {
        k: n
        for k in ("lspci_accelerators", "kfd_gpu_nodes", "rocm_smi_gpus", "torch_device_count")
        if (n := num(facts.get(k) if not isinstance(facts.get(k), list) else len(facts[k]))) is not None
    }
    if not sources:
        return [
            unknown(
                "GPU_COUNT",
                "the number of GPUs is unknown",
                f"{expected} are planned",
                "collect facts on the host",
                "warn",
            )
        ]
    shown = ", ".join(f"{k} {v:g}" for k, v in sources.items())
    if any(v < expected for v in sources.values()) or len(set(sources.values())) > 1:
        seen = {str(r.get("address", "")).lower() for r in rows(facts.get("kfd")) or []}
        lost = sorted({str(r.get("address", "")).lower() for r in rows(facts.get("pci")) or []} - seen) if seen else []
        lost += [
            a
            for a in dict.fromkeys(
                re.findall(
                    r"amdgpu (?:.{0,40}of )?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]).*(?:error|fail|fatal|invalid)",
                    "\n".join(kernel_lines(facts)),
                    re.I,
                )
            )
            if a not in lost
        ]
        where = f"; PCI address {', '.join(lost[:8])}" if lost else ""
        return [
            finding(
                "GPU_COUNT",
                "error",
                f"{expected} GPUs expected; {shown}{where}",
                "a missing GPU leaves its rank without a device, and the others wait",
                "see `dmesg | grep amdgpu` for that address; reset or reboot the host, then preflight again; "
                "check *_VISIBLE_DEVICES",
            )
        ]
    return []


def kernel_lines(facts: Facts) -> list[str]:
    listed = facts.get("dmesg")
    if isinstance(listed, str):
        listed = listed.splitlines()
    return [str(line)[:400] for line in listed[:5000]] if isinstance(listed, list) else []


def kernel_log(facts: Facts) -> list[Finding]:
    """Faults that the driver reported, by the same catalogue that `megamoe diagnose` reads logs with."""
    from megamoe.diagnose.catalogue import rules

    wanted = {r.id: r for r in rules() if r.id in ("GPU_HARDWARE", "GPU_MISSING", "DRIVER_MISMATCH")}
    out = {}
    for line in kernel_lines(facts):
        for name, rule in wanted.items():
            if name not in out and rule.matches(line):
                out[name] = Finding(
                    name,
                    "error" if name == "GPU_HARDWARE" else "warn",
                    f"the kernel log says: {line[:200]}",
                    rule.why,
                    rule.fix,
                    quote=line[:400],
                )
    return list(out.values())


def arch(facts: Facts, deploy: Deploy) -> list[Finding]:
    """The architecture by rocminfo, by the driver's topology and by PCI ids: all must be the planned one."""
    listed = facts.get("archs")
    names = {str(a) for a in listed} if isinstance(listed, list) else set()
    names |= {str(r["arch"]) for r in rows(facts.get("kfd")) or [] if r.get("arch")}
    names = {n.split(":")[0] for n in names if n.startswith("gfx")}
    by_pci = {
        identity for name, entry in policy()["arch"].items() if name == deploy.gpu.arch for identity in entry["pci"]
    }
    seen = {str(r["device"]).lower() for r in rows(facts.get("pci")) or [] if r.get("device")}
    out = []
    if not names and not (seen and by_pci):
        return [
            unknown(
                "ARCH",
                "the GPUs' architecture is unknown",
                f"{deploy.gpu.arch} is planned",
                "collect facts on the host",
            )
        ]
    other = {n for n, entry in policy()["arch"].items() if n != deploy.gpu.arch and seen & set(entry["pci"])}
    if (names and names != {deploy.gpu.arch}) or other:
        out.append(
            finding(
                "GPU_ARCH",
                "error",
                f"the GPUs are {', '.join(sorted(names | other))[:120]}, the plan is {deploy.gpu.arch}",
                "kernels are built for one architecture",
                "choose hosts of the planned architecture",
            )
        )
    elif by_pci and seen - by_pci:
        out.append(
            finding(
                "PCI_ID_UNKNOWN",
                "warn",
                f"PCI device {', '.join(sorted(seen - by_pci))[:120]} is not one that is known for {deploy.gpu.arch}",
                "another product, or one newer than this list",
                "compare with `rocminfo | grep gfx`",
            )
        )
    image = mapping(facts.get("image")).get("archs")
    if isinstance(image, list) and image and deploy.gpu.arch not in {str(a).split(":")[0] for a in image}:
        out.append(
            finding(
                "IMAGE_ARCH",
                "error",
                f"the image has code for {', '.join(map(str, image[:12]))[:120]}, the GPUs are {deploy.gpu.arch}",
                "hipErrorNoBinaryForGpu at the first kernel",
                "use an image that was built for this architecture",
            )
        )
    return out


def card_memory(facts: Facts, deploy: Deploy) -> list[Finding]:
    """The plan's budget counts on gpu.vram_gib."""
    planned = deploy.gpu.vram_gib * 1024
    small = [
        f"GPU {text(r.get('id'), 20)}: {total:g} MB"
        for r in rows(facts.get("gpus")) or []
        if (total := num(r.get("vram_total_mb"))) is not None and total < planned * 0.97
    ]
    if not planned or not small:
        return []
    return [
        finding(
            "VRAM_TOTAL",
            "warn",
            f"{', '.join(small[:16])}; the plan counts on {planned:g} MB each",
            "the memory budget was made for larger GPUs",
            "set gpu.vram_gib to what `amd-smi static` shows and plan again",
        )
    ]


def driver(facts: Facts) -> list[Finding]:
    """Driver and firmware against AMD's list for this GPU."""
    out = []
    state = facts.get("amdgpu_initstate")
    if state is not None and state != "live":
        out.append(
            finding(
                "AMDGPU_NOT_LIVE",
                "error",
                f"module amdgpu is {str(state)[:40]!r}, not live",
                "no GPU works without it",
                "`modprobe amdgpu`; build it for the running kernel",
            )
        )
    listed = policy()["driver"]
    have = facts.get("driver_version")
    if not isinstance(have, str) or version_of(have) is None:
        out.append(
            unknown(
                "DRIVER",
                "the driver release is unknown",
                f"{listed['recommended']} is recommended; the module's own version number is another series",
                "give driver_version (`amd-smi static --driver`)",
            )
        )
    elif have.strip() not in listed["supported"]:
        old = (version_of(have) or ()) < min(v for s in listed["supported"] if (v := version_of(s)))
        out.append(
            finding(
                "DRIVER_RELEASE",
                "warn",
                f"amdgpu {have[:40]} is not in AMD's list for this GPU "
                f"({', '.join(listed['supported'])})" + ("; it is older than all of them" if old else ""),
                "driver and ROCm user space of other releases were not tested together",
                f"install amdgpu {listed['recommended']} at a maintenance window",
            )
        )
    bundle = facts.get("firmware_bundle")
    bundles = {str(b) for b in bundle} if isinstance(bundle, list) else {bundle} if isinstance(bundle, str) else set()
    allowed = policy()["firmware"]["supported"]
    if not bundles:
        out.append(
            unknown(
                "FIRMWARE",
                "the firmware bundle is unknown",
                f"{allowed[0]} is current",
                "give firmware_bundle (`amd-smi firmware`)",
            )
        )
    elif bundles - set(allowed) or len(bundles) > 1:
        out.append(
            finding(
                "FIRMWARE",
                "warn",
                f"firmware bundle {', '.join(sorted(map(str, bundles)))[:120]}; AMD's "
                f"list for this GPU is {', '.join(allowed)}, one on all GPUs",
                "GPUs with different or untested firmware have been seen to hang together",
                "update at a maintenance window",
            )
        )
    rocm, bad = mapping(facts.get("image")).get("rocm_version"), policy()["rocm_known_bad"]["before"]
    if isinstance(rocm, str) and (v := version_of(rocm)) is not None and v < (version_of(bad) or ()):
        out.append(
            finding(
                "ROCM_BASE_TOO_OLD",
                "error",
                f"the image has ROCm {rocm[:40]}, older than {bad}",
                "graph capture aborts on an event of a capturing stream",
                "use an image on a later ROCm",
            )
        )
    return out


def kernel(facts: Facts) -> list[Finding]:
    out = []
    line = facts.get("cmdline")
    if not isinstance(line, str):
        out.append(unknown("CMDLINE", "the kernel line is unknown", "iommu=pt matters", "give cmdline"))
    elif "iommu=pt" not in line.split():
        out.append(
            finding(
                "IOMMU_NOT_PT",
                "warn",
                "the kernel line lacks iommu=pt",
                "multi-GPU copies can hang without it",
                "add iommu=pt and reboot at a maintenance window",
            )
        )
    numa = num(facts.get("numa_balancing"))
    if numa is None:
        out.append(
            unknown(
                "NUMA_BALANCING",
                "NUMA balancing is unknown",
                "it should be off",
                "read /proc/sys/kernel/numa_balancing",
            )
        )
    elif numa:
        out.append(
            finding(
                "NUMA_BALANCING",
                "warn",
                f"kernel.numa_balancing is {numa:g}",
                "page migration costs speed",
                "set kernel.numa_balancing=0 (role host_tuning, opt-in)",
            )
        )
    hidden = {k: v for k, v in mapping(facts.get("env")).items() if k.endswith("_VISIBLE_DEVICES")}
    if hidden:
        out.append(
            finding(
                "VISIBLE_DEVICES",
                "warn",
                ", ".join(f"{k}={str(v)[:80]}" for k, v in hidden.items()),
                "it silently shrinks the set of GPUs",
                "unset it for the service",
            )
        )
    override = mapping(facts.get("env")).get("HSA_OVERRIDE_GFX_VERSION")
    if override:
        out.append(
            finding(
                "GFX_OVERRIDE",
                "warn",
                f"HSA_OVERRIDE_GFX_VERSION={str(override)[:80]}",
                "kernels would be compiled for another GPU than the one they run on",
                "unset it for the service",
            )
        )
    ended = num(mapping(facts.get("probe")).get("rocm_smi_exit"))
    if ended:
        out.append(
            finding(
                "GPU_TOOL_FAILED",
                "warn",
                f"rocm-smi ended with {ended:g}",
                "what it would have said of memory and processes is missing, and a driver in trouble looks like this",
                "run rocm-smi (or amd-smi) on the host by hand, and see `dmesg | grep amdgpu`",
            )
        )
    offset = num(facts.get("clock_offset_s"))
    if facts.get("clock_synchronised") is False or (offset is not None and abs(offset) > policy()["clock"]["offset_s"]):
        shown = f"the clock is {offset:g} s off" if offset is not None else "the clock is not synchronised"
        out.append(
            finding(
                "CLOCK",
                "warn",
                shown,
                "logs of hosts cannot be put in order",
                "enable NTP (chrony or systemd-timesyncd)",
            )
        )
    elif facts.get("clock_synchronised") is None and offset is None:
        out.append(
            unknown(
                "CLOCK",
                "whether the clock is synchronised is unknown",
                "logs of hosts are put in order by time",
                "give clock_synchronised (`timedatectl show -p NTPSynchronized`)",
            )
        )
    return out


def partition(facts: Facts) -> list[Finding]:
    listed = rows(facts.get("gpus")) or []
    modes = {str(r["partition"]) for r in listed if r.get("partition")}
    out = []
    if modes - {"SPX"}:
        out.append(
            finding(
                "PARTITION_MODE",
                "error",
                f"compute partition is {', '.join(sorted(modes))[:80]}, SPX is needed",
                "the kernels need all compute units of a GPU together",
                "the operator sets SPX (`amd-smi set --compute-partition SPX`)",
            )
        )
    memory = {str(r["memory_partition"]) for r in listed if r.get("memory_partition")}
    if memory - {"NPS1"}:
        out.append(
            finding(
                "MEMORY_PARTITION",
                "warn",
                f"memory partition is {', '.join(sorted(memory))[:80]}",
                "accuracy and speed on record are with NPS1",
                "the operator sets NPS1 (`amd-smi set --memory-partition NPS1`)",
            )
        )
    return out


def memory_errors(facts: Facts) -> list[Finding]:
    """Uncorrectable memory errors that the driver counted since it was loaded."""
    bad = [
        f"GPU {text(r.get('id'), 20)}: {n:g}"
        for r in rows(facts.get("gpus")) or []
        if (n := num(r.get("ecc_uncorrectable"))) is not None and n > 0
    ]
    return (
        [
            finding(
                "GPU_HARDWARE",
                "error",
                f"uncorrectable memory errors: {', '.join(bad[:16])}",
                "results of that GPU cannot be trusted, and the next error ends its processes",
                "drain the host; the operator resets or replaces the GPU",
            )
        ]
        if bad
        else []
    )


def host_memory(facts: Facts) -> list[Finding]:
    ram, wanted = num(facts.get("ram_bytes")), policy()["memory"]["ram_recommended_bytes"]
    if ram is None:
        return [
            unknown(
                "RAM",
                "the host's memory is unknown",
                "loading stages whole shards in host memory",
                "collect facts on the host",
            )
        ]
    if ram < 0.9 * wanted:
        return [
            finding(
                "RAM_SMALL",
                "warn",
                f"{gib(ram)} of host memory; AMD's acceptance guide for this GPU asks for {wanted / 1e12:g} TB",
                "loading stages whole shards of all ranks in host memory; the kernel kills the engine when it runs out",
                "add memory, or load with fewer threads (ATOM_LOADER_NUM_THREADS)",
            )
        ]
    return []
