"""Model directories as downloads, mirrors and mistakes leave them: each with the one code that names what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megamoe.envelope import as_json
from megamoe.verify_model.command import _outcome
from megamoe_atom.problem import Problem
from test_directory import PRO, model, shard

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4294967296\n"


def verdict(root: Path, profile: str = "", manifest: str = "", resume: str = "") -> tuple[set[str], int, str]:
    """(codes, exit code, whole output)"""
    try:
        outcome = _outcome(str(root), [], profile, manifest, resume)
    except Problem as problem:
        return {problem.code}, int(problem.exit_code), str(problem)
    codes = {f.code for f in outcome.findings} - {"REVISION_UNKNOWN"}
    return codes, int(outcome.exit_code), as_json("verify-model", outcome)


def put(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def raw_shard(header: dict[str, Any] | str, data: bytes) -> bytes:
    raw = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin], "data_offsets": [begin, end]}


def cut(name: str, by: int) -> Callable[[Path], None]:
    return lambda root: os.truncate(root / name, (root / name).stat().st_size + by)


def link(name: str, target: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).unlink()
        (root / name).symlink_to(target)

    return change


def remove(*names: str) -> Callable[[Path], None]:
    return lambda root: [(root / n).unlink() for n in names] and None


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for each in changes:
            each(root)

    return change


TWICE = '{"w0": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "w0": {"dtype": "U8", "shape": [4], ' \
    '"data_offsets": [0, 4]}}'  # fmt: skip
KINDS: dict[str, tuple[Callable[[Path], None], set[str], int, tuple[str, ...]]] = {
    "nothing": (lambda root: None, set(), 0, ("complete",)),
    "a shard is one byte short": (cut(ONE, -1), {"SHARD_DAMAGED"}, 2, ("truncated",)),
    "a shard is one byte long": (cut(ONE, 1), {"SHARD_DAMAGED"}, 2, ("trailing",)),
    "a header beyond its file": (put(ONE, struct.pack("<Q", 5000) + b"{}"), {"SHARD_DAMAGED"}, 2, ("5000",)),
    "data that overlap": (put(ONE, raw_shard({"w0": entry(0, 4), "x": entry(2, 6)}, b"abcdef")),
                          {"SHARD_DAMAGED"}, 2, ("starts at 2",)),
    "data with a gap": (put(ONE, raw_shard({"w0": entry(0, 4), "x": entry(8, 12)}, bytes(12))),
                        {"SHARD_DAMAGED"}, 2, ("starts at 8",)),
    "an unknown type": (put(ONE, raw_shard({"w0": entry(0, 4, "F9_E1M1")}, bytes(4))), {"SHARD_DAMAGED"}, 2,
                        ("F9_E1M1",)),
    "a name twice in a header": (put(ONE, raw_shard(TWICE, bytes(4))), {"SHARD_DAMAGED"}, 2, ("twice",)),
    "a web page": (put(ONE, "<!DOCTYPE html><html><title>401</title></html>"), {"SHARD_DAMAGED"}, 2, ("HTML",)),
    "a store's error": (put(ONE, "<?xml version='1.0'?><Error/>"), {"SHARD_DAMAGED"}, 2, ("XML",)),
    "an error in JSON": (put(ONE, '{"error":"Access to this is restricted"}'), {"SHARD_DAMAGED"}, 2, ("restricted",)),
    "a Git LFS pointer": (put(ONE, LFS), {"SHARD_DAMAGED"}, 2, ("git lfs pull",)),
    "a git-annex pointer": (put(ONE, "/annex/objects/SHA256E-s4--" + "a" * 64 + "\n"), {"SHARD_DAMAGED"}, 2,
                            ("git annex get",)),
    "a git-annex link": (link(ONE, ".git/annex/objects/aa/x"), {"LINK_DANGLING"}, 2, ("git annex get",)),
    "config.json is a pointer": (put("config.json", LFS), {"CONFIG_INVALID"}, 2, ("git lfs pull",)),
    "config.json is nested": (put("config.json", "[" * 100_000), {"CONFIG_INVALID"}, 2, ("deep",)),
    "two faults, both told": (both(put("config.json", "{"), cut(ONE, -9)), {"CONFIG_INVALID", "SHARD_DAMAGED"}, 2, ()),
    "a bad index does not hide more": (both(put(INDEX, "<html>"), remove("config.json")),
                                       {"INDEX_INVALID", "CONFIG_MISSING"}, 2, ("HTML",)),
    "the tokenizer is a pointer": (put("tokenizer.json", LFS), {"TOKENIZER_DAMAGED"}, 2, ("git lfs pull",)),
    "the tokenizer is empty": (put("tokenizer.json", ""), {"TOKENIZER_DAMAGED"}, 2, ("empty",)),
    "the tokenizer is cut": (put("tokenizer.json", '{"model": {"a": 1,'), {"TOKENIZER_DAMAGED"}, 2, ("cut short",)),
    "no tokenizer": (remove("tokenizer.json"), {"TOKENIZER_MISSING"}, 0, ()),
    "no chat template": (put("tokenizer_config.json", "{}"), {"CHAT_TEMPLATE_ABSENT"}, 0, ()),
    "a chat template beside it": (both(put("tokenizer_config.json", "{}"), put("chat_template.jinja", "x")), set(), 0,
                                  ()),
    "a leftover": (put("x.incomplete", ""), {"LEFTOVER"}, 0, ()),
    "the hub client's own locks": (put(".cache/huggingface/download/a.lock", ""), set(), 0, ()),
    "the hub client's unfinished file": (put(".cache/huggingface/download/a.incomplete", ""), {"LEFTOVER"}, 0, ()),
    "an index cut to what is there": (both(remove(TWO), put(INDEX, json.dumps({"weight_map": {"w0": ONE}}))),
                                      {"SHARD_COUNT"}, 0, ("count 2",)),
    "a name that differs in case": (put(ONE.upper().replace("SAFET", "safet").replace("ENSORS", "ensors"),
                                        raw_shard({"z": entry(0, 4)}, bytes(4))), {"SHARD_UNINDEXED"}, 0, ()),
    "GGUF only": (both(remove(ONE, TWO, INDEX), put("q.gguf", "GGUF")), {"NO_WEIGHTS"}, 2, ("GGUF",)),
    "PyTorch only": (both(remove(ONE, TWO, INDEX), put("pytorch_model.bin", "PK")), {"NO_WEIGHTS"}, 2, (".bin",)),
    "terminal codes in a name": (put("\x1b[31mx\n.safetensors", raw_shard({"z": entry(0, 4)}, bytes(4))),
                                 {"SHARD_UNINDEXED"}, 0, ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_of_this_kind_gets_its_code(tmp_path: Path, kind: str) -> None:
    change, codes, exit_code, words = KINDS[kind]
    root = model(tmp_path / "m")
    change(root)
    found = verdict(root)
    assert found[:2] == (codes, exit_code), found[2]
    assert all(word in found[2] for word in words), found[2]


def pro_tensors(
    count: int = 384, weight: str = "I8", scale: str | None = "F8_E8M0", block: int = 32
) -> dict[str, tuple[str, list[int], int]]:
    """All routed experts of one layer of V4-Pro, in their real shapes; the data are holes."""
    out = {}
    for expert in range(count):
        for part in ("w1", "w2", "w3"):
            rows, columns = (7168, 3072) if part == "w2" else (3072, 7168)
            name, packed = f"layers.0.ffn.experts.{expert}.{part}.", columns // 2 if weight == "I8" else columns
            out[name + "weight"] = (weight, [rows, packed], rows * packed)
            if scale:
                size = rows * (columns // block) * (4 if scale == "F32" else 1)
                out[name + "scale"] = (scale, [rows, columns // block], size)
    return out


def pro(root: Path, tensors: dict[str, tuple[str, list[int], int]], **config: Any) -> Path:
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps({k: v for k, v in {**PRO, **config}.items() if v is not None}))
    (root / "tokenizer.json").write_text("{}")
    shard(root / "model.safetensors", tensors)
    return root


def without(name: str) -> dict[str, tuple[str, list[int], int]]:
    return {k: v for k, v in pro_tensors().items() if not k.startswith(name)}


SEVEN = "layers.0.ffn.experts.7.w3."
EXPERTS: dict[str, tuple[dict[str, tuple[str, list[int], int]], dict[str, Any], set[str], tuple[str, ...]]] = {
    "official": (pro_tensors(), {}, set(), ()),
    "e8m0 as bytes": (pro_tensors(scale="U8"), {}, set(), ()),
    "the FP8 look-alike": (pro_tensors(weight="F8_E4M3", scale="F32", block=128), {}, {"EXPERT_DTYPE"}, ("FP8",)),
    "blocks of 16": (pro_tensors(block=16), {}, {"EXPERT_SCALE"}, ("[3072, 448]", "[3072, 224]")),
    "float scales": (pro_tensors(scale="F32"), {}, {"EXPERT_SCALE"}, ("F32", "e8m0")),
    "e4m3 scales": (pro_tensors(scale="F8_E4M3"), {}, {"EXPERT_SCALE"}, ("F8_E4M3",)),
    "no scales": (pro_tensors(scale=None), {}, {"EXPERT_SCALE"}, ("no scale",)),
    "256 experts": (pro_tensors(256), {}, {"EXPERTS_COUNT"}, ("256", "384", "experts.256 is missing")),
    "one matrix of one expert is missing": (without(SEVEN), {}, {"EXPERTS_COUNT"}, ("experts.7.w3",)),
    "one expert of another shape": ({**pro_tensors(), SEVEN + "weight": ("I8", [3072, 1792], 3072 * 1792)}, {},
                                    {"EXPERT_SHAPE"}, (SEVEN,)),
    "groups of 16 in config.json": (pro_tensors(), {"quantization_config": {"quant_method": "mxfp4", "group_size": 16}},
                                    {"QUANT_GROUP"}, ("16", "32")),
    "a field is absent": (pro_tensors(), {"num_experts_per_tok": None}, {"CONFIG_FIELD"}, ("is missing",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPERTS)
def test_the_experts_must_be_what_the_kernels_read(tmp_path: Path, kind: str) -> None:
    tensors, config, codes, words = EXPERTS[kind]
    found = verdict(pro(tmp_path / "m", tensors, **config), "deepseek-v4-pro")
    assert found[:2] == (codes, 2 if codes else 0), found[2]
    assert all(word in found[2] for word in words), found[2]


def test_another_revision_is_refused(tmp_path: Path) -> None:
    root = pro(tmp_path / "hub" / "snapshots" / ("a" * 40), pro_tensors())
    assert verdict(root, "deepseek-v4-pro")[:2] == ({"REVISION"}, 2)


def sums(root: Path, form: str = "{d}  {n}\n") -> str:
    return "".join(form.format(d=hashlib.sha256((root / n).read_bytes()).hexdigest(), n=n) for n in (ONE, TWO))


@pytest.mark.parametrize(("change", "codes", "exit_code", "word"), [
    (lambda text: text, set(), 0, ""),
    (lambda text: text.replace("\n", "\r\n"), set(), 0, ""),
    (lambda text: text.replace("  ", " *"), set(), 0, ""),
    (lambda text: text.replace("  m", "  ./m"), set(), 0, ""),
    (lambda text: "".join(line[:64].upper() + line[64:] for line in text.splitlines(True)), set(), 0, ""),
    (lambda text: "".join(f"SHA256 ({x[66:]}) = {x[:64]}\n" for x in text.splitlines()), set(), 0, ""),
    (lambda text: "0" * 8 + text[8:], {"CHECKSUM"}, 2, "00000000"),
    (lambda text: text.splitlines(True)[0], {"MANIFEST_PARTIAL"}, 0, TWO),
    (lambda text: "# nothing\n\n", {"manifest_empty"}, 2, "no checksum"),
    (lambda text: "d41d8cd98f00b204e9800998ecf8427e  " + ONE + "\n", {"manifest_line"}, 2, "sha256"),
    (lambda text: text.replace("  m", "  ../m"), {"manifest_line"}, 2, ":1:"),
], ids=["plain", "CRLF", "binary marks", "./ names", "upper case", "BSD", "wrong", "partial", "empty", "md5", "climbs"])
def test_a_manifest_in_any_form_is_checked_or_refused(
        tmp_path: Path, change: Callable[[str], str], codes: set[str], exit_code: int, word: str) -> None:
    root = model(tmp_path / "m")
    (tmp_path / "sums").write_bytes(change(sums(root)).encode())
    found = verdict(root, manifest=str(tmp_path / "sums"))
    assert found[:2] == (codes, exit_code) and word in found[2]


@pytest.mark.parametrize("state", [b"\xff\xfe{", b'{"model-00001-of-00002.safetensors": [1, 2]}', b"[1]", b"[" * 99999])
def test_a_resume_file_of_another_kind_is_started_anew(tmp_path: Path, state: bytes,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path / "m")
    (tmp_path / "sums").write_text(sums(root))
    (tmp_path / "state").write_bytes(state)
    assert verdict(root, manifest=str(tmp_path / "sums"), resume=str(tmp_path / "state"))[:2] == (set(), 0)
    assert "checksum 2/2" in capsys.readouterr().err
    # An interrupted run goes on where it was: only the file that changed is read again.
    os.utime(root / TWO)
    assert verdict(root, manifest=str(tmp_path / "sums"), resume=str(tmp_path / "state"))[:2] == (set(), 0)
    assert capsys.readouterr().err.strip() == f"checksum 2/2 {TWO}"


def test_a_resume_file_that_cannot_be_written_is_refused_before_data_is_read(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path / "m")
    (tmp_path / "sums").write_text(sums(root))
    found = verdict(root, manifest=str(tmp_path / "sums"), resume=str(tmp_path / "no" / "state"))
    assert found[:2] == ({"resume_unwritable"}, 3) and capsys.readouterr().err == ""


def test_what_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\3\0\0\0")
    assert "GGUF" in verdict(tmp_path / "x.gguf")[2]
    assert "there is no such directory" in verdict(tmp_path / "none")[2]
    (tmp_path / "empty").mkdir()
    codes, exit_code, text = verdict(tmp_path / "empty")
    assert (codes, exit_code) == ({"NO_WEIGHTS", "CONFIG_MISSING", "TOKENIZER_MISSING"}, 2) and "it is empty" in text
    model(tmp_path / "models--x--y" / "snapshots" / "abc")
    assert "snapshots/abc" in verdict(tmp_path / "models--x--y")[2]


def test_six_hundred_shards_take_seconds(tmp_path: Path) -> None:
    """3,000 shards of 100 tensors took 82 s while each shard looked through the whole index, and 3.6 s since."""
    root = tmp_path / "m"
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / "tokenizer.json").write_text("{}")
    names: dict[str, str] = {}
    for number in range(1, 601):
        name = f"model-{number:05}-of-00600.safetensors"
        tensors = {f"layer{number}.t{i}": ("U8", [1], 1) for i in range(100)}
        shard(root / name, tensors)
        names |= dict.fromkeys(tensors, name)
    (root / INDEX).write_text(json.dumps({"weight_map": names}))
    begin = time.process_time()
    assert verdict(root)[:2] == (set(), 0)
    assert time.process_time() - begin < 3
