"""Shards: index against files, files against their own headers."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from megamoe.envelope import Finding
from megamoe.verify_model.files import elsewhere, json_file
from megamoe.verify_model.headers import BadHeader, Tensor, read_header
from megamoe.verify_model.walk import FETCH, finding

INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"-(\d{1,6})-of-(\d{1,6})\.safetensors$")


def shards(root: Path) -> tuple[list[Finding], dict[str, Tensor], int]:
    """(findings, all tensors, bytes of all shards)."""
    present = {p.name: p for p in root.iterdir() if p.name.endswith(".safetensors")}
    weight_map: dict[str, str] | None = None
    promised: Any = None
    out: list[Finding] = []
    if (root / INDEX).exists():
        weight_map, promised, out = _index(root, present)
    elif not present:
        instead, fix = elsewhere(root)
        what = f"no .safetensors file in {root}: {instead}"
        return [finding("NO_WEIGHTS", what, "there is nothing to load", fix, file=root)], {}, 0
    elif any((m := _NUMBERED.search(n)) and int(m[2]) > 1 for n in present):
        what = f"several shards but no {INDEX}"
        out.append(finding("INDEX_MISSING", what, "completeness cannot be judged", FETCH, file=root))
    of_shard: dict[str, list[str]] = defaultdict(list)
    for tensor, name in (weight_map or {}).items():
        of_shard[name].append(tensor)
    tensors: dict[str, Tensor] = {}
    total = data = 0
    whole = True
    for name, path in sorted(present.items()):
        try:
            held = read_header(path)
        except BadHeader as error:
            what, why = f"{name}: {error}", "loading it fails or gives wrong weights"
            out.append(finding("SHARD_DAMAGED", what, why, FETCH, file=path))
            continue
        except OSError as error:
            whole = False
            if not path.is_symlink():  # a link that leads nowhere is told by the check of links
                what, why = f"{name}: {error.strerror}", "the engine cannot read it either"
                out.append(finding("SHARD_UNREADABLE", what, why, "check its permissions", file=path))
            continue
        total += held.file_bytes
        data += held.data_bytes
        out += _against(name, path, held.tensors, tensors, of_shard[name])
        tensors.update(held.tensors)
    wrong_count = isinstance(promised, int) and not isinstance(promised, bool) and promised != data
    if wrong_count and whole and not out:
        out.append(
            finding(
                "INDEX_TOTAL",
                f"the index promises {promised} bytes of tensors, the shards hold {data}",
                "index and shards may be of different revisions (some publishers count wrongly)",
                "compare with the publisher's checksums (--manifest)",
                file=root / INDEX,
                severity="warn",
            )
        )
    return out, tensors, total


def _index(root: Path, present: dict[str, Path]) -> tuple[dict[str, str] | None, Any, list[Finding]]:
    """(weight map, promised bytes, findings); `present` gains shards that the index has in folders below."""
    why = "without it nobody knows which shards there must be"
    index, out = json_file(root / INDEX, "INDEX_INVALID", why)
    raw = index.get("weight_map") if isinstance(index, dict) else None
    if out or not isinstance(raw, dict) or not raw or not all(isinstance(v, str) for v in raw.values()):
        what = f"{INDEX} has no weight_map from names to files"
        return None, None, out or [finding("INDEX_INVALID", what, why, FETCH, file=root / INDEX)]
    named = set(raw.values())
    # Loaders resolve the index's names against its own directory, so a complete set in a folder below counts.
    inside = {v for v in named if "/" in v and not v.startswith("/") and ".." not in v.split("/") and "\0" not in v}
    present |= {v: root / v for v in inside if (root / v).is_file()}
    for name in sorted(v for v in named if v not in present):
        bad = "/" in name or name.startswith(".")
        out.append(
            finding(
                "SHARD_MISSING",
                f"{name[:200]} is in the index but " + ("names another directory" if bad else "not in the directory"),
                "engines drop missing shards without a word and serve wrong answers",
                "fetch the index of this revision: shards lie beside it" if bad else FETCH,
                file=root / INDEX,
            )
        )
    for name in sorted(set(present) - named):
        out.append(
            finding(
                "SHARD_UNINDEXED",
                f"{name} is not in the index",
                "it is not loaded, or the index is old",
                "remove it, or fetch the index of this revision",
                file=present[name],
                severity="warn",
            )
        )
    numbered = [m for v in named if (m := _NUMBERED.search(v))]
    counts = {int(m[2]) for m in numbered}
    if len(counts) == 1 and len(numbered) == len(named) and len({int(m[1]) for m in numbered}) < min(counts):
        out.append(
            finding(
                "SHARD_COUNT",
                f"the index names {len(named)} shard(s), whose own names count {min(counts)}",
                "an index that was cut, or made from an incomplete directory, agrees with what is missing",
                "compare with the publisher's index, or give its checksums (--manifest)",
                file=root / INDEX,
                severity="warn",
            )
        )
    metadata = index.get("metadata")
    return raw, metadata.get("total_size") if isinstance(metadata, dict) else None, out


def _against(
    name: str, path: Path, held: dict[str, Tensor], earlier: dict[str, Tensor], indexed: list[str]
) -> list[Finding]:
    """One shard's tensors against the shards before it and against the index."""
    out = []
    twice = sorted(t for t in held if t in earlier)
    if twice:
        out.append(
            finding(
                "TENSOR_TWICE",
                f"{name} repeats {len(twice)} tensor(s) of another shard, first {twice[0][:160]}",
                "which of the two is loaded depends on the order of files",
                "keep the shards of one revision only",
                file=path,
            )
        )
    lacking = [t for t in indexed if t not in held]
    if lacking:
        out.append(
            finding(
                "TENSOR_MISSING",
                f"{name} lacks {len(lacking)} tensor(s) of the index, first {lacking[0][:160]}",
                "index and shard are of different revisions",
                FETCH,
                file=path,
            )
        )
    return out
