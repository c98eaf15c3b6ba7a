"""The JSON Schema that `megamoe plan --schema` prints, and the loader: an editor and the verb must say the same."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from megamoe.deploy.load import parse_deploy
from megamoe.deploy.schema import json_schema
from plan_support import DROP, patched

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

FITS: list[dict[str, Any]] = [
    {},
    {"host": DROP},
    {"host": None},
    {"image_tag_is_comment": True},
    {"env": {}},
    {"env__A": 1},
    {"env__A": ""},
    {"container": DROP},
    {"container": {}},
    {"model__revision": None},
    {"model__revision": "abc"},
    {"gpu__vram_gib": 191.5},
    {"gpu__vram_gib": 4096},
    {"gpu__count": 0},
    {"args": {}},
    {"args__port": 1},
    {"args__port": 65535},
    {"args__max_num_batched_tokens": None},
    {"args__gpu_memory_utilization": 1},
    {"args__cudagraph_capture_sizes": [1, 2]},
    {"args__cudagraph_capture_sizes": []},
    {"args__method": "mtp"},
    {"args__hf_overrides": {"a": {"b": [1]}}},
    {"args__eplb_config": None},
    {"container__group_add": ["44", 992]},
    {"container__shm_size": "16g"},
    {"container__shm_size": 1024},
    {"container__ulimits": {"memlock": -1, "nofile": {"soft": 1, "hard": 2}}},
    {"container__name": "a"},
    {"container__labels": {"x": "y"}},
    {"container__tmpfs": ["/tmp"]},
]
DIFFERS: list[dict[str, Any]] = [
    {"engine": DROP},
    {"image": DROP},
    {"model": DROP},
    {"args": DROP},
    {"gpu": DROP},
    {"engine": "vllm"},
    {"engine": None},
    {"image": 7},
    {"image": None},
    {"host": 7},
    {"colour": "blue"},
    {"model": []},
    {"model__path": DROP},
    {"model__paths": "/x"},
    {"model__weights": "int4"},
    {"gpu__count": -1},
    {"gpu__count": 65},
    {"gpu__count": "8"},
    {"gpu__count": 8.5},
    {"gpu__count": True},
    {"gpu__vram_gib": "288"},
    {"gpu__vram_gib": 4096.5},
    {"args": None},
    {"args__port": 0},
    {"args__port": 65536},
    {"args__gpu_memory_utilization": 0},
    {"args__gpu_memory_utilization": 1.01},
    {"args__enable_expert_parallel": "true"},
    {"args__enable_expert_parallel": 1},
    {"args__max_num_seqs": (1 << 20) + 1},
    {"args__tensor_paralel": 8},
    {"args__cudagraph_capture_sizes": ["1"]},
    {"args__cudagraph_capture_sizes": [1] * 257},
    {"args__num_speculative_tokens": 17},
    {"args__hf_overrides": "a=b"},
    {"args__level": 4},
    {"env": ["A=1"]},
    {"env__A": True},
    {"env__A": None},
    {"env__A": 1.5},
    {"env": {f"A{i}": "1" for i in range(257)}},
    {"container__name": "-x"},
    {"container__name": "a" * 64},
    {"container__stop_timeout": 86401},
    {"container__devices": "/dev/kfd"},
    {"container__devices": [1]},
    {"container__group_add": [1.5]},
    {"container__group_add": [True]},
    {"container__ulimits": {"memlock": "-1"}},
    {"container__ulimits": {"nofile": {"soft": 1}}},
    {"container__ulimits": {"nofile": {"soft": -2, "hard": 1}}},
    {"container__labels": {"x": 1}},
    {"container__tmpfs": None},
    {"container__shm_size": 1.5},
    {"container__shm_size": True},
    {"container__volumes": ["/a:/a"] * 65},
    {"container__engine": "nerdctl"},
]
# The loader refuses these, the schema cannot say so: 8.0 is an integer to JSON Schema, and JSON has no other text.
ONLY_THE_LOADER: list[dict[str, Any]] = [{"gpu__count": 8.0}, {"args__port": 8000.0}, {"host": "a\x1bb"}]


def both(changes: dict[str, Any]) -> tuple[bool, bool]:
    """(the schema takes it, the loader finds no fault of form in it)."""
    raw = patched(**changes)
    return VALIDATOR.is_valid(raw), not parse_deploy(yaml.safe_dump(raw)).reasons


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("changes", FITS, ids=lambda c: repr(c)[:70])
def test_what_fits_is_taken_by_both(changes: dict[str, Any]) -> None:
    assert both(changes) == (True, True)


@pytest.mark.parametrize("changes", DIFFERS, ids=lambda c: repr(c)[:70])
def test_what_does_not_fit_is_refused_by_both(changes: dict[str, Any]) -> None:
    assert both(changes) == (False, False)


@pytest.mark.parametrize("changes", ONLY_THE_LOADER, ids=lambda c: repr(c)[:70])
def test_what_the_schema_cannot_say_the_loader_still_refuses(changes: dict[str, Any]) -> None:
    assert both(changes) == (True, False)


def test_every_key_of_the_table_is_a_key_of_the_schema() -> None:
    """A key that was renamed would leave rows of DIFFERS true for another reason."""
    names = {name for part in (SCHEMA, *SCHEMA["$defs"].values()) for name in part["properties"]}
    keys = {key.split("__")[-1] for row in (*FITS, *DIFFERS) for key in row} - {
        "A", "colour", "paths", "tensor_paralel"}  # fmt: skip
    assert keys <= names
