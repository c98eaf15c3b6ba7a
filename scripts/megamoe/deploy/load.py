"""DEPLOY text to typed models, with every fault of form reported at once and the rest still judged.

A key that is unknown or has the wrong type is reported and then left out (a required one gets a placeholder), so that
the rules of megamoe.plan can still judge all other keys. `Loaded.bad` names those keys; a rule that depends on one of
them stays silent.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem, Reason
from pydantic import BaseModel, ValidationError

from megamoe.deploy.schema import Args, Container, Deploy, Gpu, Model
from megamoe.text_input import Document, load_yaml, parse_yaml, scalar

Key = tuple[str | int, ...]
_SECTIONS: dict[str, type[BaseModel]] = {"model": Model, "gpu": Gpu, "args": Args, "container": Container}
_PATHS: tuple[Key, ...] = (("model", "path"), ("args", "draft_model"), ("container", "status_dir"),
                           ("container", "cache_dir"))  # fmt: skip
# Placeholders for required keys that are missing or wrong; rules that look at them are silenced by Loaded.bad.
_PLACEHOLDER: dict[Key, Any] = {
    ("engine",): "atom",
    ("image",): "placeholder@sha256:" + "0" * 64,
    ("model",): {},
    ("gpu",): {},
    ("args",): {},
    ("model", "path"): "/placeholder",
    ("model", "profile"): "deepseek-v4-pro",
    ("model", "weights"): "mxfp4",
    ("gpu", "arch"): "gfx950",
    ("gpu", "count"): 8,
    ("gpu", "vram_gib"): 288,
}


# The engines' own words for what DEPLOY calls otherwise: flags of ROCm/ATOM, keys of compose and docker's options.
_ALIASES = {
    "tp": "tensor_parallel",
    "dp": "data_parallel",
    "pcp": "prefill_context_parallel",
    "server_port": "port",
    "mtpr": "max_num_batched_tokens",
    "mbt": "max_num_batched_tokens",
    "network": "network_mode",
    "net": "network_mode",
    "restart": "restart_policy",
    "security_opt": "security_opts",
    "stop_grace_period": "stop_timeout",
    "publish": "ports",
    "environment": "env",
    "groups": "group_add",
    "runtime": "engine",
}


@dataclass(slots=True)
class Loaded:
    """A DEPLOY that could be read: the typed part, where each key stands, and what was wrong with its form."""

    deploy: Deploy
    document: Document
    reasons: list[tuple[Reason, Key]] = field(default_factory=list)
    bad: set[Key] = field(default_factory=set)


def dotted(key: Key) -> str:
    """("args", "port") as args.port; list positions as [0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def load_deploy(path: str | Path) -> Loaded:
    """Reads DEPLOY from a file, or from standard input when path is "-".

    Raises:
        Problem: the file cannot be read or is not one YAML mapping (megamoe.text_input).
    """
    return typed(load_yaml(path))


def parse_deploy(text: str, name: str = "DEPLOY") -> Loaded:
    """As load_deploy, from text."""
    return typed(parse_yaml(text, name))


def require_deploy(path: str | Path) -> Deploy:
    """DEPLOY for verbs that need it whole.

    Raises:
        Problem: unreadable, or any key is unknown, missing or of the wrong type (all of them are named).
    """
    loaded = load_deploy(path)
    if loaded.reasons:
        raise Problem.of([reason for reason, _ in loaded.reasons])
    return loaded.deploy


def typed(document: Document) -> Loaded:
    """A parsed document as typed models, with every fault of form."""
    raw: dict[str, Any] = copy.deepcopy(document.data)
    reasons: list[tuple[Reason, Key]] = []
    bad: set[Key] = set()
    for _ in range(64):  # each round removes at least one key, and one round normally finds them all
        try:
            deploy = Deploy.model_validate(raw)
            for key in _with_control_characters(deploy):
                bad.add(key)
                reasons.append((Reason("deploy_value", f"{dotted(key)} holds a control character",
                                       "a terminal acts on it instead of showing it, so a printed command would not be "
                                       "the one that is meant", "write the value anew, as one line of visible text"),
                                key))
            return Loaded(deploy, document, reasons, bad)
        except ValidationError as error:
            before = copy.deepcopy(raw)  # locations refer to what was validated, not to what is patched below
            for fault in error.errors(include_url=False, include_context=True):
                key = _real_key(tuple(fault["loc"]), before)
                if key in bad:
                    continue
                bad.add(key)
                reasons.append((_reason(key, fault), key))
                _patch(raw, key)
    raise Problem(
        "deploy_unreadable",
        what=f"{document.name}: no readable deployment in it",
        why="too many faults of form",
        fix="start from the example in README.md, or see `megamoe plan --schema`",
    )


def _with_control_characters(deploy: Deploy) -> list[Key]:
    """Keys whose text, or part of it, holds one. env and host paths have rules of their own for it."""
    values: list[tuple[Key, Any]] = [((name,), getattr(deploy, name)) for name in Deploy.model_fields if name != "env"]
    for section in _SECTIONS:
        part = getattr(deploy, section)
        values += [((section, name), getattr(part, name)) for name in type(part).model_fields]
    return [key for key, value in values if key not in _PATHS and any(
        ord(char) < 32 or 127 <= ord(char) < 160 for text in _texts(value) for char in text)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [str(part) for pair in value.items() for part in pair]
    return [value] if isinstance(value, str) else [v for v in value if isinstance(v, str)] if isinstance(
        value, list) else []


def _real_key(location: Key, raw: Any) -> Key:
    """pydantic's location without the names that it adds for union members, cut where the file has no such key."""
    key: list[str | int] = []
    node: Any = raw
    for part in location:
        if isinstance(node, dict) and (part in node or not key or (len(key) == 1 and key[0] in _SECTIONS)):
            key.append(part)
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            key.append(part)
            node = node[part]
        else:
            break
    # A fault inside a list or mapping value voids the whole value: half a list would be a different deployment.
    return tuple(key[: 2 if key and key[0] in (*_SECTIONS, "env") else 1])


def _patch(raw: dict[str, Any], key: Key) -> None:
    parent: Any = raw
    for part in key[:-1]:
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raw[str(key[0])] = copy.deepcopy(_PLACEHOLDER.get(key[:1], {}))
        return
    if key in _PLACEHOLDER:
        parent[key[-1]] = copy.deepcopy(_PLACEHOLDER[key])
    else:
        parent.pop(key[-1], None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _reason(key: Key, fault: Any) -> Reason:
    name, kind, context = dotted(key), fault["type"], fault.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_key(key)
    if kind == "missing":
        return Reason(
            "deploy_key_missing",
            f"{name} is not given",
            "no value can be assumed safely",
            f"add {name} ({_describe(key)})",
        )
    value = _shown(fault.get("input"))
    wanted = str(fault["msg"])
    if kind == "literal_error":
        wanted = f"must be {context.get('expected', '')}"
        choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
        near = get_close_matches(str(fault.get("input")), choices, n=1)
        fix = f"write {near[0]!r}" if near else "use one of these values"
    elif kind in ("int_type", "float_type", "bool_type", "string_type", "int_from_float"):
        wanted = {
            "int_type": "must be a whole number",
            "int_from_float": "must be a whole number",
            "float_type": "must be a number",
            "bool_type": "must be true or false",
            "string_type": "must be text",
        }[kind]
        fix = 'write it in quotes, such as "1"' if kind == "string_type" else _as_meant(kind, fault.get("input"))
    else:
        fix = f"give {name} a value that fits ({_describe(key)})"
    return Reason(
        "deploy_value",
        f"{name} is {value}: {wanted}",
        "the schema is strict so that a slip never becomes a default",
        fix,
    )


def _as_meant(kind: str, given: Any) -> str:
    """How to write a number or switch that was given as text, or as another number.

    The YAML reader keeps as text what readers of YAML 1.1 and 1.2 take for different things (`yes`, `010`, `0x10`).
    """
    if isinstance(given, float) and kind != "float_type":
        return f"write {int(given)}" if given.is_integer() else "write a whole number"
    if not isinstance(given, str):
        return "write such a value"
    word = given.strip().lower()
    if kind == "bool_type":
        meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}.get(word)
        if meant is not None:
            return f"write {meant}: readers of YAML disagree on what {given} means"
    elif re.fullmatch(r"[-+]?0[0-9]+", word):
        return "write it as a decimal number without a leading zero: some readers take that for octal"
    elif re.fullmatch(r"[-+]?(0[xob][0-9a-f_]+|[0-9][0-9_]*_[0-9_]*)", word):
        return "write it as a plain decimal number"
    read = scalar(given.strip())
    wanted = bool if kind == "bool_type" else int if kind == "int_type" else float
    if isinstance(read, bool) == (wanted is bool) and isinstance(read, (wanted, int)):
        return "write it without quotes"
    return "write true or false" if wanted is bool else "write a plain decimal number that fits"


def _describe(key: Key) -> str:
    model: type[BaseModel] | None = Deploy if len(key) == 1 else _SECTIONS.get(str(key[0]))
    info = model.model_fields.get(str(key[-1])) if model else None
    return info.description if info and info.description else "see `megamoe plan --schema`"


def _unknown_key(key: Key) -> Reason:
    section, name = (str(key[0]), str(key[1])) if len(key) > 1 else ("", str(key[0]))
    model = _SECTIONS.get(section, Deploy) if section else Deploy
    alias = _ALIASES.get(_plain(name))
    near = ([alias] if alias in model.model_fields else
            get_close_matches(_plain(name), [*model.model_fields], n=1, cutoff=0.55))  # fmt: skip
    sections: list[tuple[str, type[BaseModel]]] = [("", Deploy), *_SECTIONS.items()]
    elsewhere = [
        f"{other}.{name}"
        for other, kind in sections
        if other != section and name in kind.model_fields
    ]
    if near:
        fix = f"did you mean {f'{section}.' if section else ''}{near[0]}?"
    elif elsewhere:
        fix = f"it belongs at {elsewhere[0].lstrip('.')}"
    elif section == "" and name.isupper():
        fix = f"environment variables go under env: env.{name}"
    else:
        fix = f"remove it; keys here: {', '.join(model.model_fields)}"
    return Reason(
        "deploy_key_unknown",
        f"{dotted(key)} is not a key of DEPLOY",
        "an unknown key is silently ignored by tools that are not strict, and the deployment is then another one",
        fix,
    )


def _plain(name: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-").replace("-", "_"))
    return snake.lower()


def known_keys() -> list[str]:
    """All key paths of DEPLOY, for documentation and completion."""
    keys = [name for name in Deploy.model_fields if name not in _SECTIONS]
    return sorted(keys + [f"{s}.{name}" for s, model in _SECTIONS.items() for name in model.model_fields])
