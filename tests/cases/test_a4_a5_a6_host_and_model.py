"""Cases A4, A5 and A6 with their twins."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

BASE = Path(__file__).with_name("base.yml").read_text()


def megamoe(*argv: str) -> tuple[int, Any, str]:
    command = [sys.executable, "-m", "megamoe", *argv, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout), done.stdout


def preflight(tmp_path: Path, facts: object) -> tuple[int, Any, str]:
    (tmp_path / "d.yml").write_text(BASE, encoding="utf-8")
    (tmp_path / "f.json").write_text(json.dumps(facts), encoding="utf-8")
    return megamoe("preflight", str(tmp_path / "d.yml"), "--facts", str(tmp_path / "f.json"))


def a4(render: int, groups: list[int], opened: str) -> dict[str, Any]:
    node = {"mode": "0660", "uid": 0, "gid": 992}
    return {"host": {"groups": {"video": 44, "render": 992}, "dev": {"/dev/kfd": node, "/dev/dri/renderD128": node}},
            "image": {"groups": {"video": 44, "render": render}},
            "probe": {"rocm_smi_exit": 0, "container_groups": groups, "open_kfd_rdwr": opened}}


def test_a4_the_number_of_the_hosts_group_is_given(tmp_path: Path) -> None:
    code, body, text = preflight(tmp_path, a4(109, [1000, 44, 109], "EACCES"))
    assert (code, [f["code"] for f in body["findings"]]) == (4, ["DEVICE_PERMISSION"])
    assert "992" in body["findings"][0]["fix"]
    assert not any(word in text for word in ("777", "privileged"))


def test_a4_twin_the_right_groups_give_no_finding(tmp_path: Path) -> None:
    code, body, _ = preflight(tmp_path, a4(992, [1000, 44, 992], "OK"))
    assert (code, body["findings"]) == (0, [])
    assert body["data"]["unknown"], "what was not given is unknown, not fine"


A5: dict[str, Any] = {
    "gpus": [{"id": i, "vram_total_mb": 262128, "vram_used_mb": 46111, "util": 0} for i in (0, 1)],
    "kfd_processes": [{"pid": 3021, "name": "gpuagent", "vram_mb": 0, "alive": True},
                      {"pid": 3077, "name": "rdcd", "vram_mb": 0, "alive": True},
                      {"pid": 51234, "name": "python3", "vram_mb": 0, "alive": False}], "containers": []}


def test_a5_memory_without_an_owner_is_for_the_operator(tmp_path: Path) -> None:
    code, body, text = preflight(tmp_path, A5)
    assert (code, body["findings"][0]["code"]) == (4, "HOST_VRAM_STRANDED")
    assert "drain" in text
    assert "no live owner" in text
    assert not any(pid in text for pid in ("3021", "3077", "51234"))


def test_a5_twin_a_live_owner_is_named(tmp_path: Path) -> None:
    more = [*A5["kfd_processes"], {"pid": 60001, "name": "python3", "vram_mb": 44900, "alive": True}]
    code, body, _ = preflight(tmp_path, {**A5, "kfd_processes": more})
    assert (code, body["findings"][0]["code"]) == (4, "GPU_BUSY")
    assert "60001" in body["findings"][0]["what"]


def shard(path: Path, name: str, *, header_padding: int = 0) -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode() + b" " * header_padding
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")


def model(tmp_path: Path, numbers: tuple[int, ...]) -> Path:
    root = tmp_path / "m"
    root.mkdir()
    (root / "config.json").write_text('{"model_type":"demo"}', encoding="utf-8")
    for i in numbers:
        shard(root / f"model-0000{i}-of-00004.safetensors", f"w{i}")
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": {
        f"w{i}": f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)}}), encoding="utf-8")
    return root


def test_a6_the_missing_shard_and_the_leftover_are_named(tmp_path: Path) -> None:
    root = model(tmp_path, (1, 2, 4))
    (root / "model-00003-of-00004.safetensors.incomplete").touch()
    code, body, text = megamoe("verify-model", str(root))
    assert (code, body["status"]) == (2, "refused")
    assert "model-00003-of-00004.safetensors is in the index" in text
    assert ".incomplete" in text


def test_a6_twin_a_complete_directory_is_ok(tmp_path: Path) -> None:
    assert megamoe("verify-model", str(model(tmp_path, (1, 2, 3, 4))))[0] == 0


def test_a_cut_shard_is_refused_and_a_header_above_100_kb_is_not(tmp_path: Path) -> None:
    root = model(tmp_path, (1, 2, 3, 4))
    shard(root / "model-00002-of-00004.safetensors", "w2", header_padding=120_000)
    assert megamoe("verify-model", str(root))[0] == 0
    os.truncate(root / "model-00004-of-00004.safetensors", 70)
    code, _, text = megamoe("verify-model", str(root))
    assert code == 2
    assert "SHARD_DAMAGED" in text


def test_a_link_that_leaves_the_mount_is_refused_until_the_mount_holds_its_target(tmp_path: Path) -> None:
    root = model(tmp_path, (1, 2, 3, 4))
    blob = tmp_path / "blobs" / "b1"
    blob.parent.mkdir()
    (root / "config.json").rename(blob)
    (root / "config.json").symlink_to("../blobs/b1")
    code, _, text = megamoe("verify-model", str(root), "--mount", f"{root}:/model")
    assert code == 2
    assert "LINK_OUTSIDE_MOUNT" in text
    assert megamoe("verify-model", str(root), "--mount", f"{tmp_path}:/model")[0] == 0
