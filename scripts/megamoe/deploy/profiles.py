"""Profiles (docker/profiles/NAME.toml) as typed data."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from megamoe_atom.problem import Problem

from megamoe.resources import resource


@dataclass(frozen=True, slots=True)
class Profile:
    """One model and engine: geometry, validated limits, environment contract. None means that no source gives it."""

    name: str
    engine: str
    model: str
    weights: str
    revision: str | None
    checkpoint_bytes: int | None
    default_max_model_len: int | None
    hidden: int
    inter: int
    experts: int
    topk: int
    layers: int | None
    shared_experts: int
    vocab: int | None
    quant: str
    swiglu_limit: float
    ep_sizes: tuple[int, ...]
    validated_mbt: int
    validated_seqs: int
    outside_kv_bytes_per_seq: int
    env_required: dict[str, str]
    env_default: dict[str, str]
    container: dict[str, Any]
    start_period_s: int


def names() -> list[str]:
    """Names of all profiles, sorted."""
    return sorted(path.stem for path in resource("docker/profiles").glob("*.toml"))


def load_profile(name: str) -> Profile:
    """Reads a profile by name.

    Raises:
        Problem: no such profile (code "profile_unknown", offers the nearest).
    """
    known = names()
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name) or name not in known:
        near = get_close_matches(name, known, n=1)
        raise Problem(
            "profile_unknown",
            what=f"model.profile is {name!r}; known: {', '.join(known)}",
            why="limits, geometry and environment contract come from the profile",
            fix=f"did you mean {near[0]!r}?" if near else "name one of the known profiles",
        )
    raw = tomllib.loads((resource("docker/profiles") / f"{name}.toml").read_text(encoding="utf-8"))
    geometry, validated = raw["geometry"], raw["validated"]
    return Profile(
        name=name,
        engine=raw["engine"],
        model=raw["model"],
        weights=raw["weights"],
        revision=raw.get("revision"),
        checkpoint_bytes=raw.get("checkpoint_bytes"),
        default_max_model_len=raw.get("default_max_model_len"),
        hidden=geometry["hidden"],
        inter=geometry["inter"],
        experts=geometry["experts"],
        topk=geometry["topk"],
        layers=geometry.get("layers"),
        shared_experts=geometry["shared_experts"],
        vocab=geometry.get("vocab"),
        quant=geometry["quant"],
        swiglu_limit=float(geometry["swiglu_limit"]),
        ep_sizes=tuple(validated["ep_size"]),
        validated_mbt=validated["max_num_batched_tokens"],
        validated_seqs=validated["max_num_seqs"],
        outside_kv_bytes_per_seq=raw["memory"]["outside_kv_bytes_per_seq"],
        env_required=dict(raw["env"]["required"]),
        env_default=dict(raw["env"]["default"]),
        container=dict(raw["container"]),
        start_period_s=raw["health"]["start_period_s"],
    )
