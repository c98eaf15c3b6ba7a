"""Text to tokens and back: the byte-level BPE of the checkpoint, its chat template, text that grows token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from megamoe_atom.problem import Exit, Problem
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from reference_engine.gguf_source import TokenizerFacts

_CONTROL = 3  # GGUF's token type of special tokens


def tokenizer_from_facts(facts: TokenizerFacts) -> Tokenizer:
    """The tokenizer of the GGUF file.

    "smollm" splits every digit from its neighbours and is GPT-2's byte-level BPE otherwise.
    Source: ggml-org/llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM.

    Raises:
        Problem: the file names another pre-tokenizer (code "tokenizer_kind", exit 4).
    """
    if facts.pre != "smollm":
        raise Problem(
            "tokenizer_kind",
            exit_code=Exit.PRECONDITION,
            what=f"the pre-tokenizer is {facts.pre!r}, not 'smollm'",
            why="words would be split differently from how the model was trained",
            fix="use SmolLM2-135M-Instruct",
        )
    vocab = {token: index for index, token in enumerate(facts.tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in facts.merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(facts.tokens, facts.token_types, strict=True)
            if kind == _CONTROL
        ]
    )
    return tokenizer


class Text:
    """Tokenizer and chat template of a model directory."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        self._template = environment.from_string(config["chat_template"])

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognised, none is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def chat(self, messages: list[dict[str, Any]]) -> str:
        """The prompt of a conversation, ending where the assistant is to speak.

        Raises:
            ValueError: the template refuses these messages.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=True)
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template cannot render these messages: {error}") from error


def _raise(message: str) -> None:
    raise TemplateError(message)


class GrowingText:
    """Turns tokens that arrive one by one into text that never has to be taken back.

    A byte-level token may end in the middle of a character, so text is held back while it ends in the
    replacement character; text that may be the beginning of a stop string is held back too.
    """

    _WINDOW = 6  # tokens decoded again each time; a UTF-8 character has at most 4 bytes, so at most 4 tokens

    def __init__(self, text: Text, stops: tuple[str, ...]) -> None:
        self._text, self._stops = text, stops
        self._ids: list[int] = []
        self._settled = 0  # tokens whose text is in _out for good
        self._out = ""
        self._given = 0  # characters handed out
        self.stopped = False

    def push(self, token: int) -> str:
        """Takes one token; returns the text that is now certain. Sets `stopped` when a stop string is complete."""
        self._ids.append(token)
        self._settle(at_end=False)
        return self._hand_out(len(self._out) - (0 if self.stopped else self._held_back()))

    def finish(self) -> str:
        """The rest, when no more tokens come: text held back for a stop string, or a broken last character."""
        if not self.stopped:
            self._settle(at_end=True)
        return self._hand_out(len(self._out))

    def _settle(self, *, at_end: bool) -> None:
        """Adds the text of tokens that are not in it yet, unless it may still change, and looks for stop strings."""
        start = max(0, self._settled - self._WINDOW)
        before = self._text.decode(self._ids[start : self._settled])
        now = self._text.decode(self._ids[start:])
        if now.endswith("\ufffd") and not at_end:
            return
        searched = max(0, len(self._out) - max(map(len, self._stops), default=0))
        self._out += now[len(before) :]
        self._settled = len(self._ids)
        hits = [at for at in (self._out.find(stop, searched) for stop in self._stops) if at >= 0]
        if hits:
            self._out, self.stopped = self._out[: min(hits)], True

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max((n for stop in self._stops for n in range(1, len(stop)) if self._out.endswith(stop[:n])), default=0)

    def _hand_out(self, until: int) -> str:
        piece = self._out[self._given : until]
        self._given = max(self._given, until)
        return piece
