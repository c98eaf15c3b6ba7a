"""The simulated AMD tools, the inventory and the question set, checked without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SHIMS = ROOT / "docker/node/shims"


def tool(tmp_path: Path, name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the shim under a tool's name, its outputs found beside it instead of where the image has them."""
    text = (SHIMS / "shim").read_text().replace("/usr/local/share/megamoe-synthetic", str(SHIMS))
    program = tmp_path / name
    program.write_text(text.replace("/dev/dri/renderD*", str(tmp_path / "renderD*")))
    program.chmod(0o755)
    for i in range(8):
        (tmp_path / f"renderD{128 + i}").touch()
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("name", "args", "count"),
    [
        pytest.param("amd-smi", ("list", "--json"), lambda d: len(d), id="amd-smi list"),
        pytest.param("amd-smi", ("static", "--json"), lambda d: len(d["gpu_data"]), id="amd-smi static"),
        pytest.param("amd-smi", ("metric", "--json"), lambda d: len(d["gpu_data"]), id="amd-smi metric"),
        pytest.param("rocm-smi", ("--json",), lambda d: len(d), id="rocm-smi"),
    ],
)
def test_a_tool_reports_one_entry_per_device_node(
    name: str, args: tuple[str, ...], count: object, tmp_path: Path
) -> None:
    done = tool(tmp_path, name, *args)
    assert done.returncode == 0, done.stderr
    assert count(json.loads(done.stdout)) == 8  # type: ignore[operator]


def test_lspci_and_rocminfo_count_the_same_gpus_and_give_them_distinct_addresses(tmp_path: Path) -> None:
    lines = tool(tmp_path, "lspci", "-d", "1002:75a3").stdout.splitlines()
    assert len({line.split()[0] for line in lines}) == 8
    assert tool(tmp_path, "rocminfo").stdout.count("gfx950") == 8


def test_a_call_without_a_synthetic_output_fails_instead_of_inventing_one(tmp_path: Path) -> None:
    done = tool(tmp_path, "amd-smi", "reset", "--gpureset")
    assert done.returncode == 2
    assert "no synthetic output" in done.stderr


def test_every_output_file_is_named_synthetic() -> None:
    assert {p.name for p in SHIMS.iterdir() if not p.name.startswith("synthetic_")} == {"shim"}


def test_the_inventory_names_nodes_in_order_and_carries_the_runs_image_and_fault(tmp_path: Path) -> None:
    cluster = {
        "nodes": {f"node{i}": f"172.29.77.{10 + i}" for i in (10, 2, 1)},
        "gateway": {"gateway": "172.29.77.3"},
        "key": "/k",
        "known_hosts": "/h",
        "image": "r/i@sha256:" + "1" * 64,
        "engine_env": {"MEGAMOE_REHEARSAL_FAULT": "http_5xx"},
        "dataset": "/d",
        "fewshot": "/f",
        "baseline": "/b",
        "report_dir": "/r",
    }
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster))
    script = ROOT / "ansible/inventories/rehearsal/hosts.py"
    done = subprocess.run(
        [sys.executable, script, "--list"],
        env={"MEGAMOE_REHEARSAL_CLUSTER": str(path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    inventory = json.loads(done.stdout)
    assert inventory["megamoe_nodes"]["hosts"] == ["node1", "node2", "node10"]
    assert inventory["all"]["vars"]["megamoe_rehearsal_env"] == cluster["engine_env"]
    assert "StrictHostKeyChecking=yes" in inventory["_meta"]["hostvars"]["node1"]["ansible_ssh_common_args"]


def test_the_inventory_without_a_rehearsal_says_what_to_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "ansible/inventories/rehearsal/hosts.py"],
        env={"MEGAMOE_REHEARSAL_CLUSTER": str(tmp_path / "absent.json")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "make rehearse" in done.stderr


def test_the_inventorys_deployment_is_one_that_the_schema_accepts() -> None:
    from megamoe.deploy.load import parse_deploy

    deploy = yaml.safe_load((ROOT / "ansible/inventories/rehearsal/group_vars/all.yml").read_text())["megamoe_deploy"]
    deploy |= {"image": "r.example/i@sha256:" + "1" * 64, "env": {}}
    assert parse_deploy(yaml.safe_dump(deploy)).reasons == []


def test_the_question_set_has_64_distinct_sums_whose_answers_are_right() -> None:
    lines = (ROOT / "tests/rehearsal/data/easy_sums.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["question"] for row in rows}) == len(rows) == 64
    for row in rows:
        numbers = [int(n) for n in re.findall(r"\d+", row["question"])]
        assert len(numbers) == 2
        assert int(row["answer"].split("#### ")[1]) == numbers[0] * numbers[1]


def test_make_targets_call_the_scripts_that_work_without_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for script in re.findall(r"scripts/\w+\.sh", makefile):
        assert (ROOT / script).is_file(), script
        assert (ROOT / script).stat().st_mode & 0o111, script
    assert {"rehearse", "rehearse-down", "test", "test-all"} <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def test_the_sums_keep_to_factors_that_four_bit_experts_hold() -> None:
    # The rule of policies/rehearsal.toml: a set chosen answer by answer would hide what it leaves out.
    for line in (ROOT / "tests/rehearsal/data/easy_sums.jsonl").read_text().splitlines():
        factors = {int(n) for n in re.findall(r"\d+", json.loads(line)["question"])[:2]}
        assert factors <= {2, 3, 5, 6}, line
