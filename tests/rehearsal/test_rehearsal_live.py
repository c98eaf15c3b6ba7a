"""The rehearsal itself: real images, containers that stand for hosts, the production playbooks. Takes many minutes.

The tests build on each other (a good release first, then what must not replace it), so they run in the file's order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from megamoe.resources import checkout_root

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def own_checkout(engine: str) -> None:
    if checkout_root() != ROOT:
        pytest.skip("megamoe is not this checkout's: the rehearsal would run other playbooks")


def rehearse(*options: str, timeout_s: float = 2400) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON envelope of `megamoe rehearse OPTIONS`."""
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "rehearse", "--json", *options],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=timeout_s,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def complete(address: str) -> str:
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps({"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


@pytest.mark.live_ci
def test_two_nodes_are_taken_from_bare_to_validated_and_serve_behind_the_gateway() -> None:
    code, envelope = rehearse()
    assert (code, envelope["status"]) == (0, "pass"), envelope
    data = envelope["data"]
    assert data["serving"] == ["node1", "node2"]
    assert "Paris" in complete("http://127.0.0.1:18080")
    checks = {(v["host"], v["check"]): v["status"] for v in data["verdicts"]}
    if data["changed"]:  # a first run; on a machine with a rehearsal of this commit nothing is judged again
        for host in ("node1", "node2"):
            assert checks[host, "smoke"] in ("pass", "warn"), checks  # warn: batching may reorder sums
            assert checks[host, "gate"] in ("pass", "warn"), checks  # warn: the two filters differ by an answer
    page = Path(data["look_at"]["report"]).read_text()
    assert "Where the time went" in page and "node2" in page


@pytest.mark.live_ci
def test_a_second_run_changes_nothing_and_says_so() -> None:
    code, envelope = rehearse()
    assert code == 0
    assert {host: counts["changed"] for host, counts in envelope["data"]["hosts"].items()} == {
        "node1": 0, "node2": 0, "gateway": 0, "localhost": 0,
    }  # fmt: skip
    assert "changed=0" in envelope["summary"]


# Minutes each, so not in CI, where tests/rollout shows one bad release under load.
# Fault, self-test, the task that must catch it, a word of the cause:
CAUGHT = [
    pytest.param("gate_up_mispaired", "off", "validate", "France"),
    pytest.param("http_5xx", "on", "validate", "500"),
    pytest.param("expert_zeroed", "off", "validate", ""),
    pytest.param("gate_up_mispaired", "on", "serve", "selftest"),
    pytest.param("expert_zeroed", "on", "serve", "selftest"),
    pytest.param("never_ready", "on", "serve", ""),
]


@pytest.mark.parametrize(("fault", "selftest", "task", "word"), CAUGHT)
def test_each_fault_is_caught_and_the_good_release_serves_on(fault: str, selftest: str, task: str, word: str) -> None:
    code, envelope = rehearse("--fault", fault, "--selftest", selftest)
    assert (code, envelope["status"]) == (1, "fail"), envelope
    assert task in envelope["data"]["caught_by"]
    first = envelope["findings"][0]
    assert first["host"] == "node1"
    assert word in json.dumps(first)
    assert "rehearse_half_rolled" not in [f["code"] for f in envelope["findings"]]
    # The canary went back by itself, and the node that was never touched serves on.
    assert envelope["data"]["serving"] == ["node1", "node2"]
    assert "Paris" in complete("http://127.0.0.1:18080")


@pytest.mark.live_ci
@pytest.mark.last
def test_down_removes_all_that_was_made_and_only_that(engine: str) -> None:
    def everything() -> set[str]:
        form = ("--format", "{{.Names}}"), ("--format", "{{.Name}}"), ("--format", "{{.Repository}}:{{.Tag}}")
        asked = (["ps", "-a", *form[0]], ["volume", "ls", *form[1]], ["network", "ls", *form[1]], ["images", *form[2]])
        said = (subprocess.run([engine, *what], capture_output=True, text=True, check=True).stdout for what in asked)
        return {name for names in said for name in names.split() if name != "<none>:<none>"}

    before = everything()
    assert any(name.startswith("mmreh-") for name in before)
    assert rehearse("--down")[0] == 0
    assert not [name for name in everything() if name.startswith("mmreh-")]
    assert {name for name in before if not name.startswith("mmreh-")} <= everything()
    assert rehearse("--down")[1]["summary"] == "nothing of a rehearsal was there"
