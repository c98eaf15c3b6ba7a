"""Every slip in a rehearsal's options is refused with what is allowed, before anything is touched."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.rehearse.settings import FAULTS, MAX_NODES, parse
from megamoe_atom.problem import Exit, Problem
from reference_engine import faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodes", "accepted"),
    [
        pytest.param(-1, False, id="negative"),
        pytest.param(0, False, id="none"),
        pytest.param(1, True, id="fewest"),
        pytest.param(MAX_NODES, True, id="most"),
        pytest.param(MAX_NODES + 1, False, id="one too many"),
    ],
)
def test_the_number_of_nodes_has_a_range(nodes: int, accepted: bool) -> None:
    if accepted:
        assert len(parse(nodes, None, "on", None, environ={}).node_names()) == nodes
    else:
        with pytest.raises(Problem) as refused:
            parse(nodes, None, "on", None, environ={})
        assert refused.value.exit_code == Exit.REFUSED
        assert f"1 to {MAX_NODES}" in refused.value.reasons[0].fix


def test_an_unknown_fault_is_refused_with_the_list_of_faults() -> None:
    with pytest.raises(Problem) as refused:
        parse(2, "gate_up_mispared", "on", None, environ={})
    assert refused.value.code == "rehearse_fault"
    for fault in FAULTS:
        assert fault in refused.value.reasons[0].fix


def test_all_wrong_options_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(Problem) as refused:
        parse(0, "nope", "maybe", str(tmp_path / "absent.jsonl"), environ={"MEGAMOE_REHEARSAL_PORT": "99999"})
    assert [r.code for r in refused.value.reasons] == [
        "rehearse_nodes",
        "rehearse_fault",
        "rehearse_selftest",
        "rehearse_dataset",
        "rehearse_port",
    ]


@pytest.mark.parametrize(
    "subnet", [pytest.param("172.29.77.0/28", id="too small"), pytest.param("nonsense", id="no network")]
)
def test_a_network_that_cannot_hold_the_nodes_is_refused(subnet: str) -> None:
    with pytest.raises(Problem) as refused:
        parse(2, None, "on", None, environ={"MEGAMOE_REHEARSAL_SUBNET": subnet})
    assert refused.value.code == "rehearse_subnet"


def test_every_fault_offered_is_one_that_the_engine_makes() -> None:
    assert set(FAULTS) - {"none"} == set(faults.FAULTS)


def test_a_fault_reaches_the_engine_by_its_environment_and_a_plain_run_sets_nothing() -> None:
    assert parse(2, None, "on", None, environ={}).engine_env() == {}
    assert parse(2, "http_5xx", "off", None, environ={}).engine_env() == {
        faults.VARIABLE: "http_5xx",
        "MEGAMOE_SELFTEST": "off",
    }


def test_addresses_are_distinct_and_inside_the_network() -> None:
    settings = parse(MAX_NODES, None, "on", None, environ={})
    addresses = [settings.registry_address, settings.gateway_address]
    addresses += [settings.node_address(n) for n in settings.node_names()]
    assert len(set(addresses)) == MAX_NODES + 2
    assert all(a.startswith("172.29.77.") for a in addresses)


def test_the_cli_speaks_the_envelope_when_it_refuses() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "rehearse", "--nodes", "0", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    body = json.loads(done.stdout)
    assert (done.returncode, body["status"], body["findings"][0]["code"]) == (2, "refused", "rehearse_nodes")


def copy_of_the_scripts(target: Path) -> None:
    """What scripts/rehearse.sh reads, with no virtual environment beside it."""
    for part in ("scripts", "atom_patch/megamoe_atom", "pyproject.toml"):
        source, place = ROOT / part, target / part
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)


def entry_script(folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "scripts/rehearse.sh", *options],
        cwd=folder,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_entry_script_refuses_before_it_installs_anything(tmp_path: Path) -> None:
    """A copy with no virtual environment and no engine at hand: the refusal must not need either."""
    copy_of_the_scripts(tmp_path)
    done = entry_script(tmp_path, "--fault", "nope")
    assert done.returncode == 2
    assert "gate_up_mispaired" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_entry_script_refuses_an_unfit_machine_before_it_makes_the_environments(tmp_path: Path) -> None:
    """They take minutes; a taken port is known in the first second. The tools stand in for an engine that answers."""
    copy_of_the_scripts(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("docker", "debootstrap", "ssh", "ssh-keygen", "ip"):
        answers = f'case "$*" in *DockerRootDir*) echo {tmp_path};; inspect*|*" inspect "*) exit 1;; esac'
        (tools / name).write_text(f"#!/bin/sh\n{answers if name == 'docker' else 'exit 1'}\n")
        (tools / name).chmod(0o755)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = entry_script(
            tmp_path,
            PATH=f"{tools}:{os.environ['PATH']}",
            MEGAMOE_REHEARSAL_PORT=str(port),
            MEGAMOE_DEBIAN_MIRROR="http://127.0.0.1:9/debian",
        )
    assert done.returncode == 4, done.stderr
    assert f"port {port} on 127.0.0.1 is in use by something else" in done.stderr
    assert not (tmp_path / ".venv").exists()
