"""How many kernels were compiled ahead of time, and how many this container had to compile since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megamoe.envelope import Finding


def _entries(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.pkl")} if folder.is_dir() else set()


def counts(env: Mapping[str, str]) -> dict[str, Any] | None:
    """Ahead-of-time kernels, and those in FlyDSL's cache that were not baked; None outside the rocm image."""
    if not env.get("MEGAMOE_KERNELS") or not env.get("FLYDSL_RUNTIME_CACHE_DIR"):
        return None
    try:
        report = json.loads((Path(env["MEGAMOE_KERNELS"]) / "aot.json").read_text(encoding="utf-8"))
        baked = _entries(Path(env["MEGAMOE_KERNELS"]) / report["cache"])
    except (OSError, ValueError, KeyError):
        return None
    cached = _entries(Path(env["FLYDSL_RUNTIME_CACHE_DIR"]))
    return {"ahead_of_time": report["kernels"], "lost": len(baked - cached), "compiled_since": len(cached - baked)}


def findings(found: Mapping[str, Any]) -> list[Finding]:
    """A warning for kernels that were compiled in this container: their first callers waited for the compiler."""
    if not found["compiled_since"] and not found["lost"]:
        return []
    return [
        Finding(
            "kernels_compiled_here",
            "warn",
            f"{found['compiled_since']} kernels were compiled in this container and {found['lost']} of the image's "
            f"{found['ahead_of_time']} are not in its cache",
            "the image's kernels do not cover this token limit, or the cache was emptied; peers wait for the compiler",
            "warm all token buckets before traffic, or bake this profile's limit into the image",
        )
    ]
