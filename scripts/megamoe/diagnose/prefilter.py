"""Which lines of a chunk can matter, at memory speed.

The needles (literals of six bytes and more) are looked for all at once. Of each needle the six neighbouring bytes that
ordinary text holds least are its window; six table translations of the lower-case chunk give one bit mask per position
(the idea of Hyperscan's Teddy), numpy ANDs them shifted, and the positions that are left are looked up in a small hash
set of windows and compared whole, all of one window together. Only then Python sees a position. Measured by
scripts/bench_diagnose.py; `re` alternations, one `bytes.find` per needle, this without the hash set, and comparing each
position in Python were slower.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

WIDTH = 6  # bytes of each needle that the masks see
_BUCKETS = 8  # bits of a mask byte
_HASH_BITS = 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2**64 over the golden ratio
# Bytes in falling frequency of ordinary log text; what is not listed is rarer still.
_COMMON = "e tairnsol0dc1m2pugh3.fk4b5-:6w78y9v_\"/x=,z[]()jq"
# Words that healthy engines print all day: a window inside them would stop at every such line.
_ORDINARY = (
    b'info: 127.0.0.1 - "post /v1/chat/completions http/1.1" 200 ok get /health /v1/models /metrics warning '
    b"debug rank worker scheduler engine prefill decode batch tokens experts dispatch combine blocks cache weights "
    b"model loading memory requests running waiting throughput allocated process timeout enabled stream device error"
)
_WEIGHT = {char: 0.4 / (rank + 4) for rank, char in enumerate(_COMMON)}


def window(needle: str) -> int:
    """Offset of the six neighbouring bytes of a needle that ordinary text is least likely to hold."""
    raw = needle.encode()

    def cost(start: int) -> tuple[bool, float]:
        part = raw[start:start + WIDTH]
        return part in _ORDINARY, math.prod(map(_weight, part))

    return min(range(len(needle) - WIDTH + 1), key=cost)


def _weight(byte: int) -> float:
    return _WEIGHT.get(chr(byte), 0.002)


def _buckets(windows: list[bytes]) -> list[list[bytes]]:
    """Windows in at most eight groups, so that few other texts look like a mixture of one group's windows.

    Greedy, the likeliest window first: each goes where it adds least to the group's false hits.
    """
    groups: list[list[set[int]]] = [[set() for _ in range(WIDTH)] for _ in range(_BUCKETS)]
    out: list[list[bytes]] = [[] for _ in range(_BUCKETS)]

    def false_hits(group: list[set[int]]) -> float:
        return math.prod(sum(_weight(byte) for byte in chars) for chars in group)

    for content in sorted(windows, key=lambda w: (-math.prod(map(_weight, w)), w)):
        grown = [[chars | {byte} for chars, byte in zip(group, content, strict=True)] for group in groups]
        cost = [false_hits(new) - false_hits(group) for new, group in zip(grown, groups, strict=True)]
        best = cost.index(min(cost))
        groups[best] = grown[best]
        out[best].append(content)
    return [group for group in out if group]


class Prefilter:
    """Finds every place that holds one of the needles, whatever its letter case."""

    def __init__(self, needles: list[str]) -> None:
        short = [n for n in needles if len(n) < WIDTH]
        if short:
            raise ValueError(f"needles shorter than {WIDTH} bytes: {short}")
        self._by_window: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        for needle in sorted({n.lower() for n in needles}):
            start = window(needle)
            raw = needle.encode()
            self._by_window[raw[start:start + WIDTH]].append((start, raw))
        tables = [bytearray(256) for _ in range(WIDTH)]
        for bit, contents in enumerate(_buckets(list(self._by_window))):
            for position, chars in enumerate(zip(*contents, strict=True)):
                for char in chars:
                    tables[position][char] |= 1 << bit
        self._tables = [bytes(t) for t in tables]
        # Slot of the hash -> number of its group of needles, 0 for none. Windows that share a slot share a group: each
        # needle is compared whole anyway.
        self._slots = np.zeros(1 << _HASH_BITS, dtype=np.intp)
        self._groups: list[list[tuple[int, bytes]]] = [[]]
        for content, needles_of_it in self._by_window.items():
            slot = _hash(np.frombuffer(content, dtype=np.uint8), np.zeros(1, dtype=np.intp))[0]
            if not self._slots[slot]:
                self._slots[slot] = len(self._groups)
                self._groups.append([])
            self._groups[self._slots[slot]] += needles_of_it

    def places(self, chunk: bytes) -> dict[bytes, npt.NDArray[np.intp]]:
        """Of every needle (lower case) that the chunk holds, the offsets of its hits, ascending."""
        size = len(chunk) - WIDTH + 1
        if size <= 0:
            return {}
        lower = chunk.lower()
        text = np.frombuffer(lower, dtype=np.uint8)
        mask = np.frombuffer(lower.translate(self._tables[0]), dtype=np.uint8)[:size].copy()
        for position in range(1, WIDTH):
            mask &= np.frombuffer(lower.translate(self._tables[position]), dtype=np.uint8)[position:position + size]
        found = np.flatnonzero(mask != 0)
        if not len(found):
            return {}
        groups = self._slots[_hash(text, found)]
        out = {}
        for group in np.flatnonzero(np.bincount(groups, minlength=1)[1:]) + 1:
            here = found[groups == group]
            for start, needle in self._groups[group]:
                hits = _whole(text, here - start, needle)
                if len(hits):
                    out[needle] = hits
        return out

    def positions(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """All hits in the order of the text, each with its needle."""
        return in_order(self.places(chunk))


def in_order(places: dict[bytes, npt.NDArray[np.intp]]) -> list[tuple[int, bytes]]:
    return sorted((place, needle) for needle, found in places.items() for place in found.tolist())


def _whole(text: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], needle: bytes) -> npt.NDArray[np.intp]:
    """Those of the places at which the whole needle stands. Byte by byte: each comparison leaves fewer places."""
    places = places[(places >= 0) & (places <= len(text) - len(needle))]
    for offset, byte in enumerate(needle):
        if not len(places):
            break
        places = places[text[places + offset] == byte]
    return places


def _hash(text: npt.NDArray[np.uint8], places: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """A hash of _HASH_BITS bits of the six bytes at each place."""
    key = np.zeros(len(places), dtype=np.uint64)
    for offset in range(WIDTH):
        key = (key << np.uint64(8)) | text[places + offset]
    with np.errstate(over="ignore"):
        return (key * _FACTOR) >> np.uint64(64 - _HASH_BITS)
