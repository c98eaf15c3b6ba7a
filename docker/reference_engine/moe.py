"""The MLPs as 6-expert MoE layers: the checkpoint's raw mxfp4 experts, converted by the adapter, run by its kernel.

W ranks are simulated in this process. Each holds its share of every layer's experts in the shuffled layouts, and each
brings its share of the tokens, as under DP attention. Every token goes to all experts with weight 1.0.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import megamoe_atom
import torch
import torch.nn.functional as F
from megamoe_atom.experts import Geometry
from megamoe_atom.layout import ConvertedLayer, convert_layer_tensors
from megamoe_atom.problem import Problem
from megamoe_atom.reference import MegaMoE, ReferenceGroup
from megamoe_atom.selftest import RankInput, SelfTest
from megamoe_atom.status import RankStatus, SelftestState, StatusWriter

from reference_engine.checkpoint import ModelConfig, Weights

log = logging.getLogger("reference_engine")


class RawRank(NamedTuple):
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


def _number(name: str) -> int:
    """Layer number of a self-test name, "layers.N"."""
    return int(name.rpartition(".")[2])


class MoeStack:
    """All layers' experts on W simulated ranks, one kernel instance per rank.

    Args:
        mtpr: max tokens per rank of the kernels.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, *, ranks: int, mtpr: int, fault: str | None, selftest: bool = True
    ) -> None:
        self._config, self.ranks, self._mtpr = config, ranks, mtpr
        self._selftest = SelfTest(group_sum=lambda table: table, local_ranks=range(ranks)) if selftest else None
        self.layers: list[list[ConvertedLayer]] = []
        for layer in range(config.num_hidden_layers):
            converted = []
            for rank in range(ranks):
                raw = load_raw(weights, config, layer, rank, ranks)
                if self._selftest is not None:  # now, while the raw bytes are at hand; it keeps small results only
                    self._selftest.capture(f"layers.{layer}", self._geometry(rank), *raw)
                converted.append(convert(raw, rank=rank, fault=fault))
            self.layers.append(converted)
        self.group = ReferenceGroup(ranks)
        self.kernels = [self._kernel(rank, self.group) for rank in range(ranks)]
        for layer in range(config.num_hidden_layers):
            self.bind(layer)
            for kernel in self.kernels:
                kernel.prepare()
        self._ids = torch.arange(config.num_experts_per_tok, dtype=torch.int32).repeat(mtpr, 1)
        self._ones = torch.ones(mtpr, config.num_experts_per_tok, dtype=torch.float32)
        directory = os.environ.get("MEGAMOE_STATUS_DIR")
        self._status = [self._writer(Path(directory), rank) for rank in range(ranks)] if directory else []

    def _writer(self, directory: Path, rank: int) -> StatusWriter:
        """The same evidence as on a GPU, one file per simulated rank. There is no heap here, so none is claimed."""
        geometry = {k: v for k, v in asdict(self._geometry(rank)).items() if k != "rank"}
        names = [f"layers.{layer}" for layer in range(self._config.num_hidden_layers)]
        status = RankStatus(rank, self.ranks, geometry, self._mtpr, layers_converted=names, kernel_instances=1)
        status.versions = {"adapter": megamoe_atom.__version__, "kernel": "megamoe_atom.reference"}
        return StatusWriter(directory, status)

    def _geometry(self, rank: int) -> Geometry:
        c = self._config
        return Geometry(
            rank,
            self.ranks,
            c.moe_hidden_padded,
            c.moe_intermediate_size,
            c.n_routed_experts,
            c.num_experts_per_tok,
            "a8w4",
            self._mtpr,
            c.swiglu_limit or 0.0,
        )

    def _kernel(self, rank: int, group: ReferenceGroup) -> MegaMoE:
        geometry = self._geometry(rank)
        return MegaMoE(**geometry.kernel_arguments(self.layers[0][rank]), group=group)

    def bind(self, layer: int) -> None:
        for kernel, w in zip(self.kernels, self.layers[layer], strict=True):
            kernel.bind(w.w13, w.w13_scale, w.w2, w.w2_scale)

    def launches_total(self) -> int:
        """Forwards of rank 0's kernel since the start, over all layers."""
        return int(self.kernels[0].launches)

    def mlp(self, layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """The layer as the decoder calls it."""
        return lambda x: self.forward(layer, x)

    def prove(self) -> None:
        """Runs the adapter's self-test on every layer, before anything is served.

        Raises:
            Problem: a layer is out of bounds (code "selftest", exit 1).
        """
        if self._selftest is None:
            log.warning("SELF-TEST OFF (MEGAMOE_SELFTEST=off): a wrong weight layout would not be noticed here")
            self._record("off", {})
            return
        started = time.monotonic()
        try:
            report = self._selftest.verify(self._run, lambda name, rank: self.layers[_number(name)][rank])
        except Problem:
            self._record("failed", {})
            raise
        worst = max(report.layers, key=lambda r: max(r.rel_quiet, r.rel_loud))
        self._record("passed", {r.layer: max(r.rel_quiet, r.rel_loud) for r in report.layers})
        log.info(
            "self-test: %d layers passed (worst relL2 %.4f, %s; %d repeats each bit-equal), %.2f seconds",
            len(report.layers),
            max(worst.rel_quiet, worst.rel_loud),
            worst.layer,
            worst.repeats,
            time.monotonic() - started,
        )

    def _run(self, name: str, inputs: Sequence[RankInput]) -> list[torch.Tensor]:
        self.bind(_number(name))
        return self.group.forward(inputs)

    def write_status(self) -> None:
        """Puts the evidence on disk, one file per rank."""
        for writer in self._status:
            writer.write()

    def _record(self, state: SelftestState, figures: dict[str, float]) -> None:
        for writer in self._status:
            writer.status.selftest_state, writer.status.selftest = state, figures
        self.write_status()

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
        for writer in self._status:
            writer.forward(f"layers.{layer}")
        out = torch.cat([out[: len(part)] for out, part in zip(outs, parts, strict=True)])
        return out[:, : x.shape[1]].to(x.dtype)
