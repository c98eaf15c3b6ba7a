"""`site.yml --check --diff` against hosts on which nothing of ours was ever done: it says all, and does nothing.

The hosts are two containers of the rehearsal's host image with engine and HAProxy purged; they share its
network (marker `engine`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from megamoe.rehearse.cluster import GATEWAY_FLAGS, NETWORK, NODE_FLAGS

sys.path.insert(0, str(Path(__file__).parent))

from live import Live

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.live_ci,
]
PREFIX = "mmtest-"
HOSTS = {"bare": "172.29.77.201", "bare-gateway": "172.29.77.202"}
# What production installs, and the rehearsal's inventory leaves out because its host image has it.
INSTALL = {"container_engine_packages": ["docker.io", "python3-requests"], "gateway_packages": ["haproxy"]}
PURGE = """apt-get -qq update && apt-get -qq purge docker.io haproxy && rm -rf /etc/docker /etc/haproxy
pkill -x dockerd
! command -v dockerd"""
# Everything that a role could write; what sshd, apt and Ansible's own connection leave there is not the roles' doing.
FILES = (
    "find /etc /opt /usr /var /run /srv /home -xdev -type f -printf '%p %s %T@ %m %u\\n' | "
    "grep -v -e ^/var/log/ -e ^/run/utmp -e ^/run/motd -e ^/var/cache/ -e ^/var/lib/apt/ -e __pycache__ | sort; "
    "dpkg-query --show --showformat '${Package} ${Version} ${Status}\\n'; ls -d /models/*"
)


def docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"docker {argv}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def bare(tmp_path: Path, rehearsal: Path) -> Iterator[Live]:
    """Two hosts with an SSH server and Python and nothing else of what the roles bring."""
    cluster = json.loads(rehearsal.read_text())
    node = f"{cluster.get('prefix', 'mmreh-')}{sorted(cluster['nodes'])[0]}"
    image = docker("inspect", "--format", "{{.Config.Image}}", node)
    key = Path(cluster["key"]).with_suffix(".pub").read_text().strip()
    model = docker(
        "inspect",
        "--format",
        '{{range .Mounts}}{{if eq .Type "bind"}}{{println .Source .Destination}}{{end}}{{end}}',
        node,
    )
    source = next(line.split()[0] for line in model.splitlines() if line.endswith("/models/rehearsal"))
    known = tmp_path / "known_hosts"
    try:
        for name, address in HOSTS.items():
            role, flags = ("gateway", GATEWAY_FLAGS) if name == "bare-gateway" else ("node", NODE_FLAGS)
            docker(
                "run", "--detach", "--name", PREFIX + name, "--hostname", name, "--network", NETWORK, "--ip", address,
                *flags,
                "--volume", f"{source}:/models/rehearsal:ro", "--env", f"MEGAMOE_NODE_ROLE={role}",
                "--env", f"MEGAMOE_AUTHORIZED_KEY={key}", "--env", "MEGAMOE_REGISTRY=none.invalid:5000", image,
            )  # fmt: skip
            docker(
                "exec",
                PREFIX + name,
                "sh",
                "-c",
                PURGE,
            )
            public = docker("exec", PREFIX + name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()
            with known.open("a") as file:
                file.write(f"{address} {public[0]} {public[1]}\n")
        cluster |= {
            "nodes": {"bare": HOSTS["bare"]}, "gateway": {"bare-gateway": HOSTS["bare-gateway"]},
            "known_hosts": str(known), "prefix": PREFIX, "report_dir": str(tmp_path / "reports"),
        }  # fmt: skip
        (tmp_path / "cluster.json").write_text(json.dumps(cluster))
        yield Live(tmp_path, tmp_path / "cluster.json")
    finally:
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", *(PREFIX + name for name in HOSTS)], capture_output=True
        )


def test_a_check_of_bare_hosts_names_what_would_be_done_and_does_nothing(bare: Live) -> None:
    bare.plan("bare")
    bare.variables |= INSTALL
    before = {name: bare.on(name, "sh", "-c", FILES) for name in HOSTS}
    done = bare.play("site.yml", "--check", "--diff")
    assert done.returncode == 0, done.output[-4000:]
    tasks = {task for _, task in done.changed}
    for wanted in (
        "Name the packages that check mode cannot ask about",
        "Write the engine's configuration",
        "Write the configuration from the release records",
        "Say what would be done",
    ):
        assert any(wanted in task for task in tasks), sorted(tasks)
    assert "insecure-registries" in done.output  # --diff shows the files
    for name in HOSTS:
        assert set(bare.on(name, "sh", "-c", FILES).splitlines()) ^ set(before[name].splitlines()) == set(), name
