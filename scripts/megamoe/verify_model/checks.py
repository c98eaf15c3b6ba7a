"""The checks of a model directory. Each returns findings; none reads tensor data except the checksum manifest."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem

from megamoe.deploy.profiles import Profile
from megamoe.envelope import Finding
from megamoe.text_input import load_json
from megamoe.verify_model.headers import BadHeader, Tensor, read_header
from megamoe.verify_model.walk import finding, walk

INDEX = "model.safetensors.index.json"
LEFTOVER = re.compile(r"\.(?:incomplete|lock|part|partial|tmp|crdownload|aria2|download)$", re.I)
EXPERT = re.compile(r"(?:^|\.)experts\.\d+\.(?P<part>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
_FETCH = "fetch that file again, then run this check again"


def leftovers(root: Path) -> list[Finding]:
    return [
        finding(
            "LEFTOVER",
            f"{p.relative_to(root)} is left over from a download",
            "the download did not finish or is still running",
            "let it finish, or remove the leftover once the file itself is complete",
            file=p,
            severity="warn",
        )
        for p in walk(root)
        if LEFTOVER.search(p.name)
    ]


def shards(root: Path) -> tuple[list[Finding], dict[str, Tensor], int]:
    """(findings, all tensors, bytes of all shards): index against files, files against their own headers."""
    out: list[Finding] = []
    present = {p.name: p for p in root.iterdir() if p.name.endswith(".safetensors")}
    weight_map: dict[str, str] | None = None
    promised: Any = None
    if (root / INDEX).exists():
        index = load_json(root / INDEX)
        raw = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(raw, dict) or not raw or not all(isinstance(v, str) for v in raw.values()):
            return (
                [
                    finding(
                        "INDEX_INVALID",
                        f"{INDEX} has no weight_map from names to files",
                        "without it nobody knows which shards there must be",
                        _FETCH,
                        file=root / INDEX,
                    )
                ],
                {},
                0,
            )
        weight_map = raw
        # Loaders resolve the index's names against its own directory, so a complete set in a folder below counts.
        inside = {v for v in raw.values() if "/" in v and not v.startswith("/") and ".." not in v.split("/")}
        present |= {v: root / v for v in inside if (root / v).is_file()}
        metadata = index.get("metadata")
        promised = metadata.get("total_size") if isinstance(metadata, dict) else None
        for name in sorted({v for v in raw.values() if v not in present}):
            bad = "/" in name or name.startswith(".")
            out.append(
                finding(
                    "SHARD_MISSING",
                    f"{name[:200]} is in the index but "
                    + ("names another directory" if bad else "not in the directory"),
                    "engines drop missing shards without a word and serve wrong answers",
                    "fetch the index of this revision: shards lie beside it" if bad else _FETCH,
                    file=root / INDEX,
                )
            )
        for name in sorted(set(present) - set(raw.values())):
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
    elif not present:
        return (
            [
                finding(
                    "NO_WEIGHTS",
                    f"no .safetensors file in {root}",
                    "there is nothing to load",
                    "give the directory that holds config.json and the shards",
                    file=root,
                )
            ],
            {},
            0,
        )
    elif any(re.search(r"-of-0*[2-9]|-of-0*1\d", n) for n in present):
        out.append(
            finding(
                "INDEX_MISSING", f"several shards but no {INDEX}", "completeness cannot be judged", _FETCH, file=root
            )
        )
    tensors: dict[str, Tensor] = {}
    total = data = 0
    for name, path in sorted(present.items()):
        try:
            held = read_header(path)
            size = held.file_bytes
        except BadHeader as error:
            out.append(
                finding(
                    "SHARD_DAMAGED", f"{name}: {error}", "loading it fails or gives wrong weights", _FETCH, file=path
                )
            )
            continue
        except OSError as error:
            if not path.is_symlink():
                out.append(
                    finding(
                        "SHARD_UNREADABLE",
                        f"{name}: {error.strerror}",
                        "the engine cannot read it either",
                        "check its permissions",
                        file=path,
                    )
                )
            continue
        total += size
        data += held.data_bytes
        twice = sorted(set(held.tensors) & set(tensors))
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
        tensors.update(held.tensors)
        if weight_map is not None:
            lacking = [k for k, v in weight_map.items() if v == name and k not in held.tensors]
            if lacking:
                out.append(
                    finding(
                        "TENSOR_MISSING",
                        f"{name} lacks {len(lacking)} tensor(s) of the index, first {lacking[0][:160]}",
                        "index and shard are of different revisions",
                        _FETCH,
                        file=path,
                    )
                )
    if isinstance(promised, int) and not isinstance(promised, bool) and promised != data and not out:
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


def config(root: Path, profile: Profile | None) -> list[Finding]:
    """config.json is there and, for a profile, says the profile's dimensions."""
    path = root / "config.json"
    if not path.exists():
        return [
            finding(
                "CONFIG_MISSING", "config.json is missing", "no engine can tell what the model is", _FETCH, file=root
            )
        ]
    raw = load_json(path)
    if not isinstance(raw, dict):
        return [finding("CONFIG_INVALID", "config.json is not an object", "no engine can read it", _FETCH, file=path)]
    if profile is None:
        return []
    out = []
    wanted: dict[tuple[str, ...], Any] = {
        ("moe_hidden_padded", "hidden_size"): profile.hidden,
        ("moe_intermediate_size",): profile.inter,
        ("n_routed_experts", "num_experts"): profile.experts,
        ("num_experts_per_tok",): profile.topk,
        ("num_hidden_layers",): profile.layers,
        ("vocab_size",): profile.vocab,
    }
    for names, value in wanted.items():
        found = next((raw[n] for n in names if n in raw), None)
        if value is not None and found != value:
            out.append(
                finding(
                    "CONFIG_FIELD",
                    f"{' or '.join(names)} is {found!r}, profile {profile.name} has {value}",
                    "kernels, limits and memory are computed for the profile's model",
                    "give the right directory, or the right profile",
                    file=path,
                )
            )
    if profile.swiglu_limit and raw.get("swiglu_limit") != profile.swiglu_limit:
        out.append(
            finding(
                "CONFIG_SWIGLU",
                f"swiglu_limit is {raw.get('swiglu_limit')!r}, profile {profile.name} has {profile.swiglu_limit:g}",
                "a missing clamp costs accuracy without an error",
                "give the official checkpoint's config.json",
                file=path,
            )
        )
    out += quantisation(raw, profile, path)
    dtype = raw.get("expert_dtype")
    if profile.weights == "mxfp4" and dtype is not None and dtype not in ("fp4", "mxfp4"):
        out.append(
            finding(
                "EXPERT_DTYPE",
                f"expert_dtype is {dtype!r}, the fused backend takes fp4",
                "this is a look-alike with other experts",
                "fetch the official fp4 checkpoint",
                file=path,
            )
        )
    return out


def quantisation(raw: dict[str, Any], profile: Profile, path: Path) -> list[Finding]:
    """What ATOM would take the routed experts for, from config.json alone (atom/models/deepseek_v4.py)."""
    section = raw.get("quantization_config")
    if profile.weights != "mxfp4" or not isinstance(section, dict):
        return []
    words = " ".join(str(section.get(k) or "").lower() for k in ("quant_method", "fmt"))
    if not any(known in words for known in ("fp4", "fp8", "quark")):
        return [
            finding(
                "QUANT_METHOD",
                f"quantization_config is {words.strip()[:60]!r}, the fused backend takes fp4 experts with e8m0 scales",
                "another quantiser's bytes read by these kernels give fluent nonsense",
                f"fetch {profile.model}",
                file=path,
            )
        ]
    if not raw.get("expert_dtype") and "fp4" not in words and "fp8" in words and profile.engine == "atom":
        return [
            finding(
                "EXPERT_DTYPE_HINT",
                f"config.json has no expert_dtype and quant_method is {words.strip()[:60]!r}",
                "ATOM then takes the routed experts for FP8, whatever the shards hold",
                "use the official config.json, which says expert_dtype: fp4",
                file=path,
            )
        ]
    return []


def likely_profile(root: Path) -> Profile | None:
    """The profile whose dimensions config.json has, when exactly one has them; for a check that nobody asked for."""
    from megamoe.deploy.profiles import load_profile, names

    try:
        raw = load_json(root / "config.json")
    except Problem:
        return None
    if not isinstance(raw, dict):
        return None
    found = [
        p
        for p in map(load_profile, names())
        if (p.hidden, p.inter, p.experts)
        == (raw.get("hidden_size"), raw.get("moe_intermediate_size"), raw.get("n_routed_experts"))
    ]
    return found[0] if len(found) == 1 else None


def experts(tensors: dict[str, Tensor], profile: Profile) -> list[Finding]:
    """Routed experts are packed fp4 of the profile's shape, every one of them."""
    found = {n: t for n, t in tensors.items() if EXPERT.search(n) and "shared" not in n}
    if not found:
        return [
            finding(
                "EXPERTS_NOT_FOUND",
                "no routed expert tensor (…experts.N.w1.weight) in the shards",
                "the fused backend cannot be fed",
                "give the official checkpoint of the profile",
            )
        ]
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
            out.setdefault(
                code,
                finding(
                    code,
                    f"{name} is {kind} ({tensor.dtype}) {list(tensor.shape)}, the fused backend takes packed fp4: "
                    f"I8 {list(want)}",
                    "a look-alike of this model has FP8 routed experts and is mounted by mistake",
                    f"fetch {profile.model}" + (f" at revision {profile.revision}" if profile.revision else ""),
                ),
            )
    return list(out.values())


def tokenizer(root: Path) -> list[Finding]:
    if any((root / n).exists() for n in ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")):
        return []
    return [
        finding(
            "TOKENIZER_MISSING",
            "no tokenizer.json, tokenizer.model or vocab.json",
            "the server cannot turn text into tokens",
            "fetch the tokenizer files of the same revision",
            file=root,
            severity="warn",
        )
    ]


def revision(root: Path, profile: Profile) -> list[Finding]:
    """The pinned revision, where the directory says which it is."""
    if profile.revision is None:
        return []
    parts = root.resolve().parts
    if "snapshots" in parts and parts.index("snapshots") + 1 < len(parts):
        have = parts[parts.index("snapshots") + 1]
        if have != profile.revision:
            return [
                finding(
                    "REVISION",
                    f"this is revision {have}, profile {profile.name} pins {profile.revision}",
                    "accuracy and limits were validated on the pinned one",
                    "fetch the pinned revision",
                    file=root,
                )
            ]
        return []
    return [
        finding(
            "REVISION_UNKNOWN",
            f"the directory does not say its revision (pinned: {profile.revision})",
            "it cannot be compared",
            "check against a checksum manifest (--manifest)",
            file=root,
            severity="info",
        )
    ]


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
            raise Problem(
                "manifest_line",
                what=f"{path}:{number}: not a `sha256  relative/name` line",
                why="a half-read manifest would pass what it should check",
                fix="make it with sha256sum",
            )
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
            if not stat.S_ISREG(facts.st_mode):
                out.append(
                    finding(
                        "CHECKSUM_MISSING", f"{name} is not a regular file", "the manifest lists it", _FETCH, file=file
                    )
                )
                continue
            key = [digest, facts.st_size, facts.st_mtime_ns]
            if done.get(name) == key:
                continue
            print(f"checksum {number}/{len(entries)} {name}", file=sys.stderr)
            with file.open("rb") as handle:
                have = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            out.append(
                finding("CHECKSUM_MISSING", f"{name}: {error.strerror}", "the manifest lists it", _FETCH, file=file)
            )
            continue
        if have != digest:
            out.append(
                finding(
                    "CHECKSUM",
                    f"{name} has sha256 {have}, the manifest says {digest}",
                    "the file is not what was published",
                    _FETCH,
                    file=file,
                )
            )
            continue
        done[name] = key
        if state is not None:
            temporary = state.with_name(state.name + ".new")
            temporary.write_text(json.dumps(done), encoding="utf-8")
            temporary.replace(state)
    return out
