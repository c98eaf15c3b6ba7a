"""The roll-out against the hosts of a rehearsal: load, faults, interruptions. For `make test-all` (marker `engine`).

They use the cluster of `megamoe rehearse`, and bring it up when it is not; each begins and ends with all nodes
serving one release.
What each took is written to durations.json in pytest's folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from live import Clients, Live, Playing

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]
# As docker/node/node-start starts it.
SSHD = ("/usr/sbin/sshd", "-o", "PasswordAuthentication=no", "-o", "UseDNS=no", "-o", "MaxStartups=100")
DURATIONS: dict[str, float] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("rollout")
    yield path
    (path / "durations.json").write_text(json.dumps(DURATIONS, indent=2))


@pytest.fixture
def cluster(folder: Path, rehearsal: Path, request: pytest.FixtureRequest) -> Iterator[Live]:
    """The cluster with every node serving one generation, live.base; site.yml alone puts right what a test leaves."""
    live = Live(folder, rehearsal)
    found = {live.generation(n) if live.state(n).get("state") == "serving" else "" for n in live.nodes}
    live.base = found.pop() if len(found) == 1 and found != {""} else "base"
    live.plan(live.base)
    if live.base == "base" or live.up() != live.nodes:
        begun = live.play("site.yml")
        assert begun.returncode == 0, begun.output[-3000:]
    started = time.monotonic()
    yield live
    DURATIONS[request.node.name] = round(time.monotonic() - started, 1)


def fresh(word: str) -> str:
    """A generation that no earlier run has used, so that there is something to roll out."""
    return f"{word}-{int(time.time())}"


def assert_all_serve(live: Live, generation: str) -> None:
    """Every node runs the release, records it as serving and gets requests."""
    found = {n: (live.generation(n), live.state(n)["state"]) for n in live.nodes}
    assert found == dict.fromkeys(live.nodes, (generation, "serving"))
    assert live.up() == live.nodes


def test_the_second_run_changes_nothing(cluster: Live) -> None:
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert again.changed == []
    assert_all_serve(cluster, cluster.base)


@pytest.mark.live_ci
def test_an_upgrade_under_load_loses_no_request(cluster: Live) -> None:
    new = fresh("upgraded")
    cluster.plan(new)
    with Clients(cluster) as clients:
        done = cluster.play("playbooks/upgrade.yml")
        clients.until(2000)
    assert done.returncode == 0, done.output[-3000:]
    assert clients.load.bad == []
    assert clients.load.total >= 2000 and min(clients.load.good["stream"], clients.load.good["whole"]) >= 500
    assert_all_serve(cluster, new)


@pytest.mark.live_ci
def test_a_bad_image_is_caught_on_the_canary_and_rolled_back_alone(cluster: Live) -> None:
    untouched = cluster.on(cluster.nodes[1], "docker", "inspect", "--format", "{{.State.StartedAt}}", "megamoe")
    cluster.plan(fresh("bad"), fault="gate_up_mispaired")
    with Clients(cluster, workers=4) as clients:
        done = cluster.play("playbooks/upgrade.yml")
    assert done.returncode != 0
    assert "did not take release" in done.output
    assert done.failures[0]["task"].startswith("validate"), done.failures  # smoke or gate
    assert clients.load.bad == []
    assert cluster.state(cluster.nodes[0])["refused"]
    assert_all_serve(cluster, cluster.base)
    assert cluster.on(cluster.nodes[1], "docker", "inspect", "--format", "{{.State.StartedAt}}", "megamoe") == untouched


@pytest.mark.live_ci
def test_a_node_killed_under_load_costs_only_what_it_had_in_hand(cluster: Live) -> None:
    victim = cluster.nodes[1]
    with Clients(cluster) as clients:
        clients.until(60)
        killed = time.time()
        cluster.on(victim, "docker", "kill", "megamoe")
        clients.until(clients.load.total + 200)
    # In hand: at most what its clients had open at that moment. Each was told, by an error or a broken stream.
    assert all(entry["started"] <= killed + 1 for entry in clients.load.bad), clients.load.bad
    assert len(clients.load.bad) <= 6
    done = cluster.play("site.yml")
    assert done.returncode == 0, done.output[-3000:]
    assert_all_serve(cluster, cluster.base)


def test_ssh_cut_in_mid_play_ends_in_a_named_state_and_site_finishes(cluster: Live) -> None:
    first = cluster.nodes[0]
    new = fresh("cut")
    cluster.plan(new)
    playing = Playing(cluster, "site.yml")
    playing.wait_for("Ask the server everything once")
    cluster.on(first, "pkill", "sshd")
    done = playing.end()
    assert done.returncode != 0
    assert any(f["event"] == "unreachable" and f["host"] == first for f in done.failures) or first in done.output
    assert cluster.state(first)["state"] == "deploying"
    assert cluster.up() == cluster.nodes[1:]
    assert cluster.generation(cluster.nodes[1]) == cluster.base
    cluster.on(first, *SSHD)
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert_all_serve(cluster, new)


def test_a_controller_interrupted_between_canary_and_wave_leaves_two_named_releases(cluster: Live) -> None:
    new = fresh("interrupted")
    cluster.plan(new)
    playing = Playing(cluster, "site.yml")
    playing.wait_for("Roll out in waves")
    playing.interrupt()
    done = playing.end(120)
    assert done.returncode != 0
    assert cluster.generation(cluster.nodes[0]) == new
    assert cluster.state(cluster.nodes[0])["state"] == "serving"
    assert cluster.state(cluster.nodes[1])["state"] in ("serving", "deploying")
    assert cluster.nodes[0] in cluster.up()
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert_all_serve(cluster, new)


@pytest.mark.parametrize("fault", ["port_taken", "disk_full", "node_unreachable", "wrong_group"])
def test_what_preflight_sees_is_refused_before_any_node_is_touched(cluster: Live, fault: str) -> None:
    node, options = cluster.nodes[1], []
    new = fresh(fault)
    cluster.plan(new)
    if fault == "port_taken":
        cluster.on(node, "docker", "stop", "megamoe")
        listen = "import socket,time;s=socket.create_server(('0.0.0.0',8000));time.sleep(900)"
        cluster.on(node, "sh", "-c", f'setsid python3 -c "{listen}" >/dev/null 2>&1 & sleep 1')
        words = "port 8000 is taken"
    elif fault == "disk_full":
        cluster.on(node, "sh", "-c", "mkdir -p /mnt/full && mount -t tmpfs -o size=64m tmpfs /mnt/full")
        options = ["-e", json.dumps({"preflight_disk_gib": {"/mnt/full": 1}})]
        words = f"{node} has 0.1 GiB free at /mnt/full"
    elif fault == "node_unreachable":
        cluster.on(node, "pkill", "sshd")
        words = f"{node} ("
    else:
        cluster.variables["megamoe_canary"] = "gateway"
        words = "which is not in megamoe_nodes"
    done = cluster.play("site.yml", *options)
    assert done.returncode != 0 and words in done.output, done.output[-3000:]
    assert done.changed == []
    assert cluster.generation(cluster.nodes[0]) == cluster.base
    if fault == "port_taken":
        cluster.on(node, "pkill", "-f", "create_server")
    if fault == "disk_full":
        cluster.on(node, "umount", "/mnt/full")
    if fault == "node_unreachable":
        cluster.on(node, *SSHD)
    cluster.variables.pop("megamoe_canary", None)
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert_all_serve(cluster, new)


@pytest.mark.parametrize("fault", ["registry_down", "digest_mismatch"])
def test_an_image_that_cannot_be_had_leaves_the_old_release_serving(cluster: Live, fault: str) -> None:
    new = fresh(fault)
    cluster.plan(new)
    name, _, digest = cluster.cluster["image"].partition("@")
    wanted = cluster.variables["megamoe_deploy"]["image"]
    other = f"sha256:{'0' * 64}" if fault == "digest_mismatch" else digest
    place = name if fault == "digest_mismatch" else name.replace(":5000", ":5999")
    cluster.variables["megamoe_deploy"]["image"] = f"{place}@{other}"
    cluster.variables["image_pull_retries"] = 1
    cluster.variables["container_engine_daemon_config"] = {"insecure-registries": [name.partition("/")[0]]}
    with Clients(cluster, workers=2) as clients:
        done = cluster.play("site.yml")
    assert done.returncode != 0 and "Pull the image by digest" in done.output, done.output[-3000:]
    assert clients.load.bad == []
    assert_all_serve(cluster, cluster.base)
    cluster.variables["megamoe_deploy"]["image"] = wanted
    again = cluster.play("site.yml")
    assert again.returncode == 0, again.output[-3000:]
    assert_all_serve(cluster, new)
