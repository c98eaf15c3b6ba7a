"""The engine's command line in an inspection against the planned one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from megamoe.image.arguments import one_spelling
from megamoe.verify_deploy.rows import Row, compared, is_whole, unknown

ENTRYPOINT = "megamoe-entrypoint"  # docker/Dockerfile


def argument_rows(command: list[str], inspect: dict[str, Any], config: dict[str, Any]) -> Iterator[Row]:
    """One row per flag of either side, after one for the verb (`serve`) before them."""
    words = running_words(inspect, config)
    if words is None:
        yield unknown("args", shlex.join(command))
        return
    planned_verb, planned = _parts(command)
    verb, running = _parts(words)
    whole = is_whole(inspect) or "--model" in running or verb == planned_verb
    # Flags alone mean `serve` to the image's entrypoint, and so does nothing at all.
    if verb or whole:
        verb = verb or ["serve"]
        yield compared("args command", shlex.join(planned_verb), shlex.join(verb), verb == planned_verb)
    for flag in [*planned, *(f for f in running if f not in planned)]:
        a, b = planned.get(flag), running.get(flag)
        if b is None and not whole:
            yield unknown(f"args {flag}", _shown(a), "not in these Args, which are shortened: they name no --model")
            continue
        yield compared(f"args {flag}", _shown(a), _shown(b), _equal(a, b))


def running_words(inspect: dict[str, Any], config: dict[str, Any]) -> list[str] | None:
    """What the image's entrypoint is given; None when the inspection does not tell.

    Args also hold the entrypoint's own words after its first (docker: tini -s -- ...) and, with podman's --init, "--".
    Cmd holds neither, but a shortened inspection may carry Args alone.
    """
    given, cmd = _as_words(inspect.get("Args")), _as_words(config.get("Cmd"))
    if given is None or (cmd and given[-len(cmd):] == cmd):
        return cmd
    for place, word in enumerate(given):
        if word.rsplit("/", 1)[-1] == ENTRYPOINT:
            return given[place + 1 :]
    entry = _as_words(config.get("Entrypoint")) or []
    for before in (entry[1:], ["--", *entry]):
        if before and given[: len(before)] == before:
            return given[len(before):]
    return given[1:] if given[:1] == ["--"] else given


def _as_words(value: Any) -> list[str] | None:
    if isinstance(value, str):  # podman 4 prints its Entrypoint so
        try:
            return shlex.split(value)
        except ValueError:  # an unbalanced quote: still words, if not the shell's
            return value.split()
    return [str(word) for word in value] if isinstance(value, list) else None


def _parts(words: list[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """(words before the first flag, flags with their values). --a=b is --a b; of a flag given twice the last counts."""
    verb: list[str] = []
    out: dict[str, tuple[str, ...]] = {}
    current: str | None = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, eq, value = word.partition("=")
            current = one_spelling(name)
            out[current] = (value,) if eq else ()
        elif current is not None:
            out[current] = (*out[current], word)
        else:
            verb.append(word)
    return verb, out


def _equal(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> bool:
    """The same to the engine's parser: 0.80 is 0.8, and JSON may be spaced."""
    return a == b or (a is not None and b is not None and len(a) == len(b)
                      and all(_value(x) == _value(y) for x, y in zip(a, b, strict=True)))  # fmt: skip


def _value(text: str) -> Any:
    if not re.match(r"-?[\d.]|[\[{]", text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _shown(values: tuple[str, ...] | None) -> str:
    return "not given" if values is None else " ".join(values) or "given"
