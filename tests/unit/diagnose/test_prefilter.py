"""The fast filter finds exactly what a slow search finds, and lines come out whole whatever wraps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe.diagnose.judge import judge
from megamoe.diagnose.prefilter import WIDTH, Prefilter, window
from megamoe.diagnose.scan import KEEP_PER_CLASS, THIN_AFTER, scan, words

NEEDLES = sorted(n.decode() for n in words().rules)
TEXT = st.lists(st.one_of(st.sampled_from(NEEDLES), st.sampled_from([n.upper() for n in NEEDLES]),
                          st.binary(max_size=9).map(lambda b: b.decode("latin1")), st.just("\n")), max_size=30)


@given(TEXT)
@settings(max_examples=150, deadline=None)
def test_it_finds_what_a_search_for_each_needle_finds(parts: list[str]) -> None:
    data = "".join(parts).encode("latin1")
    slow = []
    for needle in NEEDLES:
        raw, place = needle.encode(), data.lower().find(needle.encode())
        while place >= 0:
            slow.append((place, raw))
            place = data.lower().find(raw, place + 1)
    found = [hit for hit in words().filter.positions(data) if hit[1] in words().rules]
    assert found == sorted(slow)


def test_a_short_needle_is_refused_and_a_window_lies_inside_its_needle() -> None:
    for needle in NEEDLES:
        assert 0 <= window(needle) <= len(needle) - WIDTH
    try:
        Prefilter(["short"])
    except ValueError as error:
        assert "short" in str(error)
    else:
        raise AssertionError("a needle of five bytes was taken")


def first_cause(tmp_path: Path, data: bytes, name: str = "engine.log") -> tuple[str, int | None, int | None]:
    (tmp_path / name).write_bytes(data)
    body = judge(scan([str(tmp_path / name)]), {}).data
    cause = body["first_cause"] or {}
    return body["class"], cause.get("line"), cause.get("rank")


STACK = ("Traceback (most recent call last):\n  File \"/app/x.py\", line 3, in step\n    a = b // 0\n"
         "ZeroDivisionError: integer division or modulo by zero")


def test_docker_json_records_are_read_as_the_lines_they_carry(tmp_path: Path) -> None:
    rows = [{"log": f"[rank 5] {line}\n", "stream": "stderr", "time": "2026-11-03T11:00:01.5Z"}
            for line in STACK.splitlines()]
    rows.append({"log": "[rank 0] watchdog: no progress for 300 s\n", "stream": "stderr",
                 "time": "2026-11-03T11:05:01Z"})
    data = "\n".join(json.dumps(r) for r in rows).encode()
    assert first_cause(tmp_path, data) == ("RANK_DIED_FIRST", 4, 5)


def test_a_stack_inside_one_structured_record_is_found(tmp_path: Path) -> None:
    rows = [{"level": "info", "msg": "step 1", "rank": 3}, {"level": "error", "msg": "died", "rank": 3, "exc": STACK}]
    data = "\n".join(json.dumps(r) for r in rows).encode()
    assert first_cause(tmp_path, data) == ("UNCAUGHT_EXCEPTION", 2, 3)


def test_container_runtime_and_compose_prefixes_are_no_part_of_the_line(tmp_path: Path) -> None:
    cri = "".join(f"2026-11-03T11:00:01.123456789Z stderr F {line}\n" for line in STACK.splitlines())
    assert first_cause(tmp_path, cri.encode()) == ("UNCAUGHT_EXCEPTION", 4, None)
    compose = "".join(f"moe-1  | {line}\n" for line in STACK.splitlines())
    assert first_cause(tmp_path, compose.encode()) == ("UNCAUGHT_EXCEPTION", 4, None)


def test_a_progress_bar_does_not_hide_what_follows_it_on_the_same_line(tmp_path: Path) -> None:
    bar = b"".join(b"\rLoading safetensors checkpoint shards: %3d%% |####|" % (i % 100) for i in range(20000))
    error = b"\rtorch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.50 GiB.\n"
    assert first_cause(tmp_path, b"start\n" + bar + error) == ("OOM_AT_LOAD", 2, None)


def test_a_word_far_inside_a_very_long_line_still_counts(tmp_path: Path) -> None:
    data = b"[rank 2] " + b"x" * 300_000 + b" HIP error: an illegal memory access was encountered\n"
    assert first_cause(tmp_path, data) == ("ILLEGAL_ACCESS", 1, 2)


def test_thinning_keeps_first_and_last_and_never_hides_another_cause(tmp_path: Path) -> None:
    noise = b"10:00:01 [rank 1] waiting for baton release at /x/tuned.csv.lock\n" * (3 * THIN_AFTER)
    cause = b"10:09:00 [rank 4] RuntimeError: HIP error: an illegal memory access was encountered\n"
    assert first_cause(tmp_path, noise + cause + noise) == ("ILLEGAL_ACCESS", 3 * THIN_AFTER + 1, 4)
    state = scan([str(tmp_path / "engine.log")])
    assert state.last["AITER_LOCK"].line == 6 * THIN_AFTER + 1


@given(st.lists(st.sampled_from([STACK, "10:00:01 [rank 1] ok", "[rank 2] HIP error: out of memory",
                                 "POST /v1/completions 200", "watchdog: no progress for 3 s"]), max_size=12),
       st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_where_chunks_are_cut_does_not_matter(tmp_path_factory: object, lines: list[str], size: int) -> None:
    import megamoe.diagnose.source as source

    folder: Path = tmp_path_factory.mktemp("cut")  # type: ignore[attr-defined]
    (folder / "a.log").write_text("\n".join(lines))
    whole = judge(scan([str(folder / "a.log")]), {})
    old, source.CHUNK = source.CHUNK, size
    try:
        cut = judge(scan([str(folder / "a.log")]), {})
    finally:
        source.CHUNK = old
    assert (cut.data, cut.summary) == (whole.data, whole.summary)


SURVIVED = "10:00:01 [rank 0] ValueError: odd thing\n"
READY = '10:00:05 INFO: 127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize("often", [1, KEEP_PER_CLASS, 3 * THIN_AFTER])
def test_the_exception_that_ends_a_server_is_seen_however_many_it_survived(often: int, tmp_path: Path) -> None:
    survived = SURVIVED * often + READY
    assert first_cause(tmp_path, (survived * 2).encode()) == ("NONE", None, None)
    ended = survived * 2 + SURVIVED.replace("10:00:01", "10:00:09")
    assert first_cause(tmp_path, ended.encode()) == ("UNCAUGHT_EXCEPTION", 2 * often + 3, 0)


def test_what_another_ranks_file_survived_is_known_though_the_server_answered_often(tmp_path: Path) -> None:
    answers = [READY.replace("10:00:05", f"10:{i // 60:02d}:{i % 60:02d}") for i in range(600)]
    (tmp_path / "rank0.log").write_text("".join(answers))
    (tmp_path / "rank1.log").write_text(SURVIVED.replace("10:00:01 [rank 0]", "10:09:00"))
    paths = [str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log")]
    assert judge(scan(paths), {}).data["class"] == "NONE"
    (tmp_path / "rank1.log").write_text(SURVIVED.replace("10:00:01 [rank 0]", "10:10:00"))
    assert judge(scan(paths), {}).data["class"] != "NONE"


REPEATED = [
    "{t} [rank {r}] RuntimeError: HIP error: out of memory. Tried to allocate {n} MiB",
    "{t} [rank {r}] ValueError: odd {n}",
    "{t} [rank {r}] watchdog: no progress for {n} s", "{t} [rank {r}] worker exit code: {n}",
    "{t} amdgpu: {n} uncorrectable hardware errors detected", "{t} OSError: [Errno {n}] busy",
    "{t} [rank {r}] Pointer 0x{n} is not in symmetric heap [0x{n}, 0x{n})", "ValueError: without a stamp {n}",
    "{t} POST /v1/completions {s}", "{t} [rank {r}] torch.OutOfMemoryError: HIP out of memory {n}", "{t} INFO step {n}",
    "{t} [rank {r}] Traceback (most recent call last):", "  File \"x.py\", line {n}, in f",
    "{t} INFO Loading model weights",
    '{{"time": "{t}", "rank": {r}, "msg": "KeyError: {n}"}}', "{t} GET /{n} HTTP error: {n} errors",
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(REPEATED), st.integers(0, 9), st.sampled_from([0, 7, 10, 98, 505, 12345]),
                          st.sampled_from([200, 500])), min_size=20, max_size=120), st.sampled_from([200, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_lines_that_are_passed_over_change_no_verdict(
        tmp_path_factory: object, picked: list[tuple[str, int, int, int]], size: int) -> None:
    """Of a line that was seen often enough only the shape is looked at: the judge says the same as without that."""
    import megamoe.diagnose.scan as scanning
    import megamoe.diagnose.source as source

    folder: Path = tmp_path_factory.mktemp("shape")  # type: ignore[attr-defined]
    log = "\n".join(text.format(t=f"{(10 + i // 30) % 24:02}:{i % 60:02}:07", r=rank, n=n, s=status)
                    for i, (text, rank, n, status) in enumerate(picked * 4))
    (folder / "a.log").write_text(log)
    old = scanning.KEEP_PER_CLASS, scanning.SHAPES, source.CHUNK
    scanning.KEEP_PER_CLASS, source.CHUNK = 2, size
    try:
        fast = judge(scan([str(folder / "a.log")]), {})
        scanning.SHAPES = 0
        slow = judge(scan([str(folder / "a.log")]), {})
    finally:
        scanning.KEEP_PER_CLASS, scanning.SHAPES, source.CHUNK = old
    assert (fast.data, fast.summary, fast.findings) == (slow.data, slow.summary, slow.findings)


def test_a_repeated_cause_is_passed_over_and_still_counted(tmp_path: Path) -> None:
    line = "10:00:01 [rank 1] RuntimeError: HIP error: out of memory. Tried to allocate 17 MiB\n"
    (tmp_path / "a.log").write_text(line * 500 + line.replace("rank 1", "rank 6"))
    state = scan([str(tmp_path / "a.log")])
    assert state.counts["OOM"] == 501
    assert {e.rank for e in state.events if e.rule and e.rule.id == "OOM"} == {1, 6}
