"""The form of bundle.json: every key and what it may hold. What is not known is refused: nobody would run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MOST = (1 << 48) - 1  # bytes and offsets: what an address of gfx950 can hold


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be, in words, and the test of it."""

    words: str
    holds: Callable[[Any], bool]
    part: Kind | None = None
    """Of a list: what each of its entries must be."""


def whole(low: int, high: int = _MOST) -> Kind:
    return Kind(f"a whole number from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def listed(of: Kind, length: int | None = None, *, least: int = 0) -> Kind:
    how_many = f"{length} of them" if length is not None else f"at least {least}"

    def holds(v: Any) -> bool:
        long_enough = isinstance(v, list) and (len(v) == length if length is not None else len(v) >= least)
        return long_enough and all(of.holds(x) for x in v)

    return Kind(f"a list ({how_many}) of {of.words}", holds, of)


def matching(pattern: str, words: str) -> Kind:
    return Kind(words, lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None)


TEXT = Kind("a text", lambda v: isinstance(v, str) and v != "")
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
OBJECT = Kind("an object", lambda v: isinstance(v, dict))
DATA = matching(r"data/[\w+-][\w.+-]*\.bin", "data/NAME.bin")
CODE = matching(r"code/[0-9a-f]{64}\.hsaco", "code/SHA256.hsaco")
# A result is written to OUT/NAME.bin: no name may lead out of OUT.
RESULT = matching(r"[\w+-][\w.+-]*", "letters, digits, '.', '_', '+' and '-'")
HEX = matching(r"(?:[0-9a-fA-F]{2})*", "hexadecimal bytes")
POINTER = Kind(
    "[offset, buffer, addend]",
    lambda v: (
        isinstance(v, list) and len(v) == 3 and TEXT.holds(v[1]) and all(whole(0).holds(x) for x in (v[0], v[2]))
    ),
)
_INITS: dict[str, Kind] = {"file": DATA, "fill": whole(0, 255), "undefined": Kind("true", lambda v: v is True)}
INIT = Kind(
    'one of {"file": ...}, {"fill": 0 to 255} and {"undefined": true}',
    lambda v: isinstance(v, dict) and len(v) == 1 and all(k in _INITS and _INITS[k].holds(x) for k, x in v.items()),
)
TOP = {"format": TEXT, "version": whole(1), "case": OBJECT, "ranks": whole(1, 64), "buffers": listed(OBJECT),
       "steps": listed(OBJECT)}  # fmt: skip
STEPS = ("host", "copy", "free", "launches", "expect")


def _entries(ranks: int) -> dict[str, tuple[dict[str, Kind], dict[str, Kind]]]:
    """Keys that must be there and keys that may be, per kind of entry."""
    rank = whole(0, ranks - 1)
    place = {"buffer": TEXT, "offset": whole(0), "file": DATA}
    size = whole(1, (1 << 31) - 1)
    buffer = {"name": TEXT, "rank": rank, "bytes": whole(0), "init": INIT}
    more = {"dtype": TEXT, "shape": listed(whole(0)), "align": whole(1), "heap": FLAG, "readonly": FLAG,
            "read_past": whole(0, 1 << 24),
            "pointers": listed(POINTER)}  # fmt: skip
    launch = {"rank": rank, "name": TEXT, "kernel": TEXT, "code": CODE, "grid": listed(size, 3),
              "block": listed(size, 3), "dynamic_lds": whole(0, 163840), "kernarg": HEX,
              "pointers": listed(POINTER)}  # fmt: skip
    return {
        "buffers": (buffer, more),
        "host": (place, {}),
        "copy": ({"buffer": TEXT, "offset": whole(0), "from": TEXT, "at": whole(0), "bytes": whole(1)}, {}),
        "free": ({"buffer": TEXT}, {}),
        "launches": (launch, {}),
        "expect": (place | {"name": RESULT}, {"dtype": TEXT}),
    }


def _of_entry(where: str, entry: Mapping[str, Any], must: dict[str, Kind], may: dict[str, Kind]) -> Iterator[str]:
    for key in must:
        if key not in entry:
            yield f"{where} lacks {key!r}"
    for key, value in entry.items():
        kind = must.get(key) or may.get(key)
        if kind is None:
            yield f"{where} has {key!r}, which this lane does not know"
        elif not kind.holds(value):
            inside = enumerate(value) if kind.part and isinstance(value, list) else ()
            wrong = next(((n, x) for n, x in inside if kind.part and not kind.part.holds(x)), None)
            if wrong is not None and kind.part:
                yield f"{where} has {wrong[1]!r:.80} as entry {wrong[0]} of {key}, which is not {kind.part.words}"
            else:
                yield f"{where} has {key} {value!r:.80}, which is not {kind.words}"


def faults(body: Mapping[str, Any]) -> Iterator[str]:
    """What in bundle.json is not of the form, in words; later faults may follow from earlier ones."""
    yield from _of_entry("it", body, TOP, {})
    if not all(key in body and kind.holds(body[key]) for key, kind in TOP.items()):
        return
    yield from _of_entry("its case", {"cu": body["case"].get("cu", 1)}, {"cu": whole(1, 1 << 16)}, {})
    entries = _entries(body["ranks"])
    for n, buffer in enumerate(body["buffers"]):
        yield from _of_entry(f"buffer {n}", buffer, *entries["buffers"])
    for n, step in enumerate(body["steps"]):
        kinds = [k for k in step if k in STEPS]
        if len(step) != 1 or not kinds or not listed(OBJECT, least=1).holds(step[kinds[0]]):
            yield f"step {n} is not one of {', '.join(STEPS)} with a list of objects"
            continue
        for m, entry in enumerate(step[kinds[0]]):
            yield from _of_entry(f"step {n}, {kinds[0]} {m}", entry, *entries[kinds[0]])
