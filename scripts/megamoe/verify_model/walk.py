"""What all checks of a model directory share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from megamoe.envelope import Finding, Severity

FILES_MAX = 100_000  # a model has hundreds; beyond this the directory is something else
LEFTOVER = re.compile(r"\.(?:incomplete|lock|part|partial|tmp|crdownload|aria2|download)$", re.I)
FETCH = "fetch that file again, then run this check again"


def finding(
    code: str, what: str, why: str, fix: str, *, file: Path | str | None = None, severity: Severity = "error"
) -> Finding:
    return Finding(code, severity, what, why, fix, file=str(file) if file is not None else None)


def walk(root: Path) -> Iterable[Path]:
    """All files and links below root, sorted, at most FILES_MAX; directories behind links are not entered."""
    count = 0
    for base, directories, names in os.walk(root):
        directories[:] = sorted(d for d in directories if d != ".git")
        for name in sorted([*names, *[d for d in directories if (Path(base) / d).is_symlink()]]):
            count += 1
            if count > FILES_MAX:
                return
            yield Path(base) / name
