"""Dummy ids for ATOM's warm-up, and the pre-warm of every token bucket.

ATOM's warm-up uses id 0 for all tokens: every row picks the same experts, and the same ids stay in the buffers that
graph capture reads. A kernel variant that is first needed while serving would compile for seconds while peers spin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megamoe_atom.factory import current_runtime, requested
from megamoe_atom.problem import Problem

if TYPE_CHECKING:
    import torch

    from megamoe_atom.experts import Geometry, MegaExperts

# A prime above every vocabulary, so i * STRIDE % vocab repeats no id before `vocab` tokens.
STRIDE = 2654435761


def varied_ids(count: int, vocab: int) -> list[int]:
    """`count` token ids in [0, vocab), spread out, the same on every call; distinct while count <= vocab."""
    if vocab < 1:
        raise ValueError(f"vocab={vocab}")
    return [(i * STRIDE + 1) % vocab for i in range(count)]


def warmup_token_ids(count: int, *, runner: Any) -> list[int]:
    """Replaces `[0] * count` in ModelRunner.warmup_model, which every rank runs after loading and before capture.

    Not requested: exactly [0] * count. Otherwise the fused path is first proven on all ranks together, outside
    inference mode.
    Raises:
        Problem: no_layer (requested, and no layer of the model runs on MegaMoE), or the self-test's verdict; the start
            stops here.
    """
    if not requested():
        return [0] * count
    runtime = current_runtime()
    if runtime is None or not runtime.layers:
        raise Problem(
            "no_layer",
            what="MegaMoE was requested, and no layer of this model runs on it",
            why="ATOM made none of its experts for mxfp4 weights, so it would serve another path without a word",
            fix="serve the checkpoint with fp4 experts (not -Base or -FP8), or set ATOM_USE_FLYDSL_FUSED=0",
        )
    runtime.prove_once()
    return varied_ids(count, int(runner.config.hf_config.vocab_size))


def token_buckets(mtpr: int) -> list[int]:
    """1, 2, 4, ... mtpr: the token counts at which the kernels choose another tile or launch geometry."""
    return [1 << i for i in range(mtpr.bit_length())]


def prewarm_batch(
    geometry: Geometry, tokens: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x bf16 [n, H], weights float32 [n, K], ids int32 [n, K]: distinct experts per token, spread over all ranks."""
    import torch

    generator = torch.Generator().manual_seed(1 + geometry.rank)
    x = torch.randn((tokens, geometry.hidden), generator=generator, dtype=torch.float32).to(torch.bfloat16)
    first = torch.arange(tokens, dtype=torch.int64).unsqueeze(1) * geometry.topk + geometry.rank
    ids = ((first + torch.arange(geometry.topk)) % geometry.experts).to(torch.int32)
    weights = torch.full((tokens, geometry.topk), 1.0 / geometry.topk, dtype=torch.float32)
    return x.to(device), weights.to(device), ids.to(device)


def prewarm(layers: list[MegaExperts]) -> list[int]:
    """Runs every token bucket once per geometry, in one order on all ranks. Returns the token counts that ran.

    The first call constructs the kernel (collective). Only the variant's compilation matters, so one layer is enough.
    """
    ran = []
    seen = set()
    for layer in layers:
        if layer.geometry in seen:
            continue
        seen.add(layer.geometry)
        for tokens in token_buckets(layer.geometry.mtpr):
            layer.run(*prewarm_batch(layer.geometry, tokens, layer.layer.w13.device))
            ran.append(tokens)
    return ran
