"""verify-model: look-alikes, checksums and damaged headers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.deploy.profiles import load_profile
from megamoe.verify_model.experts import experts
from megamoe.verify_model.headers import BadHeader, Tensor, read_header
from megamoe.verify_model.manifest import manifest

PRO = load_profile("deepseek-v4-pro")
NAME = "layers.0.ffn.experts.0.w1.weight"


def test_packed_fp4_experts_of_the_profiles_shape_are_taken() -> None:
    assert experts({NAME: Tensor("I8", (3072, 3584))}, PRO) == []


def test_the_fp8_look_alike_is_refused() -> None:
    assert [f.code for f in experts({NAME: Tensor("F8_E4M3", (3072, 7168))}, PRO)] == ["EXPERT_DTYPE"]


def test_another_geometry_is_refused() -> None:
    assert [f.code for f in experts({NAME: Tensor("I8", (2048, 2048))}, PRO)] == ["EXPERT_SHAPE"]


def test_the_rehearsal_models_experts_are_taken() -> None:
    name = "model.layers.0.mlp.experts.5."
    tensors = {name + "w1.weight": Tensor("I8", (256, 384)), name + "w2.weight": Tensor("I8", (768, 128))}
    assert experts(tensors, load_profile("rehearsal")) == []


def test_checksums_resume_and_a_changed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    sums, state = tmp_path / "SHA256SUMS", tmp_path / "state"
    sums.write_text(f"{hashlib.sha256(b'one').hexdigest()}  a\n", encoding="utf-8")
    assert manifest(tmp_path, sums, state) == []
    assert state.is_file()
    (tmp_path / "a").write_bytes(b"two!")
    assert [f.code for f in manifest(tmp_path, sums, state)] == ["CHECKSUM"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, 200), body=st.binary(max_size=100))
def test_no_header_is_our_bug(tmp_path: Path, length: int, body: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + body)
    try:
        read_header(path)
    except BadHeader as error:
        assert str(error)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4294967296\n")
    with pytest.raises(BadHeader, match=r"Git LFS pointer.*git lfs pull"):
        read_header(path)
