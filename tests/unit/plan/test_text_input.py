"""Files that people name by mistake: a clear refusal with its exit code, never a traceback, never a wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe.text_input import load_yaml, parse_json, parse_yaml, read_text
from megamoe_atom.problem import Exit, Problem


def test_a_missing_file_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        read_text(tmp_path / "none.yml")
    assert (caught.value.code, caught.value.exit_code) == ("input_missing", Exit.UNREACHABLE)


def test_a_directory_a_fifo_a_big_file_and_another_encoding_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"a" * 2000)
    (tmp_path / "latin").write_bytes("a: caf\xe9".encode("latin-1"))
    for name, code in (
        (".", "input_not_a_file"),
        ("fifo", "input_not_a_file"),
        ("big", "input_too_big"),
        ("latin", "input_not_utf8"),
        ("a\0b", "input_name"),
    ):
        with pytest.raises(Problem) as caught:
            read_text(f"{tmp_path}/{name}", max_bytes=1000)
        assert (caught.value.code, caught.value.exit_code) == (code, Exit.REFUSED), name


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a: 1")
    (tmp_path / "f").chmod(0)
    with pytest.raises(Problem) as caught:
        read_text(tmp_path / "f")
    assert (caught.value.code, caught.value.exit_code) == ("input_permission", Exit.UNREACHABLE)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: 1\na: 2", "yaml_duplicate_key"),
        ("a: &x [1]\nb: *x", "yaml_alias"),
        ("a: !!python/object:os.x {}", "yaml_tag"),
        ("a: 1\n---\nb: 2", "yaml_documents"),
        ("a: " + "[" * 80, "yaml_depth"),
        ("", "yaml_not_a_mapping"),
        ("- 1", "yaml_not_a_mapping"),
        ("a: [", "yaml_syntax"),
        ("a: {{ x }}", "yaml_key"),
        ("a: \x01", "yaml_syntax"),
    ],
)
def test_yaml_that_would_be_read_as_something_else_is_refused(text: str, code: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_yaml(text, "f")
    assert (caught.value.code, caught.value.exit_code) == (code, Exit.REFUSED)


def test_scalars_stay_what_they_look_like_and_lines_are_known(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('a: no\nb: 010\nc: "1"\nd: 22:22\ne:\n  f: 1\n')
    document = load_yaml(tmp_path / "f")
    assert document.data == {"a": "no", "b": "010", "c": "1", "d": "22:22", "e": {"f": 1}}
    assert document.line_of(("e", "f")) == 6 and document.line_of(("e", "missing")) == 5


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": 1, "a": 2}', "json_duplicate_key"),
        ("[NaN]", "json_number"),
        ("[1e999]", "json_number"),
        ("[" * 100000, "json_depth"),
        ('{"a":', "json_syntax"),
        ('["\\ud800"]', "json_surrogate"),
    ],
)
def test_json_that_readers_disagree_on_is_refused(text: str, code: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_json(text, "f")
    assert caught.value.code == code


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda t: t.encode("utf-8", "replace")))
def test_no_bytes_give_anything_but_a_value_or_a_problem(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (parse_yaml, parse_json):
        try:
            parse(text, "f")
        except Problem as problem:
            assert problem.reasons[0].fix
