"""Which lines of a chunk can matter, at memory speed.

The needles (literals of six bytes and more) are looked for all at once: six table translations of the whole chunk
give one bit mask per position (the idea of Hyperscan's Teddy), numpy ANDs them shifted, and the few positions that are
left are checked with a regular expression. Pure `re` alternations and one `find` per needle were slower (measured by
scripts/bench_diagnose.py).
"""

from __future__ import annotations

import re

import numpy as np

WIDTH = 6  # bytes of each needle that the masks see


class Prefilter:
    """Finds the start of every line that holds one of the needles, whatever its letter case."""

    def __init__(self, needles: list[str]) -> None:
        short = [n for n in needles if len(n) < WIDTH]
        if short:
            raise ValueError(f"needles shorter than {WIDTH} bytes: {short}")
        unique = sorted({n.lower() for n in needles})
        self._exact = re.compile(b"|".join(re.escape(n.encode()) for n in unique), re.I)
        tables = [bytearray(256) for _ in range(WIDTH)]
        for index, needle in enumerate(unique):
            # Neighbours in sorted order share first letters, so one bucket holds similar needles.
            bit = 1 << (index * 8 // len(unique))
            for position in range(WIDTH):
                char = needle[position]
                for form in {char, char.upper()}:
                    tables[position][ord(form)] |= bit
        self._tables = [bytes(t) for t in tables]

    def positions(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Offsets of needle hits, ascending, each with the needle (lower case)."""
        size = len(chunk) - WIDTH + 1
        if size <= 0:
            return []
        mask = np.frombuffer(chunk.translate(self._tables[0]), dtype=np.uint8)[:size].copy()
        for position in range(1, WIDTH):
            mask &= np.frombuffer(chunk.translate(self._tables[position]), dtype=np.uint8)[position:position + size]
        match = self._exact.match
        return [(p, m[0].lower()) for p in np.flatnonzero(mask).tolist() if (m := match(chunk, p))]
