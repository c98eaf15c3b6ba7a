"""One log per bug of the field that a log can decide (ids are numbers of our collection; words: further kinds).

The messages are as in the wild, everything around them is invented. Several have a twin (t) with the opposite verdict.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from megamoe.diagnose.judge import judge
from megamoe.diagnose.scan import scan

READY = "10:02:41 Application startup complete.\n"
OK = '10:03:00 INFO: 10.0.0.1:0 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def hang(*ranks: int) -> str:
    return "".join(f"10:09:0{r} [rank {r}] watchdog: no progress for 300 s, dumping stacks\n" for r in ranks)


def verdict(tmp_path: Path, log: str, facts: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "engine.log"
    path.write_text(log, encoding="utf-8")
    outcome = judge(scan([str(path)]), facts)
    return {
        **outcome.data,
        "exit": int(outcome.exit_code),
        "codes": [f.code for f in outcome.findings],
        "first": outcome.data["first_cause"] or {},
    }


def expand(line: str) -> str:
    word, _, ranks = line.partition(" ")
    if word == "HANG":
        return hang(*map(int, ranks.split(",")))
    return {"READY": READY, "OK": OK}.get(line, line + "\n")


BUGS = tomllib.loads((Path(__file__).parent / "field_bugs.toml").read_text())["bug"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b["id"])
def test_a_log_of_this_kind_gets_its_class(tmp_path: Path, bug: dict[str, Any]) -> None:
    found = verdict(tmp_path, "".join(map(expand, bug["log"].splitlines())), bug.get("facts", {}))
    assert found["class"] == bug["class"]
    assert found["exit"] == (0 if bug["class"] == "NONE" else 1)
    assert "line" not in bug or found["first"]["line"] == bug["line"]
    assert "codes" not in bug or found["codes"] == bug["codes"]
    assert "victims" not in bug or len(found["victims"]) == bug["victims"]  # one of each rank, however often it spoke


BENIGN = [
    "INFO raise_on_error=False",
    "INFO error_count: 0 failures: 0",
    "INFO TimeoutError class registered for retry",
    "INFO log level ERROR",
    'INFO: 10.0.0.1 - "POST /v1/completions HTTP/1.1" 400 Bad Request',
    "WARNING Validation error in completions: max_tokens must be positive",
    "INFO exceptions are handled by FastAPI",
    "DEBUG ignoring exception hook",
    "INFO watchdog thread started, timeout 600s",
    "INFO NCCL_TIMEOUT=1800 heartbeat enabled",
    "INFO RCCL version 2.27 watchdog enabled",
    "INFO no errors found in config",
    "Warning: Error reporting is disabled",
    "INFO Using HSA_STATUS checks",
    "INFO out of memory handling: abort",
    "INFO --stop-on-error",
    "INFO loaded error codes table (64 entries)",
    "INFO crash dumps go to /tmp/core",
    "INFO process 1234 exited with code 0",
    "INFO worker 3 terminated normally",
    "WARNING destroy_process_group() was not called before program exit",
    "UserWarning: The given NumPy array is not writable",
    "FutureWarning: `torch.cuda.amp` is deprecated",
    "INFO Errors will be logged to /var/log/x",
    "INFO test_error_handling ... ok",
    "INFO [aiter] import [module_x] under /opt/aiter/jit/module_x.so",
    "INFO finish build [module_x], cost 30 s",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "INFO connection pool: reset by peer count 0",
    "INFO is_shuffled=True preshuffle_on",
    "INFO Memory access fault handler installed",
    "INFO hang detection: watchdog armed (300 s)",
    "[rank 0] ErrorHandler ready",
    "INFO Dead letter queue empty",
    "INFO killed 0 stale processes",
    "INFO Segmentation fault handler enabled",
    "INFO autotune disabled",
    "INFO tokens exceeded 0 times",
    "INFO missing keys: [], unexpected keys: []",
    'INFO: "GET /v1/models HTTP/1.1" 404 Not Found',
    "INFO no such file or directory: /models/demo/chat_template.jinja, using tokenizer's",
    "INFO fallback chat template not available",
    "INFO low-latency mode disabled",
    "INFO flydsl a8w4 fused moe enabled, no fallback",
    "INFO 'GET /metrics' 200",
    "WARNING: gpu_memory_utilization 0.85",
    "INFO config.json not found in cache, reading from /models/demo",
    "INFO Ignoring optional file generation_config.json not found",
]


@pytest.mark.parametrize("line", BENIGN)
def test_scary_words_in_a_healthy_log_are_no_fault_wherever_they_stand(tmp_path: Path, line: str) -> None:
    assert verdict(tmp_path, f"10:00:00 {line}\n{READY}{OK}", {})["class"] == "NONE"
    assert verdict(tmp_path, f"{READY}{OK}10:09:00 {line}\n", {})["class"] == "NONE"


CUT = "10:00:00 [rank 2] Traceback (most recent call last):\n10:00:00 [rank 2]   File \"x.py\", line 3, in f\n"


def test_a_rank_whose_log_stops_inside_a_stack_died_first(tmp_path: Path) -> None:
    found = verdict(tmp_path, CUT + hang(0, 1), {})
    assert (found["class"], found["first"]["line"], found["first"]["rank"]) == ("RANK_DIED_FIRST", 1, 2)
    assert verdict(tmp_path, CUT + READY + OK, {})["class"] == "NONE"  # the server got over it
    filler = "10:00:01 [rank 1] step\n" * 9000
    assert verdict(tmp_path, CUT + filler + hang(0, 1), {})["class"] == "RANK_DIED_FIRST"


def test_the_same_words_in_other_clothes(tmp_path: Path) -> None:
    """Prefixes, stamps, case and order vary; the class does not."""
    died = "IndexError: list index out of range"
    for log in (
        f"(EngineCore_DP3 pid=33) ERROR 12-02 11:00:00 {died}\n"
        "(EngineCore_DP0 pid=30) ERROR 12-02 11:05:00 watchdog timeout: stack dumped\n",
        f"[rank 5] {died}\n[rank 0] watchdog: no progress for 300 s\n",
        "2026-12-02T11:05:01Z [rank 0] watchdog: no progress for 300 s\n"
        f"2026-12-02T11:00:01Z [rank 5] {died}\n",
        f"\x1b[31m[rank5]:[E]\x1b[0m {died}\n[rank0]:[E] watchdog: no progress for 300 s\n",
        "11:00:01 [rank 2] worker process exited with code -9\n11:05 [rank 0] watchdog: no progress for 9 s\n",
    ):
        assert verdict(tmp_path, log, {})["class"] == "RANK_DIED_FIRST", log
    for empty in ("[0x0, 0x0)", "[(nil), (nil))", "[0, 0)", "[0x0000000000000000, 0x0000000000000000)"):
        found = verdict(tmp_path, f"[rank 1] Pointer 0x7f10 is not in symmetric heap {empty}\n", {})
        assert found["class"] == "HEAP_NOT_INITIALISED", empty


def test_busy_gpus_without_progress_are_a_hang_and_loading_is_not(tmp_path: Path) -> None:
    log = "10:00:00 Loading safetensors checkpoint shards: 1/64\n"
    busy = [{"id": i, "util": 100} for i in range(8)]
    assert verdict(tmp_path, log, {"gpus": busy, "log_idle_s": 900})["class"] == "HANG"
    assert verdict(tmp_path, log, {"gpus": busy})["codes"] == ["GPUS_BUSY_NOT_READY", "READY_NOT_SEEN"]
    idle = [{"id": i, "util": 0} for i in range(8)]
    assert verdict(tmp_path, log, {"gpus": idle, "log_idle_s": 900})["codes"] == ["READY_NOT_SEEN"]


CAPACITY = (
    "Concurrent capacity vs context length (max_model_len=9472, block_size=128, max_slots=256, pool_blocks={n}):\n"
)


def test_the_room_for_kv_is_judged_from_what_the_engine_prints(tmp_path: Path) -> None:
    found = {n: verdict(tmp_path, CAPACITY.format(n=n) + READY + OK, {}) for n in (60, 1558, 85436)}
    assert [found[n]["class"] for n in found] == ["KV_STARVED", "NONE", "NONE"]
    assert found[1558]["codes"] == ["KV_SMALL"] and found[85436]["codes"] == []
    twice = CAPACITY.format(n=33556) + READY + CAPACITY.format(n=32900) + READY
    assert verdict(tmp_path, twice, {})["codes"] == []
    shrunk = CAPACITY.format(n=33556) + READY + CAPACITY.format(n=17000) + READY
    assert verdict(tmp_path, shrunk, {})["codes"] == ["KV_CHANGED"]


def test_what_the_server_got_over_is_a_warning_and_what_killed_it_is_not(tmp_path: Path) -> None:
    line = "ModuleNotFoundError: No module named 'aiter.ops.x'\n"
    assert verdict(tmp_path, line + READY + OK, {})["codes"] == ["VERSION_SKEW"]
    assert verdict(tmp_path, line + READY + OK, {})["exit"] == 0
    assert verdict(tmp_path, line + "proc died unexpectedly\n" + READY, {})["class"] == "VERSION_SKEW"


def test_a_rank_that_a_signal_ended_is_named_from_the_words_of_others(tmp_path: Path) -> None:
    log = "10:00:01 [rank 0] proc died unexpectedly (rank 6)\n" + hang(1, 2)
    outcome = verdict(tmp_path, log, {})
    assert outcome["class"] == "RANK_DIED_FIRST"
    alone = verdict(tmp_path, "10:00:01 [rank 0] proc died unexpectedly (rank 6)\n", {})
    assert alone["class"] == "PROCESS_DIED"
