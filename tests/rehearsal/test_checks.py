"""Each thing that must hold on the machine has one clear error of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from megamoe.rehearse import checks
from megamoe.rehearse.checks import Facts, judge
from megamoe.rehearse.lock import held
from megamoe.rehearse.settings import Settings
from megamoe_atom.problem import Exit, Problem

SETTINGS = Settings(root=Path("/nowhere"))
GOOD = Facts(disk_free_gib={"/": 100.0})


def test_a_good_machine_may_start() -> None:
    assert judge(GOOD, SETTINGS) == []


@pytest.mark.parametrize(
    ("facts", "code", "says"),
    [
        pytest.param(
            replace(GOOD, engine_error="permission denied"), "rehearse_engine", "permission denied", id="engine"
        ),
        pytest.param(replace(GOOD, missing_tools=("ssh",)), "rehearse_tools", "openssh-client", id="tool"),
        pytest.param(replace(GOOD, disk_free_gib={"/x": 11.9}), "rehearse_disk", "11.9 GiB", id="disk just too small"),
        pytest.param(replace(GOOD, ports_taken=(15000,)), "rehearse_port_taken", "REGISTRY_PORT", id="registry port"),
        pytest.param(replace(GOOD, ports_taken=(18080,)), "rehearse_port_taken", "REHEARSAL_PORT", id="gateway port"),
        pytest.param(replace(GOOD, foreign=("container mmreh-x",)), "rehearse_stale", "rehearse-down", id="stale"),
        pytest.param(replace(GOOD, subnet_taken_by="the route"), "rehearse_subnet_taken", "SUBNET", id="subnet"),
        pytest.param(replace(GOOD, network_error="timed out"), "rehearse_network", "timed out", id="network"),
        pytest.param(replace(GOOD, root=False), "rehearse_root", "sudo", id="not root"),
    ],
)
def test_each_missing_precondition_is_one_reason_with_what_to_do(facts: Facts, code: str, says: str) -> None:
    reasons = judge(facts, SETTINGS)
    assert [r.code for r in reasons] == [code]
    assert says in f"{reasons[0].what} {reasons[0].fix}"


def test_the_disk_limit_itself_is_enough() -> None:
    assert judge(replace(GOOD, disk_free_gib={"/": SETTINGS.need_disk_gib}), SETTINGS) == []


@pytest.mark.parametrize(
    ("facts", "exit_code"),
    [
        pytest.param(replace(GOOD, network_error="x"), Exit.UNREACHABLE, id="only the network is missing"),
        pytest.param(replace(GOOD, network_error="x", root=False), Exit.PRECONDITION, id="something else too"),
    ],
)
def test_the_exit_code_tells_network_from_machine(
    facts: Facts, exit_code: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "collect", lambda settings, images_ready: facts)
    with pytest.raises(Problem) as stopped:
        checks.require(SETTINGS, images_ready=False)
    assert stopped.value.exit_code == exit_code


def test_a_port_that_something_listens_on_is_seen_as_taken() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not checks._port_is_free(port)
    assert checks._port_is_free(port)


def test_two_rehearsals_at_once_are_refused_and_the_lock_does_not_outlive_its_process(tmp_path: Path) -> None:
    import os

    path = tmp_path / "state" / "lock"
    with held(path):
        with pytest.raises(Problem) as refused, held(path):
            pass
        assert refused.value.code == "rehearse_running"
        assert str(os.getpid()) in refused.value.reasons[0].what
    path.write_text("999999\n")  # as a killed run leaves it
    with held(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_term_ends_a_rehearsal_whose_shell_ignores_ctrl_c(tmp_path: Path) -> None:
    # A background job of a script ignores INT; TERM was passed on as INT and so did nothing.
    code = (
        "import signal, sys, time\nfrom megamoe.rehearse.run import _interrupt\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, _interrupt)\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.wait(30) == 130
