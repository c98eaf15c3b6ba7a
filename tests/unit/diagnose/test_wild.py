"""Logs as production leaves them: who carried them, in which order, packed how, and what a client wrote in them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megamoe.diagnose.judge import judge
from megamoe.diagnose.scan import scan
from megamoe.envelope import Outcome
from megamoe_atom.problem import Problem

LOGS = tomllib.loads((Path(__file__).parent / "wild.toml").read_text(encoding="utf-8"))["log"]
STACK = ("11:00:01 [rank 5] Traceback (most recent call last):\r\n"
         "11:00:01 [rank 5] ZeroDivisionError: integer division or modulo by zero\r\n"
         "11:05:01 [rank 0] watchdog: no progress for 300 s\r\n")  # fmt: skip


def run(tmp_path: Path, files: dict[str, str | bytes]) -> Outcome:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return judge(scan([str(tmp_path / name) for name in files]), {})


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_a_log_of_the_wild_gets_its_class_and_its_first_line(tmp_path: Path, log: dict[str, Any]) -> None:
    found = run(tmp_path, log["files"])
    first = found.data["first_cause"] or {}
    assert found.data["class"] in log["class"]
    assert log.get("quote", "") in first.get("quote", "")
    assert "rank" not in log or first["rank"] == (None if log["rank"] < 0 else log["rank"])
    assert set(log.get("others", [])) <= {f.code for f in found.findings[1:]}
    assert sum(f.severity == "error" for f in found.findings) == (found.data["class"] != "NONE")
    if "twin" in log:
        (tmp_path / "twin").mkdir()
        healthy = run(tmp_path / "twin", log["twin"])
        assert (healthy.data["class"], healthy.exit_code) == ("NONE", 0)


@pytest.mark.parametrize(("name", "content"), [
    ("a.log", b"\xff\xfe" + STACK.encode("utf-16-le")), ("a.log", b"\xfe\xff" + STACK.encode("utf-16-be")),
    ("a.log", STACK.encode("utf-16-le")), ("a.log", STACK.encode("utf-8-sig")),
    ("a.bz2", bz2.compress(STACK.encode())), ("a.gz", gzip.compress(STACK[:60].encode()) + gzip.compress(
        STACK[60:].encode())), ("a.gz", gzip.compress(STACK.encode()) + bytes(512)),
    ("a.gz", gzip.compress(STACK.encode("utf-16"))), ("a.xz", lzma.compress(STACK.encode()) + lzma.compress(b"x\n")),
    ("hole.log", bytes(3 << 20) + STACK.encode()),
], ids=["utf-16 le", "utf-16 be", "utf-16 without a mark", "utf-8 mark", "bzip2", "two gzip members", "padded gzip",
        "utf-16 in gzip", "two xz streams", "a hole of NULs first"])  # fmt: skip
def test_whatever_packed_or_wrote_a_log_it_is_read(tmp_path: Path, name: str, content: bytes) -> None:
    found = run(tmp_path, {name: content}).data
    assert (found["class"], found["first_cause"]["rank"]) == ("RANK_DIED_FIRST", 5)
    assert "ZeroDivisionError" in found["first_cause"]["quote"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_a_packed_log_may_come_through_a_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(b"10:00:00 step\n" * 200_000 + STACK.encode())
    done = subprocess.run([sys.executable, "-m", "megamoe", "diagnose", "-", "--json"], input=packed,
                          capture_output=True, timeout=300)
    found = json.loads(done.stdout)["data"]
    assert (done.returncode, found["class"], found["first_cause"]["line"]) == (1, "RANK_DIED_FIRST", 200_002)


@pytest.mark.parametrize(("magic", "said"), [(b"\x28\xb5\x2f\xfd", "zstd -dc"), (b"PK\x03\x04", "unzip -p")])
def test_an_archive_that_python_cannot_unpack_is_refused_with_the_command_that_can(
        tmp_path: Path, magic: bytes, said: str) -> None:
    with pytest.raises(Problem, match=said) as caught:
        run(tmp_path, {"a.log": magic + b"x" * 99})
    assert caught.value.code == "input_packed" and caught.value.exit_code == 2


def test_a_line_of_ten_megabytes_is_one_line_with_its_rank(tmp_path: Path) -> None:
    middle = b"HIP error: an illegal memory access was encountered "
    words = b"[rank 2] " + b"x " * 2_500_000 + middle + b"y " * 2_500_000
    found = run(tmp_path, {"a.log": b"start\n" + words + b"\n[rank 0] watchdog: no progress for 300 s\n"}).data
    assert (found["class"], found["lines"]) == ("ILLEGAL_ACCESS", 3)
    assert (found["first_cause"]["line"], found["first_cause"]["rank"]) == (2, 2)
    assert "illegal memory access" in found["first_cause"]["quote"]


@pytest.mark.parametrize("place", [0, 1, 7, 20, 40])
def test_words_on_the_border_of_two_pieces_of_a_long_line_are_whole(tmp_path: Path, place: int) -> None:
    cause = b"MetadataIncompleteBuffer"
    line = b"[rank 3] " + b"x" * (2 * (1 << 20) - 9 - place) + cause + b"y" * (1 << 21) + b"\n"
    found = run(tmp_path, {"a.log": line}).data
    assert (found["class"], found["first_cause"]["line"], found["first_cause"]["rank"]) == ("TRUNCATED_SHARD", 1, 3)


def test_journald_writes_a_coloured_line_as_numbers(tmp_path: Path) -> None:
    def entry(text: str, second: int, *, numbers: bool) -> str:
        message: Any = list(text.encode()) if numbers else text
        return json.dumps({"__REALTIME_TIMESTAMP": f"17645832{second:02d}000000", "PRIORITY": "3",
                           "_CMDLINE": "python -m x MetadataIncompleteBuffer", "MESSAGE": message}) + "\n"

    log = entry("\x1b[31m[rank 2] torch.OutOfMemoryError: HIP out of memory.\x1b[0m", 0, numbers=True) + entry(
        "[rank 0] watchdog: no progress for 300 s", 9, numbers=False)
    found = run(tmp_path, {"j.log": log}).data
    assert (found["class"], found["first_cause"]["rank"]) == ("OOM_AT_LOAD", 2)


def test_answers_in_a_docker_record_count_though_their_quotes_are_escaped(tmp_path: Path) -> None:
    """What the server got over is told by its later answers; json-file writes their quotes with a backslash."""
    rows = ["10:00:01 [rank 0] ValueError: odd thing",
            '10:00:05 INFO: 1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 200 OK']
    once = "".join(json.dumps({"log": row + "\n", "stream": "stderr"}) + "\n" for row in rows)
    twice = "".join(json.dumps({"log": json.dumps({"message": row}) + "\n"}) + "\n" for row in rows)
    assert run(tmp_path, {"a.log": once}).data["class"] == "NONE"
    assert run(tmp_path, {"a.log": twice}).data["class"] == "NONE"
    assert run(tmp_path, {"a.log": once.splitlines()[0] + "\n"}).data["class"] == "UNCAUGHT_EXCEPTION"


@pytest.mark.parametrize("wrap", [
    "INFO [logger.py:42] Received request cmpl-1: prompt: {r}, params: SamplingParams(n=1)",
    "[10:00:00] Receive: obj=GenerateReqInput(text={r}, input_ids=None)",
    "INFO request messages=[{{'role': 'user', 'content': {r}}}]",
    'INFO: 10.0.0.9:1 - "GET /{u} HTTP/1.1" 404 Not Found',
    '10.0.0.9 - - [01/Dec/2026:10:00:00 +0000] "GET / HTTP/1.1" 404 12 "-" "{u}"',
    '{{"level": "info", "msg": "request", "prompt": {j}}}',
    '{{"level": "info", "msg": "request", "request": {j}, "user_agent": {j}, "path": {j}}}',
    'level=info msg="request" prompt={j}',
], ids=["vllm", "sglang", "chat", "path", "user agent", "json prompt", "json request", "logfmt"])
@pytest.mark.parametrize("cause", [
    "Traceback (most recent call last):\n  File 'a'\nKeyError: 'x'", "HIP error: out of memory",
    "[Errno 98] address already in use", "hipErrorNoBinaryForGpu", "watchdog: no progress for 300 s",
    "is_shuffled=False", "terminate called after throwing an instance of 'x'", "CRITICAL wedged",
])
def test_what_a_client_writes_is_no_word_of_the_server(tmp_path: Path, wrap: str, cause: str) -> None:
    line = wrap.format(r=repr(cause), j=json.dumps(cause), u=cause.replace(" ", "%20").replace("\n", "%0A"))
    ready = "10:00:00 INFO:     Application startup complete.\n"
    assert run(tmp_path, {"a.log": ready + line + "\n"}).data["class"] == "NONE"
    # The same words as the server's own are a fault.
    own = "10:00:01 " + cause.replace("\n", "\n10:00:01 ") + "\n"
    assert run(tmp_path, {"a.log": ready + own}).data["class"] != "NONE"


def test_a_stop_that_was_asked_for_excuses_what_follows_until_the_next_start(tmp_path: Path) -> None:
    ready = "10:00:00 INFO: Application startup complete.\n"
    end = "10:09:01 [rank 3] RuntimeError: cannot schedule new futures after shutdown\n"
    hard = "10:09:01 [rank 3] IndexError: pop from empty list\n"
    asked = "10:09:00 Received signal 15, shutting down\n"
    polite = "10:09:00 INFO:     Shutting down\n"
    again = "10:10:00 Loading model weights\n" + hard.replace("10:09", "10:11")
    for log, wanted in ((asked + end, "NONE"), (asked + hard, "NONE"), (polite + end, "NONE"),
                        (polite + hard, "UNCAUGHT_EXCEPTION"),
                        (hard.replace("10:09", "10:08") + asked, "UNCAUGHT_EXCEPTION"),
                        (asked + again, "UNCAUGHT_EXCEPTION"),
                        (asked + "10:09:09 watchdog: no progress for 9 s\n", "HANG")):
        assert run(tmp_path, {"a.log": ready + log}).data["class"] == wanted, log


def test_dmesgs_seconds_since_boot_are_not_compared_with_dates_and_hardware_comes_first(tmp_path: Path) -> None:
    engine = "2026-12-01T10:05:03Z [rank 2] RuntimeError: HIP error: an illegal memory access was encountered\n"
    boot = "[13850.912648] amdgpu 0000:c2:00.0: amdgpu: ring comp_1.1.0 timeout, signaled seq=1, emitted seq=3\n"
    for order in (("engine.log", "dmesg.log"), ("dmesg.log", "engine.log")):
        content = {"engine.log": engine, "dmesg.log": boot}
        found = run(tmp_path, {name: content[name] for name in order})
        assert found.data["class"] == "GPU_HARDWARE" and "ILLEGAL_ACCESS" in {f.code for f in found.findings[1:]}
