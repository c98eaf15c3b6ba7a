"""A tiny model with random weights, for the real directory format, and a server process on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
from reference_engine.gguf_source import Dimensions, TokenizerFacts
from tokenizers import pre_tokenizers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def facts() -> TokenizerFacts:
    """All bytes as tokens and one merge; specials first, as in SmolLM2."""
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    kinds = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
    return TokenizerFacts(tokens, kinds, ["h e"], "smollm", 1, 2, 0, TEMPLATE)


class TinyModel:
    """What prepare_model needs of a GGUF file: two layers, hidden 64; the MLP has the real 1536 = 6 x 256."""

    dimensions = Dimensions(2, 64, 1536, 2, 1, 260, 256, 10000.0, 1e-5)

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7)

    def tokenizer(self) -> TokenizerFacts:
        return facts()

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) * 0.3

    def weight(self, name: str) -> torch.Tensor:
        return self._random(260, 64) if name == "token_embd.weight" else torch.ones(64)

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_layernorm.weight": torch.ones(64),
            "self_attn.q_proj.weight": self._random(64, 64),
            "self_attn.k_proj.weight": self._random(32, 64),
            "self_attn.v_proj.weight": self._random(32, 64),
            "self_attn.o_proj.weight": self._random(64, 64),
            "post_attention_layernorm.weight": torch.ones(64),
            "mlp.gate_proj.weight": self._random(1536, 64),
            "mlp.up_proj.weight": self._random(1536, 64),
            "mlp.down_proj.weight": self._random(64, 1536),
        }


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


MEGA = {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1"}
MEGA_FLAGS = ["-tp", "2", "--enable-dp-attention", "--enable-expert-parallel"]


class Running:
    """A server process of our own."""

    def __init__(self, model: Path, flags: list[str], environment: dict[str, str], log: Path) -> None:
        self.port, self.log = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = str(model)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "reference_engine",
                    "--model",
                    self.model,
                    "--host",
                    "127.0.0.1",
                    "--server-port",
                    str(self.port),
                    "--max-num-batched-tokens",
                    "32",
                    "--max-num-seqs",
                    "4",
                    *flags,
                ],
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )

    def wait_ready(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        pytest.fail(f"not ready after {timeout_s} s: {self.log.read_text()}")

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"megamoe_engine_{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")
