"""Steps side by side: all results, the first failure, and no program left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from megamoe.rehearse.beside import program, side_by_side
from megamoe.rehearse.images import run_logged
from megamoe_atom.problem import Problem


def test_results_come_in_the_order_of_the_steps() -> None:
    assert side_by_side(lambda: time.sleep(0.05) or "slow", lambda: "fast") == ["slow", "fast"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _sleeper(folder: Path) -> str:
    """A build script whose child outlives it unless the whole group is stopped, and whose trap cleans up."""
    script = "trap 'touch cleaned' EXIT; sleep 60 & echo $! >pid.part; mv pid.part pid; wait"
    return run_logged(["bash", "-c", script], folder, folder / "log", "sleeper", timeout_s=60)


def _child(folder: Path) -> int:
    end = time.monotonic() + 20
    while not (folder / "pid").is_file():
        assert time.monotonic() < end
        time.sleep(0.02)
    return int((folder / "pid").read_text())


def test_a_failure_stops_the_other_steps_programs_and_is_the_one_that_is_told(tmp_path: Path) -> None:
    def fails() -> None:
        _child(tmp_path)  # not before the other one is under way
        script = "echo 'error: no mirror' >&2; exit 3"
        run_logged(["bash", "-c", script], tmp_path, tmp_path / "own", "base", timeout_s=9)

    with pytest.raises(Problem) as told:
        side_by_side(lambda: _sleeper(tmp_path), fails)
    assert (told.value.reasons[0].what, told.value.exit_code) == ("base: no mirror", 3)
    assert not _alive(_child(tmp_path))
    assert (tmp_path / "cleaned").is_file()


def test_term_stops_every_step_as_ctrl_c_does(tmp_path: Path) -> None:
    body = """
import signal, sys
from pathlib import Path
from megamoe.rehearse.beside import side_by_side
from megamoe.rehearse.images import run_logged
from megamoe.rehearse.run import _interrupt

signal.signal(signal.SIGTERM, _interrupt)
out = Path(sys.argv[1])

def step(name):
    script = f"sleep 60 & echo $! >{name}.part; mv {name}.part {name}; wait"
    run_logged(["bash", "-c", script], out, out / f"{name}.log", name, timeout_s=60)

try:
    side_by_side(lambda: step("a"), lambda: step("b"))
except KeyboardInterrupt:
    sys.exit(7)
"""
    with subprocess.Popen([sys.executable, "-c", body, str(tmp_path)]) as process:
        end = time.monotonic() + 30
        while not all((tmp_path / name).is_file() for name in "ab"):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 7
    assert not any(_alive(int((tmp_path / name).read_text())) for name in "ab")


def test_a_child_that_outlives_its_script_is_ended_too(tmp_path: Path) -> None:
    """The script goes at TERM, its child only ignores it: nothing may build on after a stop."""
    script = "(trap '' TERM; echo $BASHPID >pid.part; mv pid.part pid; while :; do sleep 0.1; done) & wait"
    with pytest.raises(ValueError), program(["bash", "-c", script], cwd=tmp_path):
        child = _child(tmp_path)
        raise ValueError
    assert not _alive(child)


def test_a_program_left_early_is_ended() -> None:
    with pytest.raises(ValueError), program(["sleep", "60"]) as process:
        raise ValueError
    assert process.poll() is not None
