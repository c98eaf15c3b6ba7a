"""A canary in the place of each secret, searched for in output, log, events, facts and reports of a roll-out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from simulated import FakeCluster

# Half a minute of CPU: for `make test-all`, although no engine is needed.
pytestmark = [pytest.mark.engine, pytest.mark.slow]
KEY, PASSWORD = "canary-api-key-7f3a91", "canary-registry-password-b20c44"


def test_secrets_stand_in_the_one_file_that_needs_them_and_nowhere_else(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", nodes=1)
    cluster.vars |= {"megamoe_api_key": KEY, "image_registry_username": "u", "image_registry_password": PASSWORD}
    cluster.image("3" * 64, fault="gate_up_mispaired")  # a failed roll-out writes reports, too
    keep = {
        "ANSIBLE_LOG_PATH": str(tmp_path / "ansible.log"),
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "facts"),
    }
    done = cluster.play("site.yml", "-vvv", "--diff", env=keep)
    assert done.returncode != 0 and "node1 did not take release" in done.output
    (tmp_path / "output").write_text(done.output)
    searched = [p for p in tmp_path.rglob("*") if p.is_file()]
    # No play gathers or caches facts of Ansible's; a cache that came back would be searched as well.
    reports = {p.name for p in (tmp_path / "cluster/reports").rglob("*.json")}
    assert {"facts.json", "deploy.json", "smoke.json"} <= reports
    # The inventory is where the test put them (a vault in real life); uploads is what goes over SSH.
    allowed = {"hosts.yml", "gateway.test.uploads", "gateway.test.json"}
    found = {p.name for p in searched if any(s.encode() in p.read_bytes() for s in (KEY, PASSWORD))}
    assert found <= allowed, found - allowed
    # On the gateway it is the key file alone; the registry's password reaches no file of a node.
    files = cluster.read("gateway")["files"]
    assert [path for path, text in files.items() if KEY in text] == ["/etc/haproxy/api_keys"]
    assert PASSWORD not in str(files)
    assert KEY not in files["/etc/haproxy/haproxy.cfg"] and "api_keys" in files["/etc/haproxy/haproxy.cfg"]
