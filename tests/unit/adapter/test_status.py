"""Per-rank evidence: what is written comes back, nothing is ever half-written, foreign files are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus, StatusWriter, file_of, read_status_dir


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def status(rank: int = 0) -> RankStatus:
    return RankStatus(
        rank=rank,
        ep_size=8,
        geometry={"hidden": 7168},
        mtpr=8192,
        layers_converted=["layers.3"],
        kernel_instances=1,
        heap_asked_bytes=6 * 2**30,
        heap_used_bytes=4_480_715_776,
        selftest_state="passed",
        selftest={"layers.3": 0.05},
        versions={"flydsl": "0.2.4"},
        edits_hash="ab",
    )


def test_what_is_written_comes_back_in_rank_order(tmp_path: Path) -> None:
    for rank in (2, 0, 1):
        StatusWriter(tmp_path / "status", status(rank))
    got = read_status_dir(tmp_path / "status")
    assert [s.rank for s in got] == [0, 1, 2]
    assert got[0].selftest == {"layers.3": 0.05}
    assert got[0].heap_used_bytes == 4_480_715_776
    assert got[0].updated_at >= got[0].started_at


def test_a_start_removes_what_ranks_of_a_larger_group_have_left(tmp_path: Path) -> None:
    for rank in (7, 8, 12):
        (tmp_path / f"rank-{rank}.json").write_text("{}")
    StatusWriter(tmp_path, status(0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank-0.json", "rank-7.json"]


def test_forwards_are_counted_each_and_written_once_per_interval(tmp_path: Path) -> None:
    clock = Clock()
    writer = StatusWriter(tmp_path, status(), interval_s=5.0, clock=clock)
    for _ in range(100):
        writer.forward("layers.3")
        writer.forward("layers.4")
    assert read_status_dir(tmp_path)[0].launches == 0
    clock.now += 5.0
    writer.forward("layers.3")
    (got,) = read_status_dir(tmp_path)
    assert got.launches == 201
    assert got.launches_per_layer == {"layers.3": 101, "layers.4": 100}
    assert got.epoch_share == 201 / 2**31
    assert json.loads(file_of(tmp_path, 0).read_text())["epoch_share"] == 201 / 2**31


def test_kernels_whose_epoch_may_wrap_use_none_of_it_up(tmp_path: Path) -> None:
    edited = status()
    edited.kernel_edits = ["launch_epoch", "tile_wait"]
    edited.launches = 2**31
    StatusWriter(tmp_path, edited)
    (got,) = read_status_dir(tmp_path)
    assert (got.kernel_edits, got.epoch_share) == (["launch_epoch", "tile_wait"], 0.0)


def test_a_write_leaves_one_file_and_a_failed_one_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StatusWriter(tmp_path, status())
    before = file_of(tmp_path, 0).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    writer.forward("layers.3")
    assert writer.write() is False
    assert file_of(tmp_path, 0).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["rank-0.json"]


def test_a_selftest_figure_that_is_not_finite_survives_as_strict_json(tmp_path: Path) -> None:
    bad = status()
    bad.selftest["layers.4"] = math.nan
    StatusWriter(tmp_path, bad)
    json.loads(file_of(tmp_path, 0).read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert math.isnan(read_status_dir(tmp_path)[0].selftest["layers.4"])


def test_a_directory_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem) as caught:
        StatusWriter(tmp_path / "file" / "status", status())
    assert caught.value.code == "status_dir"
    assert "MEGAMOE_STATUS_DIR" in caught.value.reasons[0].what


@pytest.mark.parametrize("missing", ["nothing", "empty"])
def test_no_evidence_is_an_error_of_its_own(tmp_path: Path, missing: str) -> None:
    directory = tmp_path if missing == "empty" else tmp_path / "none"
    with pytest.raises(Problem) as caught:
        read_status_dir(directory)
    assert (caught.value.code, caught.value.exit_code) == ("status_missing", Exit.NO_EVIDENCE)


def damaged(text: str, kind: str) -> str:
    body = json.loads(text)
    if kind == "truncated":
        return text[: len(text) // 2]
    if kind == "empty":
        return ""
    if kind == "list":
        return "[]"
    if kind == "schema":
        return json.dumps(body | {"schema_version": 2})
    if kind == "missing field":
        del body["launches"]
        return json.dumps(body)
    if kind == "wrong type":
        return json.dumps(body | {"launches": "many"})
    if kind == "wrong rank":
        return json.dumps(body | {"rank": 5})
    return json.dumps(body | {"selftest_state": "fine"})


@pytest.mark.parametrize(
    "kind", ["truncated", "empty", "list", "schema", "missing field", "wrong type", "wrong rank", "state"]
)
def test_a_damaged_or_foreign_file_is_named(tmp_path: Path, kind: str) -> None:
    StatusWriter(tmp_path, status())
    path = file_of(tmp_path, 0)
    path.write_text(damaged(path.read_text(), kind))
    with pytest.raises(Problem) as caught:
        read_status_dir(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("status_file", Exit.NO_EVIDENCE)
    assert "rank-0.json" in caught.value.reasons[0].what


def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    StatusWriter(tmp_path, status())
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(Problem, match=r"notes\.txt"):
        read_status_dir(tmp_path)
