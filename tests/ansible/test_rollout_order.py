"""What a roll-out decides, in which order, on fake nodes (tests/ansible/simulation): no host, no engine, no network.

One story per test, because each run of a playbook costs seconds. What the modules do on real hosts: tests/rollout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from simulated import GOOD, NEWER, FakeCluster

# Half a minute of CPU per playbook: for `make test-all`, although no engine is needed.
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def release_of(cluster: FakeCluster, host: str) -> str:
    return str(cluster.record(host).get("release", ""))


def test_a_bad_image_is_caught_on_the_canary_and_rolled_back_alone(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=3, wave=2)
    first = cluster.play("site.yml")
    assert first.returncode == 0, first.output[-3000:]
    assert [cluster.record(n)["state"] for n in cluster.nodes] == ["serving"] * 3
    assert cluster.enabled() == cluster.nodes
    # One canary, then ceil(2 / 2) waves; the canary is in the gateway before the first of the wave is touched.
    assert first.plays("Roll out to the canary") == 1
    assert first.plays("Roll out in waves") == 1
    log = cluster.read("gateway")["log"]
    assert next(entry[1] for entry in log if entry[0] == "ready") == "node1"
    path = f"/var/lib/megamoe/releases/{release_of(cluster, 'node1')}.json"
    record = json.loads(cluster.read("node1")["files"][path])
    assert record["image"].endswith(GOOD)
    assert record["gate"]["status"] == "pass"
    assert len(record["plan_hash"]) == 64 and record["recorded_at"].endswith("Z") and record["commit"]

    again = cluster.play("site.yml")
    assert (again.returncode, again.changed) == (0, 0), [e for e in again.events if e.get("changed")]

    good = release_of(cluster, "node1")
    cluster.image(NEWER, fault="gate_up_mispaired")
    bad = cluster.play("playbooks/upgrade.yml")
    assert bad.returncode != 0
    assert "node1 did not take release" in bad.output and "Nodes of later waves are untouched" in bad.output
    assert cluster.record("node1") | {"refused": ""} == {
        "state": "serving", "release": good, "previous": "", "port": 8000, "refused": "",
    }  # fmt: skip
    assert cluster.read("node1")["containers"]["megamoe"]["image"].endswith(GOOD)
    assert [entry[2][-64:] for entry in cluster.read("node1")["log"] if entry[0] == "run"] == [GOOD, NEWER, GOOD]
    for node in ("node2", "node3"):
        runs = [entry for entry in cluster.read(node)["log"] if entry[0] == "run"]
        assert len(runs) == 1  # of the first install only
    assert cluster.enabled() == cluster.nodes
    # Its lock is given back with the report; the next playbook does not have to find that its owner has ended.
    assert "/run/megamoe/lock.json" not in cluster.read("node1")["files"]

    cluster.image(NEWER)
    mended = cluster.play("site.yml")
    assert mended.returncode == 0, mended.output[-3000:]
    assert {release_of(cluster, n) for n in cluster.nodes} != {good}
    assert {cluster.record(n)["previous"] for n in cluster.nodes} == {good}

    back = cluster.play("playbooks/rollback.yml")
    assert back.returncode == 0, back.output[-3000:]
    assert {release_of(cluster, n) for n in cluster.nodes} == {good}
    assert cluster.enabled() == cluster.nodes
    unknown = cluster.play("playbooks/rollback.yml", "-e", "megamoe_release=0123456789ab")
    assert unknown.returncode != 0
    assert "node1 has no record of release 0123456789ab" in unknown.output and good in unknown.output
    assert {release_of(cluster, n) for n in cluster.nodes} == {good}


def test_nodes_are_drained_recycled_shown_and_removed(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    assert cluster.play("site.yml").returncode == 0

    everything = cluster.play("playbooks/drain.yml")
    assert everything.returncode != 0 and "Without --limit" in everything.output
    assert cluster.enabled() == ["node1", "node2"]
    drained = cluster.play("playbooks/drain.yml", "--limit", "node2")
    assert drained.returncode == 0, drained.output[-3000:]
    assert (cluster.record("node2")["state"], cluster.enabled()) == ("drained", ["node1"])
    assert cluster.read("node2")["containers"]["megamoe"]["running"]
    # A run for another node learns nothing of node2, and must neither let it in nor throw node1 out.
    limited = cluster.play("site.yml", "--limit", "node1:gateway:localhost")
    assert (limited.returncode, limited.changed) == (0, 0), limited.output[-3000:]
    assert cluster.enabled() == ["node1"]
    ended = cluster.play("playbooks/drain.yml", "--limit", "node2", "-e", "drain_end=true")
    assert ended.returncode == 0, ended.output[-3000:]
    assert (cluster.record("node2")["state"], cluster.enabled()) == ("serving", ["node1", "node2"])

    cluster.write("node2", epoch_share=0.7)
    recycled = cluster.play("playbooks/recycle.yml")
    assert recycled.returncode == 0, recycled.output[-3000:]
    restarts = {n: [e for e in cluster.read(n)["log"] if e[0] == "restart"] for n in cluster.nodes}
    assert restarts == {"node1": [], "node2": [["restart", "megamoe"]]}
    assert (cluster.record("node2")["state"], cluster.enabled()) == ("serving", ["node1", "node2"])

    shown = cluster.play(
        "playbooks/status.yml", "-e", f"status_json={tmp_path}/s.json", "-e", f"status_prometheus={tmp_path}/s.prom"
    )
    assert shown.returncode == 0, shown.output[-3000:]
    nodes = {n["host"]: n for n in json.loads((tmp_path / "s.json").read_text())["nodes"]}
    assert (nodes["node2"]["state"], nodes["node2"]["gate"], nodes["node2"]["health"]) == ("serving", "pass", "answers")
    assert nodes["node2"]["epoch_share"] == 0.7 and nodes["node2"]["gateway"] == "UP"
    assert 'megamoe_node_epoch_share{node="node2"} 0.7' in (tmp_path / "s.prom").read_text()

    refused = cluster.play("playbooks/teardown.yml")
    assert refused.returncode != 0 and "Nothing was removed" in refused.output
    assert cluster.enabled() == ["node1", "node2"]
    removed = cluster.play("playbooks/teardown.yml", "-e", "confirm=yes")
    assert removed.returncode == 0, removed.output[-3000:]
    for node in cluster.nodes:
        assert cluster.read(node)["containers"] == {} and cluster.record(node) == {}
    assert "/etc/haproxy/haproxy.cfg" not in cluster.read("gateway")["files"]


def test_a_limit_leaves_out_neither_the_question_nor_the_check_nor_the_table(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    assert cluster.play("site.yml").returncode == 0
    refused = cluster.play("playbooks/teardown.yml", "--limit", "node2")
    assert refused.returncode != 0 and "Nothing was removed" in refused.output
    assert cluster.read("node2")["containers"]["megamoe"]["running"] and cluster.enabled() == cluster.nodes

    cluster.write("node1", faults=["unreachable"])
    written = ("-e", f"status_json={tmp_path}/s.json")
    assert cluster.play("playbooks/status.yml", *written).returncode == 0
    nodes = {n["host"]: n["state"] for n in json.loads((tmp_path / "s.json").read_text())["nodes"]}
    assert nodes == {"node1": "unreachable", "node2": "serving"}
    cluster.write("node1", faults=[])
    shown = cluster.play("playbooks/status.yml", "--limit", "node2", *written)
    assert shown.returncode == 0 and "node2" in shown.output
    assert [n["host"] for n in json.loads((tmp_path / "s.json").read_text())["nodes"]] == ["node2"]

    cluster.vars["serve_supervisr"] = "systemd"
    unknown = cluster.play("site.yml", "--limit", "node2")
    assert unknown.returncode != 0 and "Did you mean serve_supervisor?" in unknown.output
    del cluster.vars["serve_supervisr"]

    # What is begun in the middle, or in part, is either done on hosts that were checked, or not called done.
    middle = cluster.play("site.yml", "--start-at-task", "host_tuning : Set and keep kernel parameters")
    assert middle.returncode != 0 and "was not checked in this run" in middle.output
    cluster.image(NEWER)
    part = cluster.play("site.yml", "--tags", "gateway_configure")
    assert part.returncode == 0, part.output[-3000:]
    assert len([e for e in cluster.read("node1")["log"] if e[0] == "run"]) == 1 and cluster.enabled() == cluster.nodes

    # A node that was rebooted since preflight is not judged by what it was before.
    cluster.write("node1", faults=["rebooted"])
    lapsed = cluster.play("site.yml")
    assert lapsed.returncode != 0 and "node1 lost its lock" in lapsed.output
    assert len([e for e in cluster.read("node1")["log"] if e[0] == "run"]) == 1


def test_a_unit_that_failed_before_or_was_never_written_stops_nothing(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=1)
    cluster.vars["serve_supervisor"] = "systemd"
    cluster.vars["megamoe_deploy"]["container"]["restart_policy"] = "no"
    unit = "/etc/systemd/system/megamoe.service"
    cluster.write("node1", faults=[f"no_write {unit}"])
    first = cluster.play("site.yml")
    assert first.returncode != 0 and "No space left" in first.output and "could not be stopped" not in first.output
    assert cluster.record("node1")["state"] == "stopped"
    assert not cluster.read("node1")["containers"]["megamoe"]["running"]

    cluster.write("node1", faults=[])
    cluster.vars |= {"image_registry_username": "u", "image_registry_password": "p"}
    mended = cluster.play("site.yml")
    assert mended.returncode == 0, mended.output[-3000:]
    log = cluster.read("node1")["log"]
    assert log.index(["systemctl", "reset-failed", "megamoe.service"]) < log.index(["systemd", "started", "megamoe"])
    # The login lasted as long as the pull, away from root's home.
    assert ["login", "/run/megamoe-login-x/config.json", "registry.test"] in log
    assert not [d for d in cluster.read("node1")["dirs"] if "login" in d]
    assert cluster.play("site.yml").changed == 0

    # Another supervisor takes over: the unit of before would start the container a second time.
    cluster.vars["serve_supervisor"] = "container"
    cluster.vars["megamoe_deploy"]["container"]["restart_policy"] = "unless-stopped"
    changed = cluster.play("site.yml")
    assert changed.returncode == 0, changed.output[-3000:]
    assert unit not in cluster.read("node1")["files"] and cluster.read("node1")["containers"]["megamoe"]["running"]


def test_check_mode_of_the_other_playbooks_says_what_they_would_do(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=1)
    assert cluster.play("site.yml").returncode == 0
    good = release_of(cluster, "node1")
    cluster.image(NEWER)
    assert cluster.play("site.yml").returncode == 0
    before = {n: cluster.read(n) for n in ("node1", "gateway")}
    back = cluster.play("playbooks/rollback.yml", "--check", "--diff")
    assert back.returncode == 0 and "node1 would return from" in back.output and f"to {good}" in back.output
    for playbook, options in {
        "drain": ["--limit", "node1"], "recycle": ["-e", "recycle_epoch_share=0"], "teardown": ["-e", "confirm=yes"]
    }.items():  # fmt: skip
        done = cluster.play(f"playbooks/{playbook}.yml", "--check", *options)
        assert done.returncode == 0, done.output[-3000:]
    ended = cluster.play("playbooks/drain.yml", "--check", "--limit", "node1", "-e", "drain_end=true")
    assert ended.returncode == 0, ended.output[-3000:]
    assert {n: cluster.read(n) for n in before} == before
    # What is skipped is not judged: this one changes nothing, and runs.
    cluster.write("node1", faults=["smoke_fails"])
    assert cluster.play("playbooks/validate.yml", "--check").returncode != 0


def test_what_fails_before_the_drain_leaves_the_old_release_serving(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    cluster.write("node1", faults=["registry_down"])
    bare = cluster.play("site.yml")
    assert bare.returncode != 0 and "connection refused" in bare.output
    assert (cluster.record("node1")["state"], cluster.record("node2"), cluster.enabled()) == ("stopped", {}, [])
    cluster.write("node1", faults=[])
    assert cluster.play("site.yml").returncode == 0
    assert cluster.enabled() == cluster.nodes

    faults = {"registry_down": "connection refused", "model_torn": "verify-model", "digest_mismatch": "digest"}
    for fault, words in faults.items():
        cluster.image(NEWER)
        cluster.write("node1", faults=[fault], images=[i for i in cluster.read("node1")["images"] if GOOD in i])
        before = cluster.read("node1")["log"]
        done = cluster.play("site.yml")
        assert done.returncode != 0 and words in done.output, done.output[-2000:]
        assert cluster.record("node1")["state"] == "serving"
        assert cluster.read("node1")["log"] == before  # the container was not touched
        assert cluster.enabled() == cluster.nodes
        assert not [e for e in cluster.read("gateway")["log"] if e[0] == "drain"]


def test_an_image_that_nobody_signed_is_not_pulled(tmp_path: Path) -> None:
    """cosign is not installable here: a program of its name stands for it and knows one signed digest."""
    cluster = FakeCluster(tmp_path / "c", nodes=1)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cosign").write_text(
        '#!/bin/sh\necho "$@" >>"$COSIGN_LOG"\ncase $4 in *@sha256:11*) exit 0 ;; esac\n'
        'echo "no matching signatures" >&2\nexit 10\n'
    )
    (programs / "cosign").chmod(0o755)
    cluster.vars["image_cosign_key"] = "/keys/release.pub"
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "COSIGN_LOG": str(tmp_path / "log")}
    assert cluster.play("site.yml", env=env).returncode == 0
    good = release_of(cluster, "node1")
    cluster.image(NEWER)
    refused = cluster.play("site.yml", env=env)
    assert refused.returncode != 0 and "no matching signatures" in refused.output
    assert not [i for i in cluster.read("node1")["images"] if NEWER in i]
    assert (cluster.record("node1")["state"], release_of(cluster, "node1")) == ("serving", good)
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked[0] == f"verify --key /keys/release.pub registry.test/megamoe@sha256:{GOOD}"


def test_a_lost_node_and_a_second_playbook_stop_the_roll_out_in_a_named_state(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    cluster.write("node2", faults=["unreachable"])
    lost = cluster.play("site.yml")
    assert lost.returncode != 0
    assert "node2 (node2.test) does not answer over SSH" in lost.output and "Nothing was changed" in lost.output
    assert not cluster.read("node1")["dirs"] and not cluster.read("node1")["images"]

    other = {"id": "elsewhere:1:2", "machine": "elsewhere", "pid": 1, "who": "ann on elsewhere (process 1)"}
    cluster.write("node2", faults=[])
    cluster.write("node1", files={"/run/megamoe/lock.json": json.dumps(other)})
    held = cluster.play("site.yml")
    assert held.returncode != 0
    assert "node1 is held by ann on elsewhere (process 1)" in held.output and "megamoe_break_lock" in held.output
    assert not cluster.read("node1")["images"]
    broken = cluster.play("site.yml", "-e", "megamoe_break_lock=elsewhere:1:2")
    assert broken.returncode == 0, broken.output[-3000:]
    assert cluster.enabled() == cluster.nodes
    assert "/run/megamoe/lock.json" not in cluster.read("node1")["files"]

    # A node whose disk is full cannot be changed, and says so before anything is.
    cluster.image(NEWER)
    cluster.write("node2", faults=["disk_full"])
    full = cluster.play("site.yml")
    assert full.returncode != 0 and "node2 has 0.5 GiB free" in full.output
    assert {n: cluster.record(n)["state"] for n in cluster.nodes} == {"node1": "serving", "node2": "serving"}
    assert len([e for e in cluster.read("node1")["log"] if e[0] == "run"]) == 1


def test_a_canary_lost_on_the_way_ends_the_roll_out_before_any_wave(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=3, wave=2)
    assert cluster.play("site.yml").returncode == 0
    cluster.image(NEWER)
    cluster.write("node1", faults=["lost_at_smoke"])
    lost = cluster.play("site.yml")
    assert lost.returncode != 0 and lost.plays("Roll out in waves") == 0
    assert cluster.record("node1")["state"] == "deploying"
    assert cluster.enabled() == ["node2", "node3"]
    for other in ("node2", "node3"):
        assert len([e for e in cluster.read(other)["log"] if e[0] == "run"]) == 1
    cluster.write("node1", faults=[])
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert cluster.enabled() == cluster.nodes


def test_check_mode_says_what_would_change_and_changes_nothing(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    before = {n: cluster.read(n) for n in (*cluster.nodes, "gateway")}
    checked = cluster.play("site.yml", "--check", "--diff")
    assert checked.returncode == 0, checked.output[-3000:]
    assert "node1 would go from no release (bare) to" in checked.output
    after = {n: cluster.read(n) for n in (*cluster.nodes, "gateway")}
    for name in after:
        assert {k: v for k, v in after[name].items() if k != "uploads"} == before[name]
