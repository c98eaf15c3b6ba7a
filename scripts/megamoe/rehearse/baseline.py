"""The dense path's answers to the same questions: what the gate compares the MoE path with.

The dense engine is the same image with `--moe-backend standard`, on this machine's engine, outside the roll-out.
Kept for the same engine, model, questions and policy, so that a second run asks nothing again.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import httpx
from megamoe_atom.problem import Exit, Problem

from megamoe.rehearse.cluster import NETWORK
from megamoe.rehearse.engine import docker, inspect
from megamoe.rehearse.images import run_logged
from megamoe.rehearse.settings import LABEL, PREFIX, Settings

CONTAINER = f"{PREFIX}dense"
POLICY = "rehearsal"


def folder_for(settings: Settings, model: Path) -> Path:
    """Where the answers are kept: named for all that decides them, not for the image, which every commit makes anew."""
    root = settings.root
    parts = [
        settings.questions,
        *filter(None, [settings.fewshot]),
        root / "scripts/megamoe/policies" / f"{POLICY}.toml",
        root / "requirements/engine.lock",
        model / "megamoe_model.json",  # the hash of every file
        *sorted((root / "docker/reference_engine").glob("*.py")),
    ]
    key = hashlib.sha256()
    for part in parts:
        key.update(b"\0" + part.read_bytes())
    return settings.state / "baseline" / key.hexdigest()[:16]


def ensure_baseline(settings: Settings, tag: str, model: Path, log: Path) -> tuple[Path, bool]:
    """Runs the dense engine over the questions unless that was done; returns the folder and whether it was made now.

    Raises:
        Problem: the dense engine did not become healthy ("rehearse_dense", exit 4), or gsm8k could not run.
    """
    dataset = settings.questions
    out = folder_for(settings, model)
    done = out / ".complete"
    if done.is_file():
        return out, False
    address = str(settings.subnet[4])
    if inspect("container", CONTAINER):
        docker("rm", "--force", CONTAINER)
    docker(
        "run", "--detach", "--init", "--name", CONTAINER, "--label", LABEL, "--network", NETWORK, "--ip", address,
        "--volume", f"{model}:/models/rehearsal:ro", tag, "serve", "--model", "/models/rehearsal",
        "--moe-backend", "standard", "--max-num-seqs", "8", "--max-model-len", "2048", "--server-port", "8000",
    )  # fmt: skip
    try:
        _wait_healthy(f"http://{address}:8000/health")
        started = inspect("container", CONTAINER) or {}
        run_logged(
            [
                sys.executable, "-m", "megamoe", "gsm8k", f"http://{address}:8000", "--dataset", str(dataset),
                "--out", str(out), "--policy", POLICY, "--concurrency", "8", "--max-gen-toks", "64",
                "--server-started", started["State"]["StartedAt"], "--image-digest", started["Image"], "--fresh",
                *(["--fewshot", str(settings.fewshot)] if settings.fewshot else []),
            ],
            settings.root, log, "dense baseline", timeout_s=900,
        )  # fmt: skip
    finally:
        docker("rm", "--force", CONTAINER, check=False)
    done.touch()
    return out, True


def _wait_healthy(url: str, deadline_s: float = 300) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet: the deadline below says when that is too long
        if time.monotonic() > end:
            last = docker("logs", "--tail", "3", CONTAINER, check=False).strip() or "it logged nothing"
            raise Problem(
                "rehearse_dense",
                exit_code=Exit.PRECONDITION,
                what=f"the dense engine was not healthy after {deadline_s:.0f} s: {last}",
                why="the gate compares the MoE path with it",
                fix="run it by hand: docker run IMAGE serve --model ... --moe-backend standard",
            )
        time.sleep(1)
