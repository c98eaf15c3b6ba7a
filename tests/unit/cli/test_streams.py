"""Standard input and output as a user's shell may leave them: closed, full, of another character set, gone."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megamoe.diagnose.judge import judge
from megamoe.diagnose.scan import scan
from megamoe.diagnose.source import chunks
from megamoe.envelope import Finding, Outcome, as_text
from megamoe_atom.problem import Exit, Problem


def shell(words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`M` in words is the command; bash, so that a pipe's statuses can be asked."""
    text = words.replace("M ", f"{sys.executable} -m megamoe ")
    return subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, timeout=120, env={**os.environ, **env})


@pytest.mark.parametrize("verb", ["plan", "diagnose"])
def test_a_closed_standard_input_is_exit_3(verb: str, tmp_path: Path) -> None:
    done = shell(f"M {verb} --json - <&-", tmp_path)
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["code"]) == (3, "input_missing")


@pytest.mark.parametrize("words", ["diagnose - -", "diagnose - --facts -"])
def test_standard_input_cannot_be_two_inputs(words: str, tmp_path: Path) -> None:
    done = shell(f"echo '{{}}' | M {words}", tmp_path)
    assert done.returncode == Exit.REFUSED
    assert b"two inputs are to be read from it" in done.stdout + done.stderr


def test_a_result_that_cannot_be_written_is_exit_3_and_said(tmp_path: Path) -> None:
    done = shell("M diagnose nope >/dev/full", tmp_path)
    assert done.returncode == 3 and b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_a_reader_that_went_away_does_not_change_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("RuntimeError: boom\n")
    done = shell("M diagnose a.log | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert (done.stdout, done.stderr) == (b"1\n", b"")


def test_a_terminal_of_another_character_set_gets_the_whole_result(tmp_path: Path) -> None:
    done = shell("M diagnose --json ä→.log", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert done.returncode == 3 and done.stdout.isascii() and "→" in json.loads(done.stdout)["summary"]
    done = shell("M diagnose ä→.log", tmp_path, PYTHONIOENCODING="latin-1", PYTHONUTF8="1")
    assert done.returncode == 3 and b"\xe4\\u2192.log: No such file" in done.stdout


@pytest.mark.parametrize("words", ["diagnose --json", "verify-deploy --json", "verify-model --json", "gate --json"])
def test_a_missing_argument_is_named(words: str, tmp_path: Path) -> None:
    done = shell(f"M {words}", tmp_path)
    body = json.loads(done.stdout)
    assert done.returncode == 2 and body["summary"].startswith("Missing ") and body["findings"][0]["what"]


def test_the_schema_comes_alone_or_in_the_envelope(tmp_path: Path) -> None:
    alone = json.loads(shell("M plan --schema", tmp_path).stdout)
    enveloped = json.loads(shell("M plan --schema --json", tmp_path).stdout)
    assert alone["$schema"].startswith("https://json-schema.org/") and enveloped["data"]["schema"] == alone
    assert enveloped["command"] == "plan"


LINES = b"".join(b"10:%02d:%02d [rank %d] step %d\n" % (i // 60 % 60, i % 60, i % 8, i * i % 9973)
                 for i in range(40000))  # fmt: skip


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
@pytest.mark.parametrize("fault", [b"", b"10:00:00 RuntimeError: boom\n"], ids=["healthy", "faulty"])
def test_a_cut_archive_is_read_as_far_as_it_goes_and_said_to_be_cut(pack: Any, fault: bytes, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.write_bytes(pack(fault + LINES))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 9 // 10])
    good, bad = (judge(scan([str(p)]), {}) for p in (whole, cut))
    assert good.data["class"] == bad.data["class"] and 1000 < bad.data["lines"] < good.data["lines"]
    assert (bad.status, good.status) == (("fail", "fail") if fault else ("warn", "pass"))
    assert "LOG_CUT" in {f.code for f in bad.findings} and "LOG_CUT" not in {f.code for f in good.findings}


def test_an_archive_that_is_damaged_inside_is_said_to_be(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(LINES))
    data[len(data) * 3 // 4 : len(data) * 3 // 4 + 64] = bytes(64)
    (tmp_path / "x.gz").write_bytes(data)
    assert "LOG_CUT" in {f.code for f in judge(scan([str(tmp_path / "x.gz")]), {}).findings}


def test_a_file_that_fails_to_be_read_is_exit_3() -> None:
    # Opens like any file; reading its unmapped beginning is an I/O error.
    with pytest.raises(Problem) as caught:
        list(chunks("/proc/self/mem"))
    assert caught.value.exit_code is Exit.UNREACHABLE


def test_no_value_can_command_the_terminal_or_look_like_a_record_of_ours(tmp_path: Path) -> None:
    evil = "a\x1b[31m\x9b1m\u202e\nPASS: all good"
    line = evil.replace("\n", "\r")
    (tmp_path / f"{evil}.log").write_text(f"11:00:00 [rank 5] ValueError: {line}\n")
    for path in (f"{evil}.log", f"no {evil}.log"):
        done = subprocess.run([sys.executable, "-m", "megamoe", "diagnose", path], cwd=tmp_path, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode in (1, 3)
        assert r"a\x1b[31m\x9b1m\u202e" in done.stdout
        assert not {c for c in done.stdout if not c.isprintable()} - {"\n"}
        assert not any(row.startswith("PASS") for row in done.stdout.splitlines())


@pytest.mark.parametrize(("text", "shown"), [
    pytest.param("two\nlines", "two\n        lines", id="a further line is indented"),
    pytest.param("a\tb é → 中", "a\tb é → 中", id="what is only text stays as it is"),
])  # fmt: skip
def test_ordinary_text_of_a_finding_is_not_touched(text: str, shown: str) -> None:
    said = as_text(Outcome("fail", Exit.CHECK_FAILED, "s", [Finding("c", "error", text, "w", "f")], text="k\n  v"))
    assert said == f"FAIL: s\n\nk\n  v\n\nerror c\n  what: {shown}\n  why:  w\n  fix:  f"
