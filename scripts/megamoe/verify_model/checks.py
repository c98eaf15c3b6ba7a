"""The checks of a model directory. Each returns findings; none reads tensor data except the checksum manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem

from megamoe.deploy.profiles import Profile
from megamoe.envelope import Finding
from megamoe.text_input import load_json
from megamoe.verify_model.headers import BadHeader, Tensor, read_header

INDEX = "model.safetensors.index.json"
LEFTOVER = re.compile(r"\.(?:incomplete|lock|part|partial|tmp|crdownload|aria2|download)$", re.I)
EXPERT = re.compile(r"(?:^|\.)experts\.\d+\.(?P<part>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
_FETCH = "fetch that file again, then run this check again"


def finding(code: str, what: str, why: str, fix: str, *, file: Path | str | None = None,
            severity: str = "error") -> Finding:
    return Finding(code, severity, what, why, fix, file=str(file) if file is not None else None)  # type: ignore[arg-type]


def links(root: Path, mounts: list[Path]) -> list[Finding]:
    """Dangling links, and links whose target the container will not see."""
    out = []
    allowed = [m.resolve() for m in (mounts or [root])]
    for path in walk(root):
        if not path.is_symlink():
            continue
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            out.append(finding("LINK_DANGLING", f"{path.name} links to {path.readlink()}, which does not exist "
                               f"({type(error).__name__})", "the engine cannot open it",
                               "fetch the blob again, or copy the snapshot with links followed (`cp -L`)", file=path))
            continue
        if not any(target.is_relative_to(m) for m in allowed):
            out.append(finding("LINK_OUTSIDE_MOUNT", f"{path.name} resolves to {target}, outside "
                               f"{', '.join(map(str, allowed))}", "in the container that path does not exist",
                               "mount the folder that holds both (--mount HOST:CONTAINER), or copy with `cp -L`",
                               file=path))
    return out


def walk(root: Path) -> Iterable[Path]:
    """All files and links below root, sorted, at most 100000; directories behind links are not entered."""
    count = 0
    for base, directories, names in os.walk(root):
        directories[:] = sorted(d for d in directories if d != ".git")
        for name in sorted([*names, *[d for d in directories if (Path(base) / d).is_symlink()]]):
            count += 1
            if count > 100_000:
                return
            yield Path(base) / name


def leftovers(root: Path) -> list[Finding]:
    return [finding("LEFTOVER", f"{p.relative_to(root)} is left over from a download", "the download did not finish or "
                    "is still running", "let it finish, or remove the leftover once the file itself is complete",
                    file=p, severity="warn") for p in walk(root) if LEFTOVER.search(p.name)]


def shards(root: Path) -> tuple[list[Finding], dict[str, Tensor], int]:
    """(findings, all tensors, bytes of all shards): index against files, files against their own headers."""
    out: list[Finding] = []
    present = {p.name: p for p in root.iterdir() if p.name.endswith(".safetensors")}
    weight_map: dict[str, str] | None = None
    if (root / INDEX).exists():
        index = load_json(root / INDEX)
        raw = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(raw, dict) or not raw or not all(isinstance(v, str) for v in raw.values()):
            return [finding("INDEX_INVALID", f"{INDEX} has no weight_map from names to files",
                            "without it nobody knows which shards there must be", _FETCH, file=root / INDEX)], {}, 0
        weight_map = raw
        for name in sorted({v for v in raw.values() if v not in present}):
            bad = "/" in name or name.startswith(".")
            out.append(finding("SHARD_MISSING", f"{name[:200]} is in the index but "
                               + ("names another directory" if bad else "not in the directory"),
                               "engines drop missing shards without a word and serve wrong answers", _FETCH,
                               file=root / INDEX))
        for name in sorted(set(present) - set(raw.values())):
            out.append(finding("SHARD_UNINDEXED", f"{name} is not in the index", "it is not loaded, or the index "
                               "is old",
                               "remove it, or fetch the index of this revision", file=present[name], severity="warn"))
    elif not present:
        return [finding("NO_WEIGHTS", f"no .safetensors file in {root}", "there is nothing to load",
                        "give the directory that holds config.json and the shards", file=root)], {}, 0
    elif any(re.search(r"-of-0*[2-9]|-of-0*1\d", n) for n in present):
        out.append(finding("INDEX_MISSING", f"several shards but no {INDEX}", "completeness cannot be judged", _FETCH,
                           file=root))
    tensors: dict[str, Tensor] = {}
    total = 0
    for name, path in sorted(present.items()):
        try:
            held, size = read_header(path)
        except BadHeader as error:
            out.append(finding("SHARD_DAMAGED", f"{name}: {error}", "loading it fails or gives wrong weights", _FETCH,
                               file=path))
            continue
        except OSError as error:
            if not path.is_symlink():
                out.append(finding("SHARD_UNREADABLE", f"{name}: {error.strerror}", "the engine cannot read it either",
                                   "check its permissions", file=path))
            continue
        total += size
        tensors.update(held)
        if weight_map is not None:
            lacking = [k for k, v in weight_map.items() if v == name and k not in held]
            if lacking:
                out.append(finding("TENSOR_MISSING", f"{name} lacks {len(lacking)} tensor(s) of the index, first "
                                   f"{lacking[0][:160]}", "index and shard are of different revisions", _FETCH,
                                   file=path))
    return out, tensors, total


def config(root: Path, profile: Profile | None) -> list[Finding]:
    """config.json is there and, for a profile, says the profile's dimensions."""
    path = root / "config.json"
    if not path.exists():
        return [finding("CONFIG_MISSING", "config.json is missing", "no engine can tell what the model is", _FETCH,
                        file=root)]
    raw = load_json(path)
    if not isinstance(raw, dict):
        return [finding("CONFIG_INVALID", "config.json is not an object", "no engine can read it", _FETCH, file=path)]
    if profile is None:
        return []
    out = []
    wanted: dict[tuple[str, ...], Any] = {
        ("moe_hidden_padded", "hidden_size"): profile.hidden, ("moe_intermediate_size",): profile.inter,
        ("n_routed_experts", "num_experts"): profile.experts, ("num_experts_per_tok",): profile.topk,
        ("num_hidden_layers",): profile.layers, ("vocab_size",): profile.vocab}
    for names, value in wanted.items():
        found = next((raw[n] for n in names if n in raw), None)
        if value is not None and found != value:
            out.append(finding("CONFIG_FIELD", f"{' or '.join(names)} is {found!r}, profile {profile.name} has {value}",
                               "kernels, limits and memory are computed for the profile's model",
                               "give the right directory, or the right profile", file=path))
    if profile.swiglu_limit and raw.get("swiglu_limit") != profile.swiglu_limit:
        out.append(finding("CONFIG_SWIGLU", f"swiglu_limit is {raw.get('swiglu_limit')!r}, profile {profile.name} has "
                           f"{profile.swiglu_limit:g}", "a missing clamp costs accuracy without an error",
                           "give the official checkpoint's config.json", file=path))
    dtype = raw.get("expert_dtype")
    if profile.weights == "mxfp4" and dtype is not None and dtype not in ("fp4", "mxfp4"):
        out.append(finding("EXPERT_DTYPE", f"expert_dtype is {dtype!r}, the fused backend takes fp4",
                           "this is a look-alike with other experts", "fetch the official fp4 checkpoint", file=path))
    return out


def experts(tensors: dict[str, Tensor], profile: Profile) -> list[Finding]:
    """Routed experts are packed fp4 of the profile's shape, every one of them."""
    found = {n: t for n, t in tensors.items() if EXPERT.search(n) and "shared" not in n}
    if not found:
        return [finding("EXPERTS_NOT_FOUND", "no routed expert tensor (…experts.N.w1.weight) in the shards",
                        "the fused backend cannot be fed", "give the official checkpoint of the profile")]
    wide, tall = (profile.inter, profile.hidden // 2), (profile.hidden, profile.inter // 2)
    out: dict[str, Finding] = {}
    for name, tensor in sorted(found.items()):
        match = EXPERT.search(name)
        assert match is not None
        want = tall if match["part"] in ("w2", "down_proj") else wide
        shape = (want[0], want[1] * 2) if tensor.dtype == "F4" else want  # F4 counts elements, I8 counts bytes
        if tensor.dtype not in ("I8", "U8", "F4") or tensor.shape != shape:
            kind = "FP8" if tensor.dtype.startswith("F8") else tensor.dtype
            code = "EXPERT_DTYPE" if tensor.dtype not in ("I8", "U8", "F4") else "EXPERT_SHAPE"
            out.setdefault(code, finding(
                code, f"{name} is {kind} ({tensor.dtype}) {list(tensor.shape)}, the fused backend takes packed fp4: "
                f"I8 {list(want)}", "a look-alike of this model has FP8 routed experts and is mounted by mistake",
                f"fetch {profile.model}" + (f" at revision {profile.revision}" if profile.revision else "")))
    return list(out.values())


def tokenizer(root: Path) -> list[Finding]:
    if any((root / n).exists() for n in ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")):
        return []
    return [finding("TOKENIZER_MISSING", "no tokenizer.json, tokenizer.model or vocab.json",
                    "the server cannot turn text into tokens", "fetch the tokenizer files of the same revision",
                    file=root, severity="warn")]


def revision(root: Path, profile: Profile) -> list[Finding]:
    """The pinned revision, where the directory says which it is."""
    if profile.revision is None:
        return []
    parts = root.resolve().parts
    if "snapshots" in parts and parts.index("snapshots") + 1 < len(parts):
        have = parts[parts.index("snapshots") + 1]
        if have != profile.revision:
            return [finding("REVISION", f"this is revision {have}, profile {profile.name} pins {profile.revision}",
                            "accuracy and limits were validated on the pinned one", "fetch the pinned revision",
                            file=root)]
        return []
    return [finding("REVISION_UNKNOWN", f"the directory does not say its revision (pinned: {profile.revision})",
                    "it cannot be compared", "check against a checksum manifest (--manifest)", file=root,
                    severity="info")]


def manifest(root: Path, path: Path, state: Path | None) -> list[Finding]:
    """sha256sum-format manifest; `state` remembers what was already checked (name, size, mtime), for resuming.

    Raises:
        Problem: the manifest cannot be read or has a malformed line (exit 2).
    """
    from megamoe.text_input import read_text

    entries = []
    for number, line in enumerate(read_text(path, max_bytes=64 << 20).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"\\?([0-9a-fA-F]{64}) [ *](.+)", line)
        if match is None or Path(match[2]).is_absolute() or ".." in Path(match[2]).parts:
            raise Problem("manifest_line", what=f"{path}:{number}: not a `sha256  relative/name` line",
                          why="a half-read manifest would pass what it should check", fix="make it with sha256sum")
        entries.append((match[1].lower(), match[2]))
    done: dict[str, list[Any]] = {}
    if state is not None and state.is_file():
        try:
            loaded = json.loads(state.read_text(encoding="utf-8"))
            done = loaded if isinstance(loaded, dict) else {}
        except ValueError:
            done = {}
    out = []
    for number, (digest, name) in enumerate(entries, start=1):
        file = root / name
        try:
            facts = file.stat()
            key = [digest, facts.st_size, facts.st_mtime_ns]
            if done.get(name) == key:
                continue
            print(f"checksum {number}/{len(entries)} {name}", file=sys.stderr)
            with file.open("rb") as handle:
                have = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            out.append(finding("CHECKSUM_MISSING", f"{name}: {error.strerror}", "the manifest lists it", _FETCH,
                               file=file))
            continue
        if have != digest:
            out.append(finding("CHECKSUM", f"{name} has sha256 {have}, the manifest says {digest}",
                               "the file is not what was published", _FETCH, file=file))
            continue
        done[name] = key
        if state is not None:
            temporary = state.with_name(state.name + ".new")
            temporary.write_text(json.dumps(done), encoding="utf-8")
            temporary.replace(state)
    return out
