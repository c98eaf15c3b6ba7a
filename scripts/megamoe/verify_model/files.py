"""The small files of a model directory: leftovers of a download, the tokenizer, the revision that the path names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.deploy.profiles import Profile
from megamoe.envelope import Finding
from megamoe.text_input import load_json
from megamoe.verify_model.instead import FIRST, instead
from megamoe.verify_model.walk import FETCH, LEFTOVER, finding, walk

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


def json_file(path: Path, code: str, why: str) -> tuple[Any, list[Finding]]:
    """The content of a JSON file, or why there is none, as a finding: other reasons must not be hidden by this one."""
    try:
        return load_json(path), []
    except Problem as problem:
        said = ""
        try:
            with path.open("rb") as file:
                said = instead(file.read(FIRST))
        except OSError:
            pass  # the problem says it
        what = f"{path.name} is {said}" if said else problem.reasons[0].what
        fix = FETCH if said or problem.exit_code is Exit.REFUSED else problem.reasons[0].fix
        return None, [finding(code, what, why, fix, file=path)]


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
        # The hub's client keeps its locks there for ever, also after a download that went well.
        if LEFTOVER.search(p.name) and not (p.suffix == ".lock" and p.parent.match(".cache/huggingface/download"))
    ]


def tokenizer(root: Path) -> list[Finding]:
    """There is one, it is no pointer and not cut short; whether it brings a chat template."""
    found = [root / n for n in TOKENIZERS if (root / n).exists()]
    if not found:
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
    out = []
    for path in found:
        if said := _damaged(path):
            why = "the server cannot turn text into tokens"
            out.append(finding("TOKENIZER_DAMAGED", f"{path.name} is {said}", why, FETCH, file=path))
    settings = root / "tokenizer_config.json"
    if settings.exists() and not any((root / f"chat_template.{kind}").exists() for kind in ("jinja", "json")):
        held, problems = json_file(settings, "TOKENIZER_DAMAGED", "the server cannot set its tokenizer up")
        out += problems
        if isinstance(held, dict) and not held.get("chat_template"):
            out.append(
                finding(
                    "CHAT_TEMPLATE_ABSENT",
                    "tokenizer_config.json has no chat_template, and there is no chat_template.jinja",
                    "chat requests need one, or an engine that knows this model's own encoding (ATOM knows V4's)",
                    "nothing to do for completions; `megamoe smoke URL` shows whether chat works",
                    file=settings,
                    severity="info",
                )
            )
    return out


def _damaged(path: Path) -> str:
    """Why a tokenizer file is none; "" when it may be one. Megabytes of vocabulary are not parsed."""
    try:
        with path.open("rb") as file:
            first = file.read(FIRST)
            file.seek(max(0, os.fstat(file.fileno()).st_size - FIRST))
            last = file.read()
    except OSError as error:
        return f"not readable: {error.strerror}"
    if not first.strip():
        return "empty"
    if said := instead(first):
        return said
    if path.suffix == ".json" and not (first.lstrip()[:1] == b"{" and last.rstrip()[-1:] == b"}"):
        return "cut short, or not JSON"
    return ""


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


def elsewhere(root: Path) -> tuple[str, str]:
    """(what the directory holds instead of shards, what to do about it)."""
    names = [p.name for p in walk(root)]
    inner = sorted(p.parent for p in root.glob("snapshots/*/config.json"))
    inner += sorted(p.parent for p in root.glob("models--*/snapshots/*/config.json"))
    if inner:
        shown = ", ".join(str(p.relative_to(root)) for p in inner[:3])
        return f"it is the hub's cache, whose snapshots are {shown}", f"give {inner[0]}"
    for ending, what in ((".gguf", "GGUF files, another format"), (".bin", "PyTorch .bin files"),
                         (".pt", "PyTorch files"), (".pth", "PyTorch files")):  # fmt: skip
        if any(n.endswith(ending) for n in names):
            return f"it holds {what}", "fetch the safetensors form of the model: these engines load nothing else"
    return ("it is empty" if not names else f"it holds {len(names)} other file(s)",
            "give the directory that holds config.json and the shards")


def read_state(path: Path | None) -> dict[str, list[Any]]:
    """What an earlier run had finished; nothing when its file is absent or of another kind."""
    if path is None or not path.is_file():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
