"""What ATOM calls in place of its modular kernel: one callable per layer, one shared MegaMoE instance per geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from megamoe_atom import limits
from megamoe_atom.layout import ConvertedLayer
from megamoe_atom.problem import Exit, Problem


@dataclass(frozen=True, slots=True)
class Geometry:
    """All that a MegaMoE instance depends on; equal on every rank except `rank`.

    hidden, inter, experts (global), topk: the model's. mtpr: tokens per rank, = max_num_batched_tokens, never taken
    from a batch. swiglu_limit: what the kernel applies, 0.0 for none.
    """

    rank: int
    world_size: int
    hidden: int
    inter: int
    experts: int
    topk: int
    quant: str
    mtpr: int
    swiglu_limit: float = 0.0

    @property
    def experts_per_rank(self) -> int:
        return self.experts // self.world_size

    @property
    def heap_bytes(self) -> int:
        """Symmetric heap of this geometry's instance."""
        return limits.megamoe_heap_bytes(
            limits.MoeGeometry(
                self.hidden, self.inter, self.experts, self.topk, self.world_size, self.mtpr, self.quant
            )
        )

    @property
    def gate_up(self) -> bool:
        """Whether the kernel reads gate and up interleaved: MegaMoE's default for a8w4; a4w4 reads them separated."""
        return self.quant == "a8w4"

    def kernel_arguments(self, layer: ConvertedLayer) -> dict[str, Any]:
        """Keywords of MegaMoE's constructor. The weights are 1-D uint8: the JIT signature depends on dtype and rank."""
        arguments: dict[str, Any] = {
            "rank": self.rank,
            "world_size": self.world_size,
            "model_dim": self.hidden,
            "inter_dim": self.inter,
            "experts": self.experts,
            "topk": self.topk,
            "quant": self.quant,
            "w1": layer.w13,
            "w1_scale": layer.w13_scale,
            "w2": layer.w2,
            "w2_scale": layer.w2_scale,
            "max_tok_per_rank": self.mtpr,
        }
        if self.swiglu_limit > 0:
            arguments["swiglu_limit"] = self.swiglu_limit
        return arguments


class KernelPool:
    """One MegaMoE instance per geometry. Its symmetric buffers are never freed, so a second one must never be built."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build
        self._kernels: dict[Geometry, Any] = {}

    def get(self, geometry: Geometry, layer: ConvertedLayer) -> Any:
        """The instance of this geometry; constructing it is collective, so every rank must come here together."""
        kernel = self._kernels.get(geometry)
        if kernel is None:
            other = [g for g in self._kernels if replace(g, mtpr=geometry.mtpr) == geometry]
            if other:
                raise Problem(
                    "second_mtpr",
                    what=f"mtpr={geometry.mtpr} is asked for, an instance with mtpr={other[0].mtpr} exists",
                    why="ranks that disagree on mtpr use different symmetric buffers and wait for each other for ever",
                    fix="max_num_batched_tokens must be one constant on all ranks and layers",
                    exit_code=Exit.OUR_BUG,
                )
            # Buffers made under inference mode could not be reset in place when ATOM captures graphs outside of it.
            with torch.inference_mode(False), torch.no_grad():
                kernel = self._build(**geometry.kernel_arguments(layer))
            self._kernels[geometry] = kernel
        return kernel

    def __len__(self) -> int:
        return len(self._kernels)

    def geometries(self) -> tuple[Geometry, ...]:
        return tuple(self._kernels)


class MegaExperts:
    """`fused_experts` of one layer. Not an nn.Module, and it does not hold the layer: ATOM's module tree is kept.

    A call binds this layer's four weight pointers and runs the shared kernel. It adds no allocation, no host sync and
    no print of its own. The kernel records pointers at launch, so captured graphs keep each layer's own.
    """

    def __init__(
        self, name: str, geometry: Geometry, layer: ConvertedLayer, pool: KernelPool, *, clone: bool, status: Any = None
    ) -> None:
        """clone: copy the result out of the kernel's output buffer, for a model that keeps it over the next layer.

        status: the rank's LaunchCounter, or None. Replayed graphs do not pass here; it counts them by itself.
        """
        self.name = name
        self.geometry = geometry
        self.layer = layer
        self.calls = 0
        self._pool = pool
        self._clone = clone
        self._status = status
        self._kernel: Any = None
        self._routing_checked = False

    def kernel(self) -> Any:
        """The shared instance (built on first use, on all ranks together), with this layer's weights bound."""
        if self._kernel is None:
            self._kernel = self._pool.get(self.geometry, self.layer)
        kernel, layer = self._kernel, self.layer
        kernel._s1_w1, kernel._s1_w1_scale = layer.w13, layer.w13_scale
        kernel.w2, kernel.w2_scale = layer.w2, layer.w2_scale
        return kernel

    def run(self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """bf16 [n, H], float32 [n, K], integer [n, K] -> bf16 [n, H], a view of the kernel's output buffer.

        Raises:
            Problem: x_shape, mtpr_exceeded, no_tokens, routing_shape, weights_dtype, x_dtype, device (what needs no
                sync; the values of ids and weights are read once, by check_routing).
        """
        if x.ndim != 2 or x.shape[1] != self.geometry.hidden:
            raise _refuse(
                "x_shape",
                f"layer {self.name} got activations of shape {tuple(x.shape)}, hidden is {self.geometry.hidden}",
                "the kernel takes the row's length on trust, and would read other tokens' values",
                "pass [tokens, hidden]",
            )
        tokens = x.shape[0]
        if tokens > self.geometry.mtpr:
            raise _refuse(
                "mtpr_exceeded",
                f"layer {self.name} was called with {tokens} tokens, mtpr is {self.geometry.mtpr}",
                "the symmetric buffers hold mtpr rows per rank; a larger instance on one rank alone would hang all",
                "lower --max-num-batched-tokens (with MTP: max-num-seqs * (k + 1) counts too), equally on all ranks",
            )
        if tokens < 1:
            raise _refuse(
                "no_tokens",
                f"layer {self.name} was called with 0 tokens",
                "the quantisation would launch an empty grid while peers wait for this rank",
                "an idle rank must run one dummy token, as ATOM's own idle step does",
            )
        if not topk_weights.shape == topk_ids.shape == (tokens, self.geometry.topk):
            raise _refuse(
                "routing_shape",
                f"layer {self.name} got weights {tuple(topk_weights.shape)} and ids {tuple(topk_ids.shape)} for "
                f"{tokens} tokens and topk={self.geometry.topk}",
                "the kernel reads exactly K of both per token; more columns would be taken for other tokens'",
                "turn the fusion of shared experts off, which adds a column; pass [tokens, topk] of both",
            )
        if topk_weights.dtype != torch.float32:
            raise _refuse(
                "weights_dtype",
                f"layer {self.name} got routing weights of {topk_weights.dtype}",
                "the kernel reads 4-byte words: two bf16 weights would be taken for one float",
                "route in float32, as ATOM's select_experts does",
            )
        if x.dtype != torch.bfloat16:
            raise _refuse(
                "x_dtype",
                f"layer {self.name} got activations of {x.dtype}",
                "the quantisation kernel reads bf16",
                "serve the model in bf16",
            )
        device = self.layer.w13.device
        if not x.device == topk_weights.device == topk_ids.device == device:
            raise _refuse(
                "device",
                f"layer {self.name} lies on {device}, its tokens, weights and ids on {x.device}, "
                f"{topk_weights.device}, {topk_ids.device}",
                "the kernel follows plain addresses, and one of another device is a memory fault",
                "route on the rank's own GPU",
            )
        with torch.inference_mode(False), torch.no_grad():
            out: torch.Tensor = self.kernel().forward(x, topk_weights, topk_ids)
        self.calls += 1
        if self._status is not None:
            self._status.forward(self.name)
        return out

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        apply_router_weight_on_input: bool = False,
        **_standard: Any,
    ) -> torch.Tensor:
        """As ATOM's apply() calls it. Weights, scales and the limit in `_standard` are the emptied raw ones: unused."""
        if apply_router_weight_on_input:
            raise _refuse(
                "router_weight_on_input",
                f"layer {self.name} was called with apply_router_weight_on_input",
                "MegaMoE applies the routing weight in gemm2's epilogue, so it would be applied in the wrong place",
                "serve this model without MegaMoE",
            )
        if not self._routing_checked:  # the first call of a layer is ATOM's warm-up, before any graph is captured
            check_routing(self.name, topk_weights, topk_ids, self.geometry.experts)
            self._routing_checked = True
        out = self.run(hidden_states, topk_weights, topk_ids)
        return out.clone() if self._clone else out


def check_routing(name: str, topk_weights: torch.Tensor, topk_ids: torch.Tensor, experts: int) -> None:
    """Reads one batch's ids and weights (waits for the device): called once per start, not per call.

    Raises:
        Problem: expert_id, expert_twice, weights_not_finite.
    """
    low, high = int(topk_ids.min()), int(topk_ids.max())
    if low < 0 or high >= experts:
        raise _refuse(
            "expert_id",
            f"{name}: expert ids reach from {low} to {high}, the model has {experts}",
            "the kernel skips such a slot at dispatch and then adds a stale result for it",
            "mask no experts and pad no ids; EPLB and redundant experts are not supported",
        )
    ordered = topk_ids.sort(dim=-1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise _refuse(
            "expert_twice",
            f"{name}: a token names one expert twice",
            "fixed-slot buffers hold one row per token and expert",
            "load real weights; dummy weights give hash layers identical ids",
        )
    if not bool(torch.isfinite(topk_weights).all()):
        raise _refuse(
            "weights_not_finite",
            f"{name}: a routing weight is not finite",
            "every output that it touches is lost",
            "check the router's weights",
        )


def _refuse(code: str, what: str, why: str, fix: str) -> Problem:
    return Problem(code, what=what, why=why, fix=fix, exit_code=Exit.PRECONDITION)
