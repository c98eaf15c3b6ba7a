"""One tiny model directory and one server for all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from engine_support import MEGA, MEGA_FLAGS, Running, TinyModel
from reference_engine.prepare_model import fill
from reference_engine.text import Text


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("tiny-model")
    fill(TinyModel(), directory, {"gguf_sha256": "synthetic", "format": 0})  # type: ignore[arg-type]
    return directory


@pytest.fixture(scope="session")
def text(model_dir: Path) -> Text:
    return Text(model_dir)


@pytest.fixture(scope="session")
def start(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def launch(*flags: str, **environment: str) -> Running:
        log = tmp_path_factory.mktemp("engine") / "log"
        running.append(Running(model_dir, list(flags), environment, log))
        return running[-1]

    yield launch
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def status_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("status")


@pytest.fixture(scope="session")
def server(start: Callable[..., Running], status_dir: Path) -> Running:
    running = start(*MEGA_FLAGS, **MEGA, MEGAMOE_STATUS_DIR=str(status_dir))
    running.wait_ready()
    return running
