"""The MLPs as 6-expert MoE layers: the checkpoint's raw mxfp4 experts, converted by the adapter, run by its kernel.

W ranks are simulated in this process. Each holds its share of every layer's experts in the shuffled layouts, and each
brings its share of the tokens, as under DP attention. Every token goes to all experts with weight 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megamoe_atom.layout import ConvertedLayer, convert_layer_tensors, shuffle_w13, shuffle_w13_scale
from megamoe_atom.reference import MegaMoE, ReferenceGroup

from reference_engine.checkpoint import ModelConfig, Weights


@dataclass(frozen=True, slots=True)
class RawRank:
    """One rank's experts of one layer as the checkpoint stores them (uint8).

    w13 [E, 2I, H/2] gate rows first, w13_scale [E, 2I, H/32], w2 [E, H, I/2], w2_scale [E, H, I/32].
    """

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor


def load_raw(weights: Weights, config: ModelConfig, layer: int, rank: int, ranks: int) -> RawRank:
    """Reads one rank's experts of one layer."""
    per_rank = config.n_routed_experts // ranks

    def stacked(part: str) -> torch.Tensor:
        experts = []
        for expert in range(rank * per_rank, (rank + 1) * per_rank):
            prefix = f"model.layers.{layer}.mlp.experts.{expert}."
            names = ("w1", "w3") if part.startswith("w13") else ("w2",)
            kind = "scale" if part.endswith("scale") else "weight"
            experts.append(torch.cat([weights.get(f"{prefix}{name}.{kind}").view(torch.uint8) for name in names]))
        return torch.stack(experts)

    return RawRank(stacked("w13"), stacked("w13_scale"), stacked("w2"), stacked("w2_scale"))


def convert(raw: RawRank, *, layer: int, rank: int, fault: str | None) -> ConvertedLayer:
    """Raw to shuffled by the adapter; a planted fault damages the result the way a wrong recipe would."""
    w2 = raw.w2
    if fault == "expert_zeroed" and rank == 0:
        w2 = w2.clone()
        w2[0] = 0
    converted = convert_layer_tensors(raw.w13, raw.w13_scale, w2, raw.w2_scale)
    if fault == "gate_up_mispaired":
        # What happens when rows are converted as separated and read as interleaved: the bytes of the weights are laid
        # out without pairing gate and up. The scales keep their size by the interleaved form of swapped halves.
        converted.w13.copy_(shuffle_w13(raw.w13, gate_up=False).view(-1))
        half = raw.w13_scale.shape[1] // 2
        converted.w13_scale.copy_(shuffle_w13_scale(raw.w13_scale.roll(half, dims=1).contiguous()).view(-1))
    return converted


class MoeStack:
    """All layers' experts on W simulated ranks, one kernel instance per rank.

    Args:
        mtpr: max tokens per rank of the kernels.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, ranks: int, mtpr: int, fault: str | None) -> None:
        self._config, self.ranks = config, ranks
        self.raw_checks: list[tuple[int, list[RawRank]]] = []
        self.layers = [
            [convert(load_raw(weights, config, layer, rank, ranks), layer=layer, rank=rank, fault=fault)
             for rank in range(ranks)] for layer in range(config.num_hidden_layers)]
        group = ReferenceGroup(ranks)
        self.kernels = [self._kernel(rank, group, mtpr) for rank in range(ranks)]
        for layer in range(config.num_hidden_layers):
            self.bind(layer)
            for kernel in self.kernels:
                kernel.prepare()
        self.group = group
        self._ids = torch.arange(config.num_experts_per_tok, dtype=torch.int32).repeat(mtpr, 1)
        self._ones = torch.ones(mtpr, config.num_experts_per_tok, dtype=torch.float32)

    def _kernel(self, rank: int, group: ReferenceGroup, mtpr: int) -> MegaMoE:
        c, first = self._config, self.layers[0][rank]
        return MegaMoE(
            rank=rank, world_size=self.ranks, model_dim=c.moe_hidden_padded, inter_dim=c.moe_intermediate_size,
            experts=c.n_routed_experts, topk=c.num_experts_per_tok, quant="a8w4", w1=first.w13,
            w1_scale=first.w13_scale, w2=first.w2, w2_scale=first.w2_scale, max_tok_per_rank=mtpr, group=group,
            swiglu_limit=c.swiglu_limit)

    def bind(self, layer: int) -> None:
        for kernel, w in zip(self.kernels, self.layers[layer], strict=True):
            kernel.bind(w.w13, w.w13_scale, w.w2, w.w2_scale)

    @property
    def launches(self) -> int:
        """Forwards of rank 0's kernel since the start, over all layers."""
        return int(self.kernels[0].launches)

    def forward(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden] in any float dtype; returns the same shape and dtype.

        Tokens are dealt to the ranks in runs of equal length; a rank with none gets one dummy token, as in ATOM,
        because a kernel refuses an empty batch.
        """
        self.bind(layer)
        padded = F.pad(x.to(torch.bfloat16), (0, self._config.moe_hidden_padded - x.shape[1]))
        share = -(-len(x) // self.ranks)
        parts = [padded[rank * share:(rank + 1) * share] for rank in range(self.ranks)]
        dummy = padded.new_zeros(1, padded.shape[1])
        outs = self.group.forward([
            (part if len(part) else dummy, self._ids[:max(len(part), 1)], self._ones[:max(len(part), 1)])
            for part in parts])
        out = torch.cat([out[:len(part)] for out, part in zip(outs, parts, strict=True)])
        return out[:, :x.shape[1]].to(x.dtype)
