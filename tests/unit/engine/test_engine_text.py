"""Tokens to text that never has to be taken back."""

from __future__ import annotations

import pytest
from engine_support import facts
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engine.text import GrowingText, Text, tokenizer_from_facts


def grow(text: Text, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    growing = GrowingText(text, stops)
    pieces = []
    for token in ids:
        pieces.append(growing.push(token))
        if growing.stopped:
            break
    return [*pieces, growing.finish()], growing.stopped


def test_digits_are_split_one_by_one_and_merges_apply(text: Text) -> None:
    assert len(text.encode("123")) == 3
    assert len(text.encode("he")) == 1


def test_special_tokens_written_out_are_one_token_and_are_not_printed(text: Text) -> None:
    assert text.encode("<|im_start|>a")[0] == 1
    assert text.decode([1, *text.encode("a"), 2]) == "a"


def test_the_chat_prompt_ends_where_the_assistant_speaks(text: Text) -> None:
    assert text.chat([{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_the_pieces_of_any_text_join_to_that_text(content: str) -> None:
    tokenizer = tokenizer_from_facts(facts())
    text = Text.__new__(Text)
    text._tokenizer = tokenizer
    pieces, _ = grow(text, text.encode(content))
    assert "".join(pieces) == text.decode(text.encode(content))


def test_a_character_of_several_tokens_comes_out_whole(text: Text) -> None:
    pieces, _ = grow(text, text.encode("a🌍b"))
    assert [p for p in pieces if p] == ["a", "🌍", "b"]


@pytest.mark.parametrize(
    ("content", "stops", "shown", "stopped"),
    [
        pytest.param("one\n\ntwo", ("\n\n",), "one", True, id="stop over two tokens"),
        pytest.param("abcab", ("abx",), "abcab", False, id="only the beginning of a stop: given in the end"),
        pytest.param("xSTOPy", ("TOP", "STOP"), "x", True, id="the earlier of two"),
        pytest.param("plain", (), "plain", False, id="none"),
    ],
)
def test_text_ends_before_a_stop_string(
    text: Text, content: str, stops: tuple[str, ...], shown: str, stopped: bool
) -> None:
    pieces, did_stop = grow(text, text.encode(content), stops)
    assert ("".join(pieces), did_stop) == (shown, stopped)


def test_text_that_may_begin_a_stop_string_is_held_back(text: Text) -> None:
    growing = GrowingText(text, ("ab",))
    assert growing.push(text.encode("a")[0]) == ""
    assert growing.push(text.encode("c")[0]) == "ac"
