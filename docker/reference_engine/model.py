"""The decoder (Llama's arithmetic) over a KV cache of fixed slots; the MLP of each layer is handed in.

One forward takes the tokens of many sequences at once: every sequence that decodes (one token each) and the chunks of
prompts that are being read. Linear layers see all tokens together; attention is done slot by slot for chunks and
in one call for all decoding slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from reference_engine.checkpoint import ModelConfig, Weights

Mlp = Callable[[torch.Tensor], torch.Tensor]
"""[tokens, hidden] to [tokens, hidden], in the model's dtype."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence.

    slot: KV slot; start: position of the first token; tokens: their ids, at least one.
    """

    slot: int
    start: int
    tokens: list[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer: qkv [(heads + 2 kv_heads) * d, hidden], out [hidden, heads * d], norms [hidden]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    post_norm: torch.Tensor
    mlp: Mlp


def dense_mlp(weights: Weights, layer: int, dtype: torch.dtype) -> Mlp:
    """The MLP as it was trained: down(silu(gate(x)) * up(x))."""
    prefix = f"model.layers.{layer}.mlp."
    gate_up = torch.cat([weights.get(prefix + "gate_proj.weight"), weights.get(prefix + "up_proj.weight")]).to(dtype)
    down = weights.get(prefix + "down_proj.weight").to(dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, down)

    return forward


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in pages that the kernel provides on first write (calloc); torch.zeros would write every page now.

    Zeros and not garbage: attention multiplies masked positions by 0, and 0 * NaN would poison the sum.
    """
    count = dtype.itemsize
    for extent in shape:
        count *= extent
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)


class KvCache:
    """Keys and values: [layers][slots, kv_heads, max_len, head_dim], bfloat16 or float8_e4m3fn.

    Memory is touched only where tokens were written, so unused slots cost nothing.
    """

    def __init__(self, config: ModelConfig, slots: int, max_len: int, dtype: torch.dtype) -> None:
        shape = (slots, config.num_key_value_heads, max_len, config.head_dim)
        self.slots, self.max_len, self.dtype = slots, max_len, dtype
        self.keys = [_zeros(shape, dtype) for _ in range(config.num_hidden_layers)]
        self.values = [_zeros(shape, dtype) for _ in range(config.num_hidden_layers)]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one slot to another."""
        for cache in (*self.keys, *self.values):
            cache[target, :, :length] = cache[source, :, :length]


class Model:
    """Weights and arithmetic. Not safe for two threads at once: one scheduler owns it."""

    def __init__(
        self, config: ModelConfig, weights: Weights, mlps: list[Mlp], dtype: torch.dtype, max_len: int
    ) -> None:
        self.config, self.dtype = config, dtype
        self.embedding = weights.get("model.embed_tokens.weight").to(dtype)  # tied: also the output head
        self.norm = weights.get("model.norm.weight").to(dtype)
        self.layers = []
        for index, mlp in enumerate(mlps):
            prefix = f"model.layers.{index}."
            attention = [weights.get(f"{prefix}self_attn.{part}_proj.weight").to(dtype) for part in "qkv"]
            self.layers.append(
                Layer(
                    weights.get(prefix + "input_layernorm.weight").to(dtype),
                    torch.cat(attention),
                    weights.get(prefix + "self_attn.o_proj.weight").to(dtype),
                    weights.get(prefix + "post_attention_layernorm.weight").to(dtype),
                    mlp,
                )
            )
        half = config.head_dim // 2
        frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
        # [max_len, 1, d]: one broadcast over heads. Halves are rotated together, as HF's Llama does.
        self._cos = angles.cos().repeat(1, 2).unsqueeze(1)
        self._sin = angles.sin().repeat(1, 2).unsqueeze(1)
        self._sin[..., :half].neg_()

    @torch.inference_mode()
    def forward(self, chunks: list[Chunk], cache: KvCache) -> torch.Tensor:
        """Runs the chunks and writes their keys and values.

        Args:
            chunks: at most one per slot, `end` at most the cache's max_len.
        Returns:
            float32 logits of each chunk's last token, [chunks, vocab].
        """
        c = self.config
        positions = torch.tensor([p for chunk in chunks for p in range(chunk.start, chunk.end)])
        slots = torch.tensor([chunk.slot for chunk in chunks for _ in chunk.tokens])
        x = F.embedding(torch.tensor([t for chunk in chunks for t in chunk.tokens]), self.embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        plan = _AttentionPlan(chunks, c.num_attention_heads, c.num_key_value_heads, self.dtype)
        heads, rotated = c.num_attention_heads, c.num_attention_heads + c.num_key_value_heads
        for index, layer in enumerate(self.layers):
            h = F.rms_norm(x, (c.hidden_size,), layer.input_norm, c.rms_norm_eps)
            qkv = F.linear(h, layer.qkv)
            qkv = qkv.view(*qkv.shape[:-1], -1, c.head_dim)
            qk = qkv[:, :rotated].float()
            qk = (qk * cos + qk.roll(c.head_dim // 2, dims=-1) * sin).to(self.dtype)
            keys, values = cache.keys[index], cache.values[index]
            keys[slots, :, positions] = qk[:, heads:].to(cache.dtype)
            values[slots, :, positions] = qkv[:, rotated:].to(cache.dtype)
            x = x + F.linear(plan.attend(qk[:, :heads], keys, values), layer.out)
            h = F.rms_norm(x, (c.hidden_size,), layer.post_norm, c.rms_norm_eps)
            x = x + layer.mlp(h)
        last = torch.tensor([len(chunk.tokens) for chunk in chunks]).cumsum(0) - 1
        x = F.rms_norm(x[last], (c.hidden_size,), self.norm, c.rms_norm_eps)
        return F.linear(x, self.embedding).float()


class _AttentionPlan:
    """Which rows attend to what in this step; worked out once and used by every layer.

    Grouped-query attention without repeating keys: the query heads that share a kv head become query rows.
    """

    def __init__(self, chunks: list[Chunk], heads: int, kv_heads: int, dtype: torch.dtype) -> None:
        self._kv_heads, self._group, self._dtype = kv_heads, heads // kv_heads, dtype
        offset = 0
        self._prefill: list[tuple[int, int, int, int, torch.Tensor]] = []
        decode_rows, decode_slots, decode_ends = [], [], []
        for chunk in chunks:
            n = len(chunk.tokens)
            if n == 1:
                decode_rows.append(offset)
                decode_slots.append(chunk.slot)
                decode_ends.append(chunk.end)
            else:
                # Row r of the chunk sees positions 0 .. start + r; repeated for each head of the group.
                mask = torch.ones(n, chunk.end, dtype=torch.bool).tril(chunk.start).repeat(self._group, 1)
                self._prefill.append((offset, n, chunk.slot, chunk.end, mask))
            offset += n
        self._rows = torch.tensor(decode_rows)
        self._decode_slots = torch.tensor(decode_slots)
        self._longest = max(decode_ends, default=0)
        # Slots are handed out lowest first, so the decoding ones are nearly always a leading run: then no copy is made.
        self._leading = decode_slots == list(range(len(decode_slots)))
        if decode_rows:
            self._decode_mask = (torch.arange(self._longest) < torch.tensor(decode_ends).unsqueeze(1))[:, None, None, :]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """q [tokens, heads, d], keys and values [slots, kv_heads, max_len, d]; returns [tokens, heads * d]."""
        tokens, heads, d = q.shape
        out = torch.empty_like(q)
        if len(self._rows):
            n = len(self._rows)
            if self._leading:
                k, v = keys[:n, :, : self._longest], values[:n, :, : self._longest]
            else:
                k, v = keys[self._decode_slots, :, : self._longest], values[self._decode_slots, :, : self._longest]
            grouped = q[self._rows].view(n, self._kv_heads, self._group, d)
            attended = F.scaled_dot_product_attention(
                grouped, k.to(self._dtype), v.to(self._dtype), attn_mask=self._decode_mask
            )
            out[self._rows] = attended.reshape(n, heads, d)
        for offset, n, slot, end, mask in self._prefill:
            k, v = keys[slot : slot + 1, :, :end].to(self._dtype), values[slot : slot + 1, :, :end].to(self._dtype)
            grouped = q[offset : offset + n].view(n, self._kv_heads, self._group, d).permute(1, 2, 0, 3)
            attended = F.scaled_dot_product_attention(
                grouped.reshape(1, self._kv_heads, self._group * n, d), k, v, attn_mask=mask
            )
            out[offset : offset + n] = attended.view(heads, n, d).transpose(0, 1)
        return out.view(tokens, heads * d)
