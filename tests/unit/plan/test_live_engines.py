"""The rendered command line on real engines: it starts, and verify-deploy then finds no drift and nothing unknown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

NAME = "i5-live-test"
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def run(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=180, cwd=cwd)


def root_file_system(folder: Path) -> Path:
    """A tar with a shell, `sleep`, their libraries, and `serve`, which stays up."""
    root = folder / "root"
    for tool in ("/bin/sh", "/bin/sleep"):
        found = run("ldd", tool).stdout
        needed = [word for line in found.splitlines() for word in line.split() if word.startswith("/")]
        for path in [tool, *needed]:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(path).resolve(), target)
    serve = root / "bin" / "serve"
    serve.write_text("#!/bin/sh\nexec /bin/sleep 3600\n")
    serve.chmod(0o755)
    for name in ("tmp", "dev", "proc", "sys", "etc"):
        (root / name).mkdir(exist_ok=True)
    with tarfile.open(folder / "root.tar", "w") as tar:
        tar.add(root, ".")
    return folder / "root.tar"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(engine, image id), where the engine can start a container at all."""
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    if name == "podman" and not Path("/run/systemd/private").exists():
        pytest.skip("podman starts health checks as systemd timers, and systemd does not run here")
    made = run(name, "import", "-c", "ENV PATH=/bin", str(root_file_system(tmp_path)), f"{NAME}:1")
    if made.returncode:
        pytest.skip(f"{name} cannot import an image here: {made.stderr.strip()[-200:]}")
    identity = made.stdout.strip().splitlines()[-1]
    identity = identity if identity.startswith("sha256:") else f"sha256:{identity}"
    tried = run(name, "run", "--rm", "--network", "host", f"{NAME}:1", "sh", "-c", "true")
    if tried.returncode:
        run(name, "rmi", f"{NAME}:1")
        pytest.skip(f"{name} cannot start a container here: {tried.stderr.strip()[-200:]}")
    yield name, identity
    run(name, "rm", "-f", NAME)
    run(name, "rmi", "-f", f"{NAME}:1")


CHANGES: list[dict[str, Any]] = [
    {},
    {"ipc": "private", "shm_size": "1g"},
    {"init": False, "tmpfs": ["/scratch:size=64m"], "cap_add": ["SYS_PTRACE"], "cap_drop": ["CHOWN"]},
]


@pytest.mark.parametrize("change", CHANGES, ids=["host-ipc", "private-ipc", "no-init"])
def test_what_plan_renders_starts_and_is_the_plan(engine: tuple[str, str], change: dict[str, Any],
                                                  tmp_path: Path) -> None:
    name, image = engine
    model = tmp_path / "model"
    model.mkdir()
    deploy = {
        "engine": "reference", "image": image, "gpu": {"arch": "cpu", "count": 0, "vram_gib": 0},
        "model": {"path": str(model), "profile": "rehearsal", "weights": "mxfp4"},
        "args": {"max_num_batched_tokens": 8192, "max_num_seqs": 16, "port": 8123},
        "env": {"NOTE": "a b'$(c) \"q\""},
        "container": {
            "engine": name, "name": NAME, "status_dir": str(tmp_path / "status"), "cache_dir": str(tmp_path / "cache"),
            "devices": ["/dev/null"], "group_add": ["44"], "labels": {"site": "x"},
            "ulimits": {"nofile": {"soft": 512, "hard": 1024}}, **change,
        },
    }  # fmt: skip
    (tmp_path / "deploy.yml").write_text(yaml.safe_dump(deploy))
    megamoe = (sys.executable, "-m", "megamoe")
    planned = json.loads(run(*megamoe, "plan", "deploy.yml", "--json", cwd=tmp_path).stdout)
    assert planned["exit_code"] == 0, planned["findings"]
    started = run("bash", "-c", planned["data"]["docker_run"])
    assert started.returncode == 0, started.stderr
    same = json.loads(run(*megamoe, "verify-deploy", "deploy.yml", "--json", cwd=tmp_path).stdout)
    rows = [row for row in same["data"]["fields"] if row["state"] != "same"]
    assert (same["exit_code"], rows) == (0, [])
    deploy["env"]["NOTE"] = "another"
    (tmp_path / "deploy.yml").write_text(yaml.safe_dump(deploy))
    drifted = json.loads(run(*megamoe, "verify-deploy", "deploy.yml", "--json", cwd=tmp_path).stdout)
    assert drifted["exit_code"] == 1
    assert {r["field"] for r in drifted["data"]["fields"] if r["state"] == "drift"} == {
        "env NOTE", "label io.megamoe.plan-hash"}  # fmt: skip
