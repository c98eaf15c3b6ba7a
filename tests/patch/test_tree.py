"""All or nothing, idempotent, refused with names: on a small pinned tree made for each test."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from megamoe.patch import command, tree
from megamoe.patch.contract import Broken
from megamoe.patch.rules import PinnedFile, Upstream, load_rules, transform
from megamoe_atom.kernel import blob_id
from megamoe_atom.problem import Problem
from test_rules import SOURCES
from trees import contents

ALL = frozenset({"atom"})


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of two files and an upstream that pins exactly them; the contract (of the real ATOM) is not read."""
    files = []
    for name, text in SOURCES.items():
        flat = text.replace("(\n            online, self.moe_config\n        )", "(online, self.moe_config)").encode()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(flat)
        edited = transform(name, flat, load_rules(), undo=False)[0]
        files.append(PinnedFile(name, {frozenset(): blob_id(flat), ALL: blob_id(edited)}))
    upstream = Upstream("atom", "ATOM", "example/ATOM", "c" * 40, tuple(files), ("atom",), ALL)
    monkeypatch.setattr(command, "load_upstream", lambda _name: upstream)
    monkeypatch.setattr(command, "check_contract", lambda *_: ([], 0))
    return tmp_path


def test_apply_twice_then_revert_gives_the_bytes_back(pinned: Path) -> None:
    before = contents(pinned)
    assert command.move(command.job(pinned), undo=False).data["changed"] == sorted(SOURCES)
    edited = contents(pinned)
    assert edited != before
    assert command.move(command.job(pinned), undo=False).data["changed"] == []
    assert contents(pinned) == edited
    assert command.check(command.job(pinned), allow_drift=False).status == "pass"
    command.move(command.job(pinned), undo=True)
    assert contents(pinned) == before


def test_a_local_edit_is_refused_naming_the_file_and_both_ids(pinned: Path) -> None:
    name = "atom/model_ops/moe.py"
    (pinned / name).write_text(SOURCES[name] + "# local\n", encoding="utf-8")
    before = contents(pinned)
    with pytest.raises(Problem) as caught:
        command.move(command.job(pinned), undo=False)
    assert caught.value.code == "pre_image"
    assert name in str(caught.value)
    assert blob_id((pinned / name).read_bytes()) in str(caught.value)
    assert command.load_upstream("atom").named(name).before in str(caught.value)
    assert contents(pinned) == before


@pytest.mark.parametrize("undo", [False, True], ids=["apply finishes it", "revert undoes it"])
def test_a_tree_edited_by_half_is_recovered(pinned: Path, undo: bool) -> None:
    before = contents(pinned)
    command.move(command.job(pinned), undo=False)
    after = contents(pinned)
    name = "atom/model_ops/moe.py"
    (pinned / name).write_bytes(before[name])
    command.move(command.job(pinned), undo=undo)
    assert contents(pinned) == (before if undo else after)


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_a_failure_at_any_step_leaves_every_byte_as_it_was(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    before = contents(pinned)
    calls = {"n": 0}
    write, rename = tree._write_sibling, tree._rename

    def count(real: object) -> object:
        def step(*args: object) -> None:
            calls["n"] += 1
            if calls["n"] == fail_at:
                raise OSError(28, "No space left on device", str(args[0]))
            real(*args)  # type: ignore[operator]

        return step

    monkeypatch.setattr(tree, "_write_sibling", count(write))
    monkeypatch.setattr(tree, "_rename", count(rename))
    with pytest.raises(Problem, match="No space left") as caught:
        command.move(command.job(pinned), undo=False)
    assert caught.value.code == "atom_read_only"
    assert contents(pinned) == before


@pytest.mark.parametrize("undo", [False, True], ids=["apply", "revert, with nothing else to do"])
def test_a_left_over_sibling_of_a_killed_run_is_removed(pinned: Path, undo: bool) -> None:
    leftover = pinned / ("atom/model_ops/moe.py" + tree.TEMP_SUFFIX)
    leftover.write_bytes(b"half")
    command.move(command.job(pinned), undo=undo)
    assert not leftover.exists()


@pytest.mark.parametrize("at", [1, 2, 3, 4], ids=["writing", "writing the last", "renaming", "renaming the last"])
def test_a_run_killed_at_any_step_is_finished_by_apply_and_undone_by_revert(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A child process dies without a chance to clean up: after each of its steps in turn."""
    before = contents(pinned)
    calls = {"n": 0}

    def dies_after(real: object) -> object:
        def step(*args: object) -> None:
            real(*args)  # type: ignore[operator]
            calls["n"] += 1
            if calls["n"] == at:
                os._exit(9)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(tree, "_write_sibling", dies_after(tree._write_sibling))
        patched.setattr(tree, "_rename", dies_after(tree._rename))
        child = os.fork()
        if child == 0:
            command.move(command.job(pinned), undo=False)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert contents(pinned) != before
    command.move(command.job(pinned), undo=True)
    assert contents(pinned) == before
    command.move(command.job(pinned), undo=False)
    assert command.check(command.job(pinned), allow_drift=False).status == "pass"


def test_a_tree_that_may_not_be_written_is_refused_whole(pinned: Path) -> None:
    """As an ordinary user, since root may write everywhere: a child gives its rights up first."""
    before = contents(pinned)
    folders = [pinned, *(p for p in pinned.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = "written"
        try:
            os.chdir(pinned)  # the way to it may be closed to others
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            command.move(command.job(Path()), undo=False)
        except Problem as problem:
            code = problem.code
        except BaseException as error:
            code = repr(error)
        os.write(writer, code.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    for folder in folders:
        folder.chmod(0o755)
    assert told == "atom_read_only"
    assert contents(pinned) == before


def test_a_result_that_is_not_the_pinned_one_is_not_written(pinned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(pinned)
    upstream = command.load_upstream("atom")
    files = tuple(PinnedFile(f.path, {frozenset(): f.before, ALL: "0" * 40}) for f in upstream.files)
    monkeypatch.setattr(command, "load_upstream", lambda _name: replace(upstream, files=files))
    with pytest.raises(Problem) as caught:
        command.move(command.job(pinned), undo=False)
    assert caught.value.code == "post_image"
    assert contents(pinned) == before


def test_a_tree_that_breaks_the_contract_is_not_edited(pinned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(pinned)
    broken = Broken("atom/config.py", "class Config has no hf_config", "the launch is judged by it")
    monkeypatch.setattr(command, "check_contract", lambda *_: ([broken], 1))
    outcome = command.move(command.job(pinned), undo=False)
    assert (outcome.status, [f.code for f in outcome.findings]) == ("fail", ["contract"])
    assert contents(pinned) == before


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        command.move(command.job(tmp_path / "nowhere"), undo=False)
    assert caught.value.code == "atom_dir"


def test_a_tree_of_another_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(Problem) as caught:
        command.check(command.job(tmp_path), allow_drift=True)
    assert caught.value.code == "not_atom"


def test_a_missing_file_is_named(pinned: Path) -> None:
    (pinned / "atom/model_engine/model_runner.py").unlink()
    with pytest.raises(Problem, match="model_runner") as caught:
        command.move(command.job(pinned), undo=False)
    assert caught.value.code == "atom_file_missing"


def test_check_of_an_unedited_tree_says_not_applied(pinned: Path) -> None:
    outcome = command.check(command.job(pinned), allow_drift=False)
    assert outcome.status == "fail"
    assert {f.code for f in outcome.findings} == {"not_applied"}


def test_drift_names_the_edit_whose_site_is_gone(pinned: Path) -> None:
    name = "atom/model_engine/model_runner.py"
    (pinned / name).write_text(SOURCES[name].replace("[0] * seq_len, block_size=self", "ids, block_size=self"))
    found = [f for f in command.check(command.job(pinned), allow_drift=True).findings if f.code == "edit_site"]
    assert [("warmup-ids" in f.what, "0 times" in f.what) for f in found] == [(True, True)]


def test_diff_is_the_same_before_and_after_apply(pinned: Path) -> None:
    before = command.diff(command.job(pinned), allow_drift=False).text
    command.move(command.job(pinned), undo=False)
    assert command.diff(command.job(pinned), allow_drift=False).text == before
    assert "+from megamoe_atom.factory import mxfp4_moe_method" in before


def test_file_modes_survive(pinned: Path) -> None:
    path = pinned / "atom/model_ops/moe.py"
    path.chmod(0o640)
    command.move(command.job(pinned), undo=False)
    assert path.stat().st_mode & 0o7777 == 0o640
