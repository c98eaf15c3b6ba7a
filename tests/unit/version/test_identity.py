"""An image says what it is, and a changed file or package is drift with exit 1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from megamoe.resources import resource
from megamoe.version import identity
from megamoe_atom.problem import Exit, Problem


@pytest.fixture
def lock(tmp_path: Path) -> tuple[Path, Path]:
    edits, watched = tmp_path / "edits", tmp_path / "watched"
    for folder in (edits, watched):
        folder.mkdir()
    (edits / "a.yml").write_text("id: a\n")
    (watched / "kernel.py").write_text("x = 1\n")
    target = tmp_path / "stack.lock.json"
    identity.write(identity.record({}, edits, [watched]), target)
    return target, watched / "kernel.py"


def test_an_unchanged_file_system_has_no_drift(lock: tuple[Path, Path]) -> None:
    assert identity.drift(identity.read(lock[0])) == []


def test_a_changed_file_is_drift_and_is_named(lock: tuple[Path, Path]) -> None:
    lock[1].write_text("x = 2\n")
    assert [(f.code, f.file) for f in identity.drift(identity.read(lock[0]))] == [("file_drift", str(lock[1]))]


def test_a_removed_file_is_drift(lock: tuple[Path, Path]) -> None:
    lock[1].unlink()
    assert "missing" in identity.drift(identity.read(lock[0]))[0].what


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a user who may not read the file")
def test_a_file_that_the_serving_user_may_not_read_is_named(lock: tuple[Path, Path]) -> None:
    lock[1].chmod(0o600)
    for folder in lock[1].parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    content = identity.read(lock[0])
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setgid(10001)
        os.setuid(10001)
        found = [(f.code, f.file) for f in identity.drift(content | {"distributions": identity.distributions()})]
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert json.loads(os.read(reader, 65536)) == [["file_unreadable", str(lock[1])]]
    os.close(reader)


def test_another_package_version_or_a_new_package_is_drift(lock: tuple[Path, Path]) -> None:
    content = json.loads(lock[0].read_text())
    content["distributions"]["pydantic"] = "0.0.1"
    del content["distributions"]["pyyaml"]
    lock[0].write_text(json.dumps(content))
    assert {f.code for f in identity.drift(identity.read(lock[0]))} == {"package_drift", "package_added"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1}'])
def test_a_damaged_lock_proves_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(Problem) as caught:
        identity.read(tmp_path / "lock")
    assert caught.value.exit_code is Exit.NO_EVIDENCE


def test_the_edits_hash_moves_with_a_byte_and_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("x")
    first = identity.edits_sha256(tmp_path)
    (tmp_path / "a.yml").rename(tmp_path / "b.yml")
    second = identity.edits_sha256(tmp_path)
    (tmp_path / "b.yml").write_text("y")
    assert len({first, second, identity.edits_sha256(tmp_path)}) == 3


def test_the_label_and_the_patch_command_name_the_edits_by_one_hash() -> None:
    from megamoe.patch.rules import edits_hash

    assert identity.edits_sha256(resource("atom_patch/edits")) == edits_hash()


def test_watching_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="does not exist"):
        identity.record({}, tmp_path, [tmp_path / "absent"])
