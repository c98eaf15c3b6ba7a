"""The MLPs as 6-expert MoE layers: the checkpoint's raw mxfp4 experts, converted by the adapter, run by its kernel.

W ranks are simulated in this process. Each holds its share of every layer's experts in the shuffled layouts, and each
brings its share of the tokens, as under DP attention. Every token goes to all experts with weight 1.0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megamoe_atom.layout import ConvertedLayer, convert_layer_tensors
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.quant import dequantize_mxfp4
from megamoe_atom.reference import MegaMoE, ReferenceGroup

from reference_engine.checkpoint import ModelConfig, Weights
from reference_engine.evidence import Evidence

log = logging.getLogger("reference_engine")
SELFTEST_TOKENS = 16
SELFTEST_BOUND = 0.10  # relL2 of a8w4 against float32; upstream's own bound (FlyDSL tests/kernels/test_mega_moe.py)


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


def convert(raw: RawRank, *, rank: int, fault: str | None) -> ConvertedLayer:
    """Raw to shuffled by the adapter; a planted fault damages the result the way a wrong recipe would."""
    w2 = raw.w2
    if fault == "expert_zeroed" and rank == 0:
        w2 = w2.clone()
        w2[0] = 0
    # Mis-paired: laid out as separated, while the kernel (a8w4) reads interleaved. Every byte count is the same.
    return convert_layer_tensors(raw.w13, raw.w13_scale, w2, raw.w2_scale, gate_up=fault != "gate_up_mispaired")


def partial(raw: RawRank, x: torch.Tensor) -> torch.Tensor:
    """What one rank's experts give in plain float32, from the raw checkpoint bytes: x [n, H] to [n, H]."""
    total = torch.zeros_like(x)
    for w13, s13, w2, s2 in zip(raw.w13, raw.w13_scale, raw.w2, raw.w2_scale, strict=True):
        gate, up = (x @ dequantize_mxfp4(w13, s13).T).chunk(2, dim=-1)
        total += (F.silu(gate) * up) @ dequantize_mxfp4(w2, s2).T
    return total


class MoeStack:
    """All layers' experts on W simulated ranks, one kernel instance per rank.

    Args:
        mtpr: max tokens per rank of the kernels.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, ranks: int, mtpr: int, fault: str | None) -> None:
        self._config, self.ranks, self._mtpr = config, ranks, mtpr
        generator = torch.Generator().manual_seed(0)
        width = (SELFTEST_TOKENS, config.hidden_size)
        self._probe = F.pad(
            torch.randn(width, generator=generator), (0, config.moe_hidden_padded - width[1])
        ).bfloat16()
        self.layers: list[list[ConvertedLayer]] = []
        self._expected: list[torch.Tensor] = []
        for layer in range(config.num_hidden_layers):
            raws = [load_raw(weights, config, layer, rank, ranks) for rank in range(ranks)]
            # Now, while the raw bytes are at hand; only this small result is kept.
            self._expected.append(torch.stack([partial(raw, self._probe.float()) for raw in raws]).sum(0))
            self.layers.append([convert(raw, rank=rank, fault=fault) for rank, raw in enumerate(raws)])
        self.group = ReferenceGroup(ranks)
        self.kernels = [self._kernel(rank, self.group, mtpr) for rank in range(ranks)]
        for layer in range(config.num_hidden_layers):
            self.bind(layer)
            for kernel in self.kernels:
                kernel.prepare()
        self._ids = torch.arange(config.num_experts_per_tok, dtype=torch.int32).repeat(mtpr, 1)
        self._ones = torch.ones(mtpr, config.num_experts_per_tok, dtype=torch.float32)
        self._evidence = Evidence(
            ranks,
            {
                "kernel": "megamoe_atom.reference",
                "quant": "a8w4",
                "hidden": config.moe_hidden_padded,
                "intermediate": config.moe_intermediate_size,
                "experts": config.n_routed_experts,
                "topk": config.num_experts_per_tok,
                "ep_size": ranks,
                "mtpr": mtpr,
                "layers_converted": config.num_hidden_layers,
                "kernel_instances": 1,
            },
        )

    def _kernel(self, rank: int, group: ReferenceGroup, mtpr: int) -> MegaMoE:
        c, first = self._config, self.layers[0][rank]
        return MegaMoE(
            rank=rank,
            world_size=self.ranks,
            model_dim=c.moe_hidden_padded,
            inter_dim=c.moe_intermediate_size,
            experts=c.n_routed_experts,
            topk=c.num_experts_per_tok,
            quant="a8w4",
            w1=first.w13,
            w1_scale=first.w13_scale,
            w2=first.w2,
            w2_scale=first.w2_scale,
            max_tok_per_rank=mtpr,
            group=group,
            swiglu_limit=c.swiglu_limit,
        )

    def bind(self, layer: int) -> None:
        for kernel, w in zip(self.kernels, self.layers[layer], strict=True):
            kernel.bind(w.w13, w.w13_scale, w.w2, w.w2_scale)

    def launches_total(self) -> int:
        """Forwards of rank 0's kernel since the start, over all layers."""
        return int(self.kernels[0].launches)

    def mlp(self, layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """The layer as the decoder calls it."""
        return lambda x: self.forward(layer, x)

    def prove(self, *, selftest: bool) -> None:
        """Compares every layer's kernel with float32 from the raw weights, before anything is served.

        Raises:
            Problem: a layer is out of bounds (code "selftest_failed", exit 1).
        """
        if not selftest:
            log.warning("SELF-TEST OFF (MEGAMOE_SELFTEST=off): a wrong weight layout would not be noticed here")
            self._evidence.selftest = {"status": "not_run", "why": "MEGAMOE_SELFTEST=off"}
            self.write_status()
            return
        started = time.monotonic()
        figures = []
        for layer, expected in enumerate(self._expected):
            got = self.forward(layer, self._probe[:, : self._config.hidden_size]).float()
            want = expected[:, : self._config.hidden_size]
            figures.append(float((got - want).norm() / want.norm()))
        worst = max(range(len(figures)), key=lambda layer: figures[layer])
        passed = figures[worst] < SELFTEST_BOUND
        self._evidence.selftest = {
            "status": "pass" if passed else "fail",
            "bound": SELFTEST_BOUND,
            "rel_l2": [round(f, 5) for f in figures],
        }
        self.write_status()
        if not passed:
            bad = sum(f >= SELFTEST_BOUND for f in figures)
            raise Problem(
                "selftest_failed",
                exit_code=Exit.CHECK_FAILED,
                what=f"self-test: {bad} of {len(figures)} layers are out of bounds; worst is layer {worst} with "
                f"relL2 {figures[worst]:.3f}, bound {SELFTEST_BOUND}",
                why="the fused kernel and float32 from the raw weights disagree, so the answers would be wrong: "
                "a weight layout, a scale or an expert is not what the kernel reads",
                fix="do not serve; compare the layout step with the kernel's gate mode, and the checkpoint's hashes",
            )
        log.info(
            "self-test: %d layers within relL2 %.2f (worst %.4f, layer %d), %.2f seconds",
            len(figures),
            SELFTEST_BOUND,
            figures[worst],
            worst,
            time.monotonic() - started,
        )

    def write_status(self) -> None:
        """Puts the evidence on disk, one file per rank."""
        self._evidence.write([int(kernel.launches) for kernel in self.kernels])

    def forward(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden] in any float dtype; returns the same shape and dtype.

        Tokens are dealt to the ranks in runs of equal length; a rank with none gets one dummy token, as in ATOM,
        because a kernel refuses an empty batch.
        """
        self.bind(layer)
        padded = F.pad(x.to(torch.bfloat16), (0, self._config.moe_hidden_padded - x.shape[1]))
        share = -(-len(x) // self.ranks)
        parts = [padded[rank * share : (rank + 1) * share] for rank in range(self.ranks)]
        dummy = padded.new_zeros(1, padded.shape[1])
        outs = self.group.forward(
            [
                (part if len(part) else dummy, self._ids[: max(len(part), 1)], self._ones[: max(len(part), 1)])
                for part in parts
            ]
        )
        if layer + 1 == self._config.num_hidden_layers and self._evidence.due():
            self.write_status()
        out = torch.cat([out[: len(part)] for out, part in zip(outs, parts, strict=True)])
        return out[:, : x.shape[1]].to(x.dtype)
