"""The folder's helpers are importable; the compiled core lives in one cache for the whole run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
