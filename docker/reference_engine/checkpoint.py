"""A model directory as prepare_model writes it: configuration, shards, completion marker."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megamoe_atom.problem import Exit, Problem

MARKER = "megamoe_model.json"
INDEX = "model.safetensors.index.json"


def read_marker(directory: Path) -> dict[str, Any] | None:
    """The completion marker, or None where there is none that can be read."""
    try:
        marker = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes that the engine needs, in elements. Names follow config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    bos_token_id: int
    eos_token_id: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    moe_hidden_padded: int
    expert_dtype: str
    swiglu_limit: float | None = None


def _refuse(code: str, what: str, why: str, fix: str) -> Problem:
    return Problem(code, exit_code=Exit.PRECONDITION, what=what, why=why, fix=fix)


_REMAKE = "make it with `python -m reference_engine.prepare_model --gguf FILE --out DIR`"


def read_config(directory: Path) -> ModelConfig:
    """Reads config.json after checking that the directory is complete, without reading any weights.

    Raises:
        Problem: no directory, no marker, a file missing or of another size, a field missing (exit 4).
    """
    if not directory.is_dir():
        raise _refuse(
            "model_missing",
            f"--model {directory} is not a directory",
            "there is nothing to serve",
            f"mount the model there, or {_REMAKE}",
        )
    marker = read_marker(directory)
    if marker is None or not isinstance(marker.get("files"), dict):
        raise _refuse(
            "model_incomplete",
            f"{directory} has no readable {MARKER}",
            "it is written last, so the directory was not finished or is not for this engine",
            _REMAKE,
        )
    for name, facts in marker["files"].items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is not None and not os.access(path, os.R_OK):
            raise _refuse(
                "model_unreadable",
                f"{path} may not be read by user {os.getuid()}",
                "the container runs as a user of its own, not as root",
                f"chmod -R a+rX {directory}",
            )
        if size != facts["bytes"]:
            raise _refuse(
                "model_incomplete",
                f"{path} has {'no file' if size is None else f'{size} bytes'}, expected {facts['bytes']} bytes",
                "the model would load wrongly or not at all",
                _REMAKE,
            )
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    fields = ModelConfig.__dataclass_fields__
    missing = [f for f in fields if f not in raw and f != "swiglu_limit"]
    if missing:
        raise _refuse(
            "model_config",
            f"{directory / 'config.json'} lacks {', '.join(missing)}",
            "the engine cannot know the shapes",
            _REMAKE,
        )
    return ModelConfig(**{f: raw[f] for f in fields if f in raw})


class Weights:
    """Loads single tensors out of the shards; a shard is mapped, not read whole."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        self._map: dict[str, str] = index["weight_map"]
        shards = sorted(set(self._map.values()))
        self._open: dict[str, Any] = {name: safe_open(directory / name, framework="pt") for name in shards}

    def get(self, name: str) -> torch.Tensor:
        """A copy of one tensor.

        Raises:
            Problem: the index does not have it (code "tensor_missing", exit 4).
        """
        if name not in self._map:
            raise _refuse(
                "tensor_missing", f"the checkpoint has no tensor {name}", "a layer would have no weights", _REMAKE
            )
        tensor: torch.Tensor = self._open[self._map[name]].get_tensor(name)
        return tensor
