"""policy.toml, and versions as numbers."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def policy() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("policy.toml").read_text(encoding="utf-8"))


def version_of(text: object) -> tuple[int, ...] | None:
    """The first dotted number in a text ("Docker version 20.10.24+dfsg1" is (20, 10, 24)); None when there is none."""
    found = re.search(r"\d{1,6}(?:\.\d{1,6})+", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[0].split(".")) if found else None


def below(text: object, least: str) -> bool | None:
    """Whether a version is older than `least`; None when it cannot be read."""
    have, want = version_of(text), version_of(least)
    return None if have is None or want is None else have < want
