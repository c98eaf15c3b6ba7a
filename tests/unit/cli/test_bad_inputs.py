"""Any input of the five verbs: a clear refusal in the envelope, exit 2 or 3, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.cli import VERBS, existing_verbs, main

BASE = (Path(__file__).parents[2] / "cases" / "base.yml").read_text()
STATUSES = {"pass", "warn", "fail", "refused", "invalid", "inconclusive", "error", "not_run"}
KEYS = ["schema_version", "command", "status", "exit_code", "summary", "findings", "data"]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The whole command line in this process; the parsed envelope, checked against its contract."""
    monkeypatch.setattr(sys, "argv", ["megamoe", *words, "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    body = json.loads(out)
    assert list(body) == KEYS and body["schema_version"] == 1
    assert body["command"] == words[0] and body["exit_code"] == stopped.value.code
    assert body["status"] in STATUSES
    for found in body["findings"]:
        assert {"code", "severity", "what", "why", "fix"} <= found.keys() <= {
            "code", "severity", "what", "why", "fix", "host", "file", "line", "quote"}  # fmt: skip
        assert found["severity"] in ("info", "warn", "error")
        assert all(found[key] for key in ("code", "what", "why", "fix"))
    assert body["exit_code"] in (0, 1, 2, 3, 4, 5), body
    return dict(body)


def a_directory(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def not_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x01" * 40)


def missing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.touch()


def bomb(path: Path) -> None:
    path.write_text("a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b]\n")


def twice(path: Path) -> None:
    path.write_text('{"engine": "atom", "engine": "reference"}')


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def cut(path: Path) -> None:
    path.write_text('{"host": {"dev": {"/dev/kfd": {"gi')


def deep(path: Path) -> None:
    path.write_text("[" * 5000)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


SHAPES: list[Callable[[Path], None]] = [a_directory, a_fifo, not_text, missing, empty, bomb, twice, huge, cut, deep,
                                        link_to_itself]  # fmt: skip
# verb, its words with BAD for the input under test and DEPLOY for a good deploy file
PLACES = [
    ("plan", "BAD"), ("plan", "DEPLOY", "--facts", "BAD"), ("preflight", "BAD", "--facts", "FACTS"),
    ("preflight", "DEPLOY", "--facts", "BAD"), ("verify-deploy", "BAD", "--inspect", "FACTS"),
    ("verify-deploy", "DEPLOY", "--inspect", "BAD"), ("verify-deploy", "DEPLOY", "--facts", "BAD"),
    ("diagnose", "LOG", "--facts", "BAD"), ("verify-model", "MODEL", "--manifest", "BAD"),
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "deploy.yml").write_text(BASE)
    (tmp_path / "facts.json").write_text("{}")
    (tmp_path / "log").write_text("10:00:00 ok\n")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    return tmp_path


def filled(words: tuple[str, ...], folder: Path) -> list[str]:
    names = {"BAD": "bad", "DEPLOY": "deploy.yml", "FACTS": "facts.json", "LOG": "log", "MODEL": "model"}
    return [str(folder / names[w]) if w in names else w for w in words]


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(p), p.lstat().st_mtime_ns) for p in folder.rglob("*"))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("words", PLACES, ids="-".join)
def test_a_bad_file_is_refused_clearly_and_nothing_is_written(
    words: tuple[str, ...], shape: Callable[[Path], None], place: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shape(place / "bad")
    before = listing(place)
    body = call(monkeypatch, capsys, *filled(words, place))
    assert listing(place) == before
    if shape is empty and words[0] == "verify-model":
        return  # an empty manifest lists nothing, which is not a fault of form
    assert body["exit_code"] in (2, 3), body
    assert body["findings"]


@pytest.mark.parametrize("shape", [a_directory, a_fifo, missing, link_to_itself], ids=lambda s: s.__name__)
@pytest.mark.parametrize("verb", ["diagnose", "verify-model"])
def test_a_log_or_a_model_that_cannot_be_read_is_refused(
    verb: str, shape: Callable[[Path], None], place: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shape(place / "bad")
    assert call(monkeypatch, capsys, verb, str(place / "bad"))["exit_code"] in (2, 3)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Another user for the time being, so that permissions count even when the tests run as root."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


@pytest.mark.parametrize("words", [*PLACES, ("plan", "BAD"), ("diagnose", "BAD")], ids="-".join)
def test_a_file_that_may_not_be_read_is_exit_3(
    words: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "bad").write_text(BASE)
    (place / "bad").chmod(0)
    for path in (place, *place.parents):  # pytest's own folders are for its user alone
        if Path(tempfile.gettempdir()) not in path.parents or path.stat().st_uid != os.getuid():
            break
        path.chmod(path.stat().st_mode | 0o055)
    call(monkeypatch, capsys, *filled(words, place))  # imports, which nobody may read where Python is root's alone
    with as_nobody():
        body = call(monkeypatch, capsys, *filled(words, place))
    assert body["exit_code"] == 3 and body["findings"][0]["code"] in ("input_permission", "input_unreadable"), body


@pytest.mark.slow
def test_ten_gigabytes_of_a_sparse_log_are_read_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("wb") as file:
        file.seek(10 << 30)
        file.write(b"\n10:00:00 RuntimeError: HIP error: an illegal memory access was encountered\n")
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "diagnose", str(path), "--json"], capture_output=True, text=True, timeout=500,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )  # fmt: skip
    assert done.returncode == 1 and json.loads(done.stdout)["data"]["class"] == "ILLEGAL_ACCESS", done.stderr


TEXT = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.integers(0, len(BASE)).map(lambda n: BASE[:n].encode()),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
                 lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(
                     ["host", "gpus", "env", "plan", "Config", "HostConfig", "State", "Env", "Args", "engine", "args",
                      "dmesg", "containers", "kfd_processes", "engines", "image"]), c, max_size=4),
                 max_leaves=8).map(lambda v: json.dumps(v).encode()),
)  # fmt: skip


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(data=TEXT)
@pytest.mark.parametrize("words", [*PLACES, ("diagnose", "BAD")], ids="-".join)
def test_no_content_is_our_bug(words: tuple[str, ...], data: bytes, place: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (place / "bad").write_bytes(data)
    call(monkeypatch, capsys, *filled(words, place))


def test_every_verb_speaks_the_envelope_when_its_words_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(existing_verbs()) <= set(VERBS)
    for verb in existing_verbs():
        body = call(monkeypatch, capsys, verb, "--no-such-option")
        assert (body["status"], body["exit_code"], body["findings"][0]["code"]) == ("refused", 2, "usage"), verb
