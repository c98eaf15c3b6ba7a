"""What must hold on this machine before a rehearsal changes anything. Collect, then judge (`judge` is pure)."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.rehearse import tags
from megamoe.rehearse.engine import docker, inspect
from megamoe.rehearse.settings import LABEL, PREFIX, Settings, from_words


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. `foreign` are objects with our names but not our label; ports map to whether they are free."""

    engine_error: str | None = None
    missing_tools: tuple[str, ...] = ()
    disk_free_gib: dict[str, float] = field(default_factory=dict)
    ports_taken: tuple[int, ...] = ()
    foreign: tuple[str, ...] = ()
    subnet_taken_by: str | None = None
    network_error: str | None = None
    root: bool = True


def collect(settings: Settings, *, images_ready: bool) -> Facts:
    """Reads the machine; changes nothing. Network is only asked for when something must be fetched."""
    missing = tuple(t for t in ("docker", "ssh", "ssh-keygen", "debootstrap") if shutil.which(t) is None)
    engine_error = None
    if "docker" not in missing:
        try:
            done = subprocess.run(
                ["docker", "info", "--format", "{{.ServerVersion}}"],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            engine_error = None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no answer"])[-1]
        except subprocess.TimeoutExpired:
            engine_error = "no answer within 20 s"
    free: dict[str, float] = {}
    places = [str(settings.root)]
    taken: list[int] = []
    foreign: list[str] = []
    subnet_owner = None
    if engine_error is None and "docker" not in missing:
        places.append(docker("info", "--format", "{{.DockerRootDir}}").strip())
        ours: set[int] = set()
        for name, port in (("registry", settings.registry_port), ("gateway", settings.gateway_port)):
            found = inspect("container", PREFIX + name)
            if found and found["State"]["Running"] and str(port) in str(found["HostConfig"].get("PortBindings")):
                ours.add(port)
        taken = [p for p in (settings.registry_port, settings.gateway_port) if p not in ours and not _port_is_free(p)]
        foreign = _foreign(settings)
        subnet_owner = _subnet_owner(settings)
    for place in places:
        try:
            free[place] = shutil.disk_usage(place).free / 2**30
        except OSError:
            continue  # the engine of another machine (DOCKER_HOST): its disk is not ours to measure
    return Facts(
        engine_error,
        missing,
        free,
        tuple(taken),
        tuple(foreign),
        subnet_owner,
        None if images_ready else _network_error(settings),
        os.geteuid() == 0,
    )


def judge(facts: Facts, settings: Settings) -> list[Reason]:
    """Every reason why the rehearsal may not start, the most basic first; empty means go."""
    reasons: list[Reason] = []
    if facts.missing_tools:
        packages = {"docker": "docker.io", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
        wanted = " ".join(sorted({packages.get(t, t) for t in facts.missing_tools}))
        reasons.append(
            Reason(
                "rehearse_tools",
                f"missing: {', '.join(facts.missing_tools)}",
                "images are made with them and nodes are reached with them",
                f"run scripts/rehearse.sh as root (it installs them), or: sudo apt-get install --yes {wanted}",
            )
        )
    if facts.engine_error is not None:
        reasons.append(
            Reason(
                "rehearse_engine",
                f"the container engine does not answer: {facts.engine_error}",
                "nodes and images of the rehearsal are containers",
                "start it (systemctl start docker, or service docker start); if it runs, you need root or "
                "membership of the group docker",
            )
        )
    if not facts.root:
        reasons.append(
            Reason(
                "rehearse_root",
                "this is not root",
                "debootstrap unpacks with owners and runs chroot",
                "run it as root: sudo scripts/rehearse.sh",
            )
        )
    for place, free in facts.disk_free_gib.items():
        if free < settings.need_disk_gib:
            reasons.append(
                Reason(
                    "rehearse_disk",
                    f"{free:.1f} GiB are free under {place}, {settings.need_disk_gib:.0f} GiB are needed",
                    "images are built, pushed, and pulled by every node",
                    "free some space (docker image prune), or use a machine with a larger disk",
                )
            )
    for port in facts.ports_taken:
        variable = "MEGAMOE_REHEARSAL_REGISTRY_PORT" if port == settings.registry_port else "MEGAMOE_REHEARSAL_PORT"
        reasons.append(
            Reason(
                "rehearse_port_taken",
                f"port {port} on 127.0.0.1 is in use by something else",
                "the local registry or the gateway is published there",
                f"stop what uses it, or set {variable} to a free port",
            )
        )
    if facts.foreign:
        reasons.append(
            Reason(
                "rehearse_stale",
                "these exist under the rehearsal's names, but do not carry its label or come from an "
                "earlier run with other addresses: " + ", ".join(facts.foreign),
                "they may be someone else's, so they are neither used nor removed unasked",
                "run `make rehearse-down`; what still exists then is not the rehearsal's: remove or rename it",
            )
        )
    if facts.subnet_taken_by:
        reasons.append(
            Reason(
                "rehearse_subnet_taken",
                f"{settings.subnet} overlaps {facts.subnet_taken_by}",
                "the nodes would not be reachable",
                "set MEGAMOE_REHEARSAL_SUBNET to a free private network (a bridge that a removed engine left "
                "behind goes with: ip link delete NAME)",
            )
        )
    if facts.network_error:
        reasons.append(
            Reason(
                "rehearse_network",
                f"the package registries cannot be reached: {facts.network_error}",
                "base image and Python packages are fetched on the first run",
                "check the network (or MEGAMOE_DEBIAN_MIRROR and pip's settings); a machine that has run "
                "it once needs no network",
            )
        )
    return reasons


def require(settings: Settings, *, images_ready: bool) -> Facts:
    """Collects and judges.

    Raises:
        Problem: exit 3 when only the network is missing, else exit 4, with every reason.
    """
    facts = collect(settings, images_ready=images_ready)
    reasons = judge(facts, settings)
    if reasons:
        only_network = all(r.code == "rehearse_network" for r in reasons)
        raise Problem.of(reasons, exit_code=Exit.UNREACHABLE if only_network else Exit.PRECONDITION)
    return facts


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _foreign(settings: Settings) -> list[str]:
    """Containers and the network that bear our names and that this run could not use."""
    key, value = LABEL.split("=")
    found: list[str] = []
    for name in docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"name=^{PREFIX}").split():
        labels = (inspect("container", name) or {}).get("Config", {}).get("Labels") or {}
        if labels.get(key) != value:
            found.append(f"container {name}")
    network = inspect("network", f"{PREFIX}net")
    if network is not None:
        subnets = [c.get("Subnet") for c in network.get("IPAM", {}).get("Config", [])]
        if (network.get("Labels") or {}).get(key) != value or str(settings.subnet) not in subnets:
            found.append(f"network {PREFIX}net ({', '.join(map(str, subnets))})")
    return found


def _subnet_owner(settings: Settings) -> str | None:
    """The route of this machine that overlaps our subnet, unless it is our own bridge."""
    if inspect("network", f"{PREFIX}net") is not None:
        return None
    done = subprocess.run(["ip", "-json", "route"], capture_output=True, text=True, check=False)
    for route in json.loads(done.stdout or "[]") if done.returncode == 0 else []:
        if route.get("dst", "default") == "default":
            continue
        network = ipaddress.ip_network(route["dst"], strict=False)
        if network.version == 4 and network.overlaps(settings.subnet):
            return f"the route {network} on {route.get('dev')}"
    return None


def _network_error(settings: Settings) -> str | None:
    """Asks the Debian mirror that base_image.sh would use for one small file; None when it answers."""
    lib = settings.root / "scripts/lib/base_image.sh"
    done = subprocess.run(
        ["bash", "-c", 'source "$1" && base_mirror && printf "%s" "$BASE_SUITE"', "mirror", str(lib)],
        capture_output=True,
        text=True,
        check=False,
    )
    words = done.stdout.split()
    if len(words) < 2:
        # apt names no mirror here: debootstrap takes its own default, and says itself when that does not answer.
        return None
    mirror, suite = words[0], words[-1]
    try:
        with urllib.request.urlopen(f"{mirror.rstrip('/')}/dists/{suite}/Release", timeout=15) as answer:
            return None if answer.status == 200 else f"{mirror} answered {answer.status}"
    except (urllib.error.URLError, OSError, ValueError) as error:
        return f"{mirror}: {error}"


def main(argv: list[str] | None = None) -> int:
    """What scripts/rehearse.sh asks before it makes the environments, with nothing but the standard library: a slip in
    the options before anything is installed (`--options-only`), the machine before minutes are spent on it."""
    words = list(sys.argv[1:] if argv is None else argv)
    options_only = "--options-only" in words
    try:
        settings = from_words([word for word in words if word != "--options-only"])
        if settings is not None and not options_only:
            environment = settings.root / ".venv"
            require(settings, images_ready=environment.is_dir() and tags.have_all(settings.root))
    except Problem as problem:
        print(f"REFUSED: {problem}", file=sys.stderr)
        return int(problem.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
