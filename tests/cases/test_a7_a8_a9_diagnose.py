"""Cases A7, A8 and A9 with their twins, as a person would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

A7 = """09:14:02 [rank 2] engine: weights ready, building fused experts
09:14:03 [rank 2] shmem ERROR Pointer 0x7f10a0000000 is not in symmetric heap [0x0, 0x0)
09:14:03 [rank 2] Memory access fault by GPU node-4 on address (nil). Reason: Unknown.
09:14:04 [rank 0] proc died unexpectedly (rank 2)
"""
WATCHDOGS = "".join(f"11:05:0{i // 4 + 1} [rank {i}] watchdog: no progress for 300 s, dumping stacks\n"
                    for i in (0, 1, 2, 3, 4, 6, 7)) + "11:05:04 scheduler_0 crashed, exit -3\n"
A8 = """11:00:01 [rank 5] Traceback (most recent call last):
11:00:01 [rank 5] ZeroDivisionError: integer division or modulo by zero
""" + WATCHDOGS
GOOD = """10:00:00 note: iterating this dataset twice can yield errors in old versions
10:00:05 registered ErrorHandler for route /v1/completions
10:01:10 No available shared memory broadcast block found in 60 seconds.
10:02:10 No available shared memory broadcast block found in 60 seconds.
10:02:30 graph capture 100% (24/24)
10:02:41 Application startup complete.
10:03:00 POST /v1/completions 200
10:03:02 POST /v1/completions 200
"""
RISK = "10:02:20 [fused_moe] tuned config found for (8192, 7168) but is_shuffled=False, using preshuffle_off"


def diagnose(tmp_path: Path, log: str, facts: object = None, *, as_json: bool = True) -> tuple[int, Any, str]:
    path = tmp_path / "engine.log"
    path.write_text(log, encoding="utf-8")
    command = [sys.executable, "-m", "megamoe", "diagnose", str(path)]
    if facts is not None:
        (tmp_path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        command += ["--facts", str(tmp_path / "facts.json")]
    done = subprocess.run([*command, *(["--json"] if as_json else [])], capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout) if as_json else None, done.stdout


def test_a7_an_empty_heap_range_points_at_the_mode(tmp_path: Path) -> None:
    facts = {"env": {"MORI_SHMEM_MODE": "ISOLATION", "MORI_SHMEM_HEAP_SIZE": "17179869184"}}
    code, body, text = diagnose(tmp_path, A7, facts)
    assert (code, body["data"]["class"], body["data"]["first_cause"]["line"]) == (1, "HEAP_NOT_INITIALISED", 2)
    assert "MORI_SHMEM_MODE" in text
    assert "larger" not in text
    assert "MORI_SHMEM_HEAP_SIZE" not in text


def test_a7_twin_a_real_range_is_another_class(tmp_path: Path) -> None:
    code, body, _ = diagnose(tmp_path, A7.replace("[0x0, 0x0)", "[0x7f0000000000, 0x7f0400000000)"))
    assert (code, body["data"]["class"]) == (1, "POINTER_OUTSIDE_HEAP")


def test_a8_the_rank_that_died_first_is_named_and_the_others_are_victims(tmp_path: Path) -> None:
    code, body, text = diagnose(tmp_path, A8)
    assert (code, body["data"]["class"], body["data"]["first_cause"]["rank"]) == (1, "RANK_DIED_FIRST", 5)
    assert "ZeroDivisionError" in body["findings"][0]["quote"]
    assert "victims" in text
    assert len([f for f in body["findings"] if f["severity"] == "error"]) == 1
    assert not any(word in text for word in ("network", "RCCL", "NCCL"))


def test_a8_twin_watchdogs_alone_are_a_hang(tmp_path: Path) -> None:
    last = "11:05:05 [rank 5] watchdog: no progress for 300 s, dumping stacks\n"
    code, body, _ = diagnose(tmp_path, WATCHDOGS + last)
    assert (code, body["data"]["class"]) == (1, "HANG")


def test_a9_scary_words_are_no_fault(tmp_path: Path) -> None:
    code, body, _ = diagnose(tmp_path, GOOD)
    assert (code, body["status"], body["data"]["class"]) == (0, "pass", "NONE")


def test_a9_twin_a_wrong_kernel_layout_is_not_trusted_and_only_that_line_is_quoted(tmp_path: Path) -> None:
    lines = GOOD.splitlines()
    code, body, text = diagnose(tmp_path, "\n".join([*lines[:4], RISK, *lines[4:]]) + "\n")
    assert (code, body["data"]["class"]) == (1, "SERVING_UNTRUSTED")
    assert body["findings"][0]["quote"] == RISK
    assert not any(line in text for line in lines)
    assert "gate" in text


@pytest.mark.parametrize("data", [b"", b"\x00\xff\x1b[31m" * 5000, b"\x1f\x8b\x08broken", b"\xfd7zXZ\x00x",
                                  b"no newline"])
def test_bad_logs_get_an_answer_and_never_a_bug_report(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    command = [sys.executable, "-m", "megamoe", "diagnose", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode in (0, 1, 2, 5)
    assert b"Traceback" not in done.stderr
    json.loads(done.stdout)
