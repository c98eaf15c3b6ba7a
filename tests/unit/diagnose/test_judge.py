"""Classes that need context, facts or several files."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.diagnose.judge import judge
from megamoe.diagnose.scan import scan
from megamoe.envelope import Outcome
from megamoe_atom.problem import Problem


def run(tmp_path: Path, log: str, facts: dict[str, Any] | None = None) -> Outcome:
    path = tmp_path / "a.log"
    path.write_text(log, encoding="utf-8")
    return judge(scan([str(path)]), facts or {})


OOM = "2026-12-01T10:00:0{n}Z [rank 1] torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.50 GiB.\n"
READY = "2026-12-01T10:00:05Z INFO: Application startup complete.\n"


@pytest.mark.parametrize(("log", "facts", "expected"), [
    pytest.param(OOM.format(n=1), {}, "OOM_AT_LOAD", id="out of memory before ready"),
    pytest.param(READY + OOM.format(n=7), {}, "OOM_AFTER_READY", id="out of memory after ready"),
    pytest.param("Out of static heap memory! Requested: 4480000000 bytes\n", {}, "HEAP_TOO_SMALL", id="plausible size"),
    pytest.param("Out of static heap memory! Requested: 81604378624 bytes\n", {}, "GEOMETRY_ERROR", id="absurd size"),
    pytest.param("Out of static heap memory! Requested: 4480000000 bytes\n",
                 {"plan": {"experts": 384, "ranks": 8, "local_experts": 384}}, "GEOMETRY_ERROR", id="plan disagrees"),
    pytest.param("HSA_STATUS_ERROR_OUT_OF_RESOURCES\n", {}, "DEVICE_PERMISSION", id="refused before any load"),
    pytest.param("Loading weights 3/64\nHSA_STATUS_ERROR_OUT_OF_RESOURCES\n", {}, "OOM_AT_LOAD", id="memory in load"),
    pytest.param("Application startup complete.\n[Errno 98] address already in use\n", {}, "PORT_IN_USE", id="port"),
    pytest.param("[Errno 98] address already in use\nretry\nApplication startup complete.\n", {}, "NONE",
                 id="port retried"),
    pytest.param("waiting for baton release at /x/a.lock\n" * 9, {}, "AITER_LOCK", id="lock never released"),
    pytest.param("waiting for baton release at /x/a.lock\nApplication startup complete.\n", {}, "NONE",
                 id="lock released"),
    pytest.param(READY, {"plan": {"served_name": "/m/a"}, "get_v1_models": {"status": 200, "ids": ["/m/b"]}},
                 "READINESS_WRONG_SERVER", id="another server"),
    pytest.param(READY, {"plan": {"served_name": "/m/a"}, "get_v1_models": {"status": 200, "ids": ["/m/a"]}},
                 "NONE", id="the right server"),
    pytest.param(READY, {"completion_probe": {"status": 200, "text": "\0" * 128}}, "READINESS_GARBAGE", id="NUL"),
    pytest.param(READY, {"completion_probe": {"status": 200, "text": " Paris."}}, "NONE", id="text"),
    pytest.param("Dec  1 10:00:00 h1 engine[12]: [rank2] KeyError: 'w'\nDec  1 10:05:00 h1 engine[12]: [rank1] "
                 "Watchdog caught collective operation timeout: WorkNCCL\n", {}, "RANK_DIED_FIRST", id="syslog"),
    pytest.param("x.hip:3:1: error: no type\nModuleNotFoundError: No module named 'aiter.jit.module_a'\n", {},
                 "JIT_COMPILE_FAILED", id="the compiler's error comes first"),
    pytest.param("[rank 0] watchdog: no progress for 300 s\nFile \"c10d.py\", line 3, in broadcast_object_list\n", {},
                 "COLLECTIVE_AUTOTUNE", id="collective autotune"),
    pytest.param("[rank 0] EXTEND instance=8192\n[rank 1] IDLE instance=128\n[rank 0] watchdog: no progress for 9 s\n",
                 {}, "RANK_DIVERGENCE", id="ranks chose differently"),
])
def test_context_decides_the_class(tmp_path: Path, log: str, facts: dict[str, Any], expected: str) -> None:
    assert run(tmp_path, log, facts).data["class"] == expected


def test_time_decides_across_compressed_files_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank0.log.gz").write_bytes(gzip.compress(b"2026-12-01T10:05:00Z watchdog: no progress for 300 s\n"))
    (tmp_path / "rank6.log.xz").write_bytes(lzma.compress(
        b"2026-12-01T10:00:00Z Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n"))
    body = judge(scan([str(tmp_path / "rank0.log.gz"), str(tmp_path / "rank6.log.xz")]), {}).data
    assert (body["class"], body["first_cause"]["rank"], body["first_cause"]["line"]) == ("RANK_DIED_FIRST", 6, 3)


def test_colours_and_control_bytes_do_not_hide_a_cause(tmp_path: Path) -> None:
    log = "\x1b[31m\x1b[1m[rank 3]\x1b[0m MetadataIncompleteBuffer\x00\n"
    assert run(tmp_path, log).data["class"] == "TRUNCATED_SHARD"


def test_the_frames_of_dockers_raw_stream_do_not_hide_a_cause(tmp_path: Path) -> None:
    """The engine's API sends eight bytes ahead of each write: stream, three zeros, length."""
    log = ["2026-12-01T10:00:00Z [rank 6] Traceback (most recent call last):\n",
           "2026-12-01T10:00:00Z [rank 6]   File \"a.py\", line 1, in f\n",
           "2026-12-01T10:00:00Z [rank 6] KeyError: 'x'\n",
           "2026-12-01T10:05:00Z [rank 0] Watchdog caught collective operation timeout: WorkNCCL\n"]
    plain, framed = tmp_path / "plain.log", tmp_path / "framed.log"
    plain.write_text("".join(log))
    framed.write_bytes(b"".join(b"\2\0\0\0" + len(line).to_bytes(4, "big") + line.encode() for line in log))
    one, two = (judge(scan([str(path)]), {}).data for path in (plain, framed))
    assert (one["class"], two["class"]) == ("RANK_DIED_FIRST", "RANK_DIED_FIRST")
    assert two["first_cause"]["rank"] == 6


@pytest.mark.parametrize(("log", "said"), [
    pytest.param("", False, id="empty"), pytest.param("\n \t\r\n" * 9, False, id="blank lines only"),
    pytest.param("\n\nx\n", True, id="a word after blank lines"),
])
def test_a_log_without_a_word_is_no_evidence_of_health(tmp_path: Path, log: str, said: bool) -> None:
    outcome = run(tmp_path, log)
    assert ([f.code for f in outcome.findings] == ["LOG_EMPTY"]) != said
    assert (outcome.status == "invalid") != said


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000), facts=st.dictionaries(st.sampled_from(
    ["env", "plan", "get_v1_models", "completion_probe", "port_8000"]), st.recursive(
        st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.sampled_from(
            ["status", "ids", "text", "served_name", "experts", "ranks", "local_experts", "started"]), c))))
def test_no_log_and_no_facts_are_our_bug(tmp_path: Path, data: bytes, facts: dict[str, Any]) -> None:
    path = tmp_path / "h.log"
    path.write_bytes(data + b"\nOut of static heap memory! Requested: 1e999 bytes\n")
    try:
        json.dumps(judge(scan([str(path)]), facts).data)
    except Problem as problem:  # the bytes began like an archive and were none: said, exit 2
        assert problem.code in ("input_damaged", "input_packed")


def test_bytes_that_are_no_text_are_no_evidence_of_health(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(bytes(range(256)) * 40)
    outcome = judge(scan([str(path)]), {})
    assert (outcome.status, outcome.exit_code, outcome.findings[0].code) == ("invalid", 5, "LOG_NOT_TEXT")
    # A hole of NULs, as a crash leaves it, does not hide what the log says before it or after it.
    path.write_bytes(READY.encode() + bytes(4096) + OOM.format(n=7).encode())
    assert judge(scan([str(path)]), {}).data["class"] == "OOM_AFTER_READY"
    path.write_text("\x1b[32mINFO\x1b[0m größe 12 %\r\n" + READY, encoding="latin-1")
    assert judge(scan([str(path)]), {}).status == "pass"
