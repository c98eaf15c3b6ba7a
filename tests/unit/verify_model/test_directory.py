"""A whole directory, judged in process: links by the container's view, index against shards, config against profile."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.envelope import Outcome
from megamoe.verify_model.command import _outcome
from megamoe_atom.problem import Exit, Problem

PRO = {"hidden_size": 7168, "moe_intermediate_size": 3072, "n_routed_experts": 384, "num_experts_per_tok": 6,
       "num_hidden_layers": 61, "vocab_size": 129280, "swiglu_limit": 10.0, "expert_dtype": "fp4",
       "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}  # fmt: skip


def shard(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """tensors: name -> (dtype, shape, bytes); the data are holes in the file, so that real shapes cost nothing."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)


def model(root: Path, *, count: int = 2, index: dict[str, Any] | None = None) -> Path:
    root.mkdir(parents=True)
    (root / "config.json").write_text('{"model_type": "demo"}')
    (root / "tokenizer.json").write_text("{}")
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    for i, name in enumerate(names):
        shard(root / name, {f"w{i}": ("U8", [4], 4)})
    found = index or {"metadata": {"total_size": 4 * count}, "weight_map": {f"w{i}": n for i, n in enumerate(names)}}
    (root / "model.safetensors.index.json").write_text(json.dumps(found))
    return root


def check(root: Path, *mounts: str, profile: str = "") -> Outcome:
    return _outcome(str(root), list(mounts), profile, "", "")


def codes(outcome: Outcome) -> list[str]:
    return [f.code for f in outcome.findings]


def test_a_snapshot_of_links_is_refused_alone_and_taken_with_the_folder_that_holds_the_blobs(tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--demo"
    root = model(cache / "snapshots" / "abc")
    (cache / "blobs").mkdir()
    for path in list(root.iterdir()):
        path.rename(cache / "blobs" / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    assert set(codes(check(root))) == {"LINK_OUTSIDE_MOUNT"}
    assert codes(check(root, f"{cache}:/models/demo")) == []
    assert set(codes(check(root, f"{root}:/models/demo"))) == {"LINK_OUTSIDE_MOUNT"}


def test_an_absolute_link_needs_its_target_at_the_same_path_in_the_container(tmp_path: Path) -> None:
    root = model(tmp_path / "m")
    blob = tmp_path / "blob"
    (root / "tokenizer.json").rename(blob)
    (root / "tokenizer.json").symlink_to(blob)
    assert codes(check(root, f"{tmp_path}:/models")) == ["LINK_OUTSIDE_MOUNT"]
    assert codes(check(root, f"{tmp_path}:{tmp_path}")) == []
    assert codes(check(root, f"{root}:/m", f"{tmp_path}:{tmp_path}")) == []


def test_a_dangling_link_and_a_link_to_itself_are_named(tmp_path: Path) -> None:
    root = model(tmp_path / "m")
    (root / "a").symlink_to("nowhere")
    (root / "b").symlink_to("b")
    found = check(root)
    assert codes(found) == ["LINK_DANGLING", "LINK_DANGLING"] and found.exit_code is Exit.REFUSED
    assert "which does not exist" in found.findings[0].what and "back to itself" in found.findings[1].what


def test_a_directory_in_no_mount_is_refused(tmp_path: Path) -> None:
    root = model(tmp_path / "m")
    assert "MODEL_NOT_MOUNTED" in codes(check(root, "/srv/other:/m"))
    with pytest.raises(Problem, match="HOST:CONTAINER"):
        check(root, "relative:/m")


@pytest.mark.parametrize(("change", "code"), [
    ({}, None),
    ({"hidden_size": 4096}, "CONFIG_FIELD"),
    ({"swiglu_limit": None}, "CONFIG_SWIGLU"),
    ({"expert_dtype": "fp8"}, "EXPERT_DTYPE"),
    ({"expert_dtype": None}, "EXPERT_DTYPE_HINT"),
    ({"quantization_config": {"quant_method": "gptq"}}, "QUANT_METHOD"),
    ({"expert_dtype": None, "quantization_config": {"quant_method": "mxfp4"}}, None),
])  # fmt: skip
def test_config_json_must_be_what_the_fused_backend_takes(tmp_path: Path, change: dict[str, Any],
                                                          code: str | None) -> None:  # fmt: skip
    root = pro(tmp_path / "m", change)
    found = [c for c in codes(check(root, profile="deepseek-v4-pro")) if c != "REVISION_UNKNOWN"]
    assert found == ([code] if code else [])


def pro(root: Path, change: dict[str, Any], dtype: str = "I8") -> Path:
    """One routed expert of V4-Pro's real shape; the FP8 look-alike has twice the columns."""
    root.mkdir()
    config = {k: v for k, v in {**PRO, **change}.items() if v is not None}
    (root / "config.json").write_text(json.dumps(config))
    (root / "tokenizer.json").write_text("{}")
    columns = 3584 if dtype == "I8" else 7168
    shard(root / "model.safetensors", {"layers.0.ffn.experts.0.w1.weight": (dtype, [3072, columns], 3072 * columns)})
    return root


def test_the_look_alike_is_refused_for_the_profile_and_warned_of_without(tmp_path: Path) -> None:
    root = pro(tmp_path / "m", {}, "F8_E4M3")
    found = check(root, profile="deepseek-v4-pro")
    assert found.exit_code is Exit.REFUSED and "EXPERT_DTYPE" in codes(found)
    alone = check(root)
    assert (alone.status, codes(alone)) == ("warn", ["EXPERT_DTYPE"])
    assert check(pro(tmp_path / "official", {})).status == "pass"


def test_shards_against_the_index(tmp_path: Path) -> None:
    total = model(tmp_path / "a", index={"metadata": {"total_size": 99}, "weight_map": {
        "w0": "model-00001-of-00002.safetensors", "w1": "model-00002-of-00002.safetensors"}})  # fmt: skip
    assert codes(check(total)) == ["INDEX_TOTAL"]
    twice = model(tmp_path / "b")
    shard(twice / "model-00002-of-00002.safetensors", {"w1": ("U8", [4], 4), "w0": ("U8", [4], 4)})
    assert codes(check(twice)) == ["TENSOR_TWICE"]
    empty = model(tmp_path / "c")
    (empty / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert codes(check(empty)) == ["SHARD_DAMAGED"]
    no_index = model(tmp_path / "d")
    (no_index / "model.safetensors.index.json").unlink()
    assert codes(check(no_index)) == ["INDEX_MISSING"]
    climbing = model(tmp_path / "e", index={"weight_map": {"w0": "../outside.safetensors"}})
    assert "SHARD_MISSING" in codes(check(climbing))


@pytest.mark.parametrize("shape", [[10**400], [2] * 65, [1 << 63]], ids=["a huge number", "65 dimensions", "2**63"])
def test_a_hostile_shape_is_refused_in_a_short_message(shape: list[int], tmp_path: Path) -> None:
    root = model(tmp_path / "m")
    shard(root / "model-00001-of-00002.safetensors", {"w0": ("U8", shape, 4)})
    found = check(root)
    assert codes(found) == ["SHARD_DAMAGED"] and len(found.findings[0].what) < 200


def test_resuming_without_checksums_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        _outcome(str(model(tmp_path / "m")), [], "", "", str(tmp_path / "done"))
    assert caught.value.exit_code is Exit.REFUSED and "--manifest" in str(caught.value)
    assert not (tmp_path / "done").exists()


def test_a_fifo_in_the_place_of_a_shard_does_not_wait_for_ever(tmp_path: Path) -> None:
    root = model(tmp_path / "m")
    path = root / "model-00001-of-00002.safetensors"
    path.unlink()
    os.mkfifo(path)
    assert codes(check(root)) == ["SHARD_DAMAGED"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.binary(max_size=60) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(["weight_map", "metadata", "w0"]), c),
    max_leaves=5).map(lambda v: json.dumps(v).encode()), config=st.binary(max_size=30))
def test_no_index_or_config_is_our_bug(tmp_path_factory: pytest.TempPathFactory, index: bytes, config: bytes) -> None:
    root = model(tmp_path_factory.mktemp("x") / "m")
    (root / "model.safetensors.index.json").write_bytes(index)
    (root / "config.json").write_bytes(config)
    for profile in ("", "rehearsal"):
        try:
            check(root, profile=profile)
        except Problem as problem:
            assert problem.exit_code in (Exit.REFUSED, Exit.UNREACHABLE)
