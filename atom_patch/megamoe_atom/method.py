"""The MoE method that ATOM uses when MegaMoE is on: a subclass made from the Mxfp4MoEMethod that is handed in.

It overrides two hooks, the layout step and the choice of the experts. create_weights, routing and apply() stay ATOM's.
Source of the hooks' order: ROCm/ATOM e3f9eb45c atom/model_loader/loader.py, load_model, and models/deepseek_v4.py,
load_weights (which calls the layout step a second time).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from megamoe_atom.experts import Geometry, MegaExperts
from megamoe_atom.layout import ConvertedLayer, convert_layer_tensors, release
from megamoe_atom.problem import Exit, Problem, Reason
from megamoe_atom.support import LAYER_ROWS, SupportInputs, of_layer, reasons_against

if TYPE_CHECKING:
    from megamoe_atom.factory import Runtime

_WEIGHTS = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")


def raw_bytes(layer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Raw uint8 views: w13 [E, 2I, H/2], its scale [E, 2I, H/32], w2 [E, H, I/2], its scale [E, H, I/32]."""
    w13, w13_scale, w2, w2_scale = (getattr(layer, name).data.view(torch.uint8) for name in _WEIGHTS)
    return w13, w13_scale, w2, w2_scale


def layer_reasons(layer: Any, method: Any) -> list[Reason]:
    """Why this layer, as constructed, cannot run on MegaMoE: support.py's rows for it."""
    return [r for r in reasons_against(of_layer(SupportInputs(), layer, method)) if r.code in LAYER_ROWS]


class NotReady:
    """`fused_experts` between the two hooks, so that no call can take ATOM's own path on the emptied weights."""

    def __init__(self, layer: str) -> None:
        self._layer = layer

    def __call__(self, **_standard: Any) -> torch.Tensor:
        raise Problem(
            "not_ready",
            what=f"{self._layer} was called before its init_prepare_finalize",
            why="its raw weights are converted and emptied, and no kernel is bound to it yet",
            fix="load the model through ATOM's load_model, which calls both hooks",
            exit_code=Exit.PRECONDITION,
        )


@functools.cache
def mega_method_class(base: Any) -> type[Any]:
    """A subclass of ATOM's Mxfp4MoEMethod, which is handed in so that this module imports nothing of ATOM."""

    class MegaMxfp4MoEMethod(base):  # type: ignore[misc]
        fused_experts: Any

        def __init__(self, quant_config: Any, moe: Any, *, runtime: Runtime) -> None:
            super().__init__(quant_config, moe)
            # Triton's branches come before fused_experts in apply() and would silently switch MegaMoE off.
            self.use_triton = False
            self.use_triton_decode = False
            self._runtime = runtime
            self._converted: ConvertedLayer | None = None

        def process_weights_after_loading(self, layer: Any) -> None:
            """Converts once; ATOM's second call finds nothing left to do."""
            if self._converted is not None:
                if layer.w13_weight.numel():
                    raise Problem(
                        "weights_reloaded",
                        what=f"{layer.layer_name} was given new raw weights after its conversion",
                        why="captured graphs hold the converted weights' address; the new ones would be ignored",
                        fix="restart the service to serve other weights",
                        exit_code=Exit.PRECONDITION,
                    )
                return
            geometry = self._runtime.geometry(layer, self)
            raw = raw_bytes(layer)
            self._runtime.capture(layer.layer_name, geometry, raw)
            # In place: the layer's memory stays where it is, and no second copy of 1 GiB is needed.
            self._converted = convert_layer_tensors(*raw, gate_up=geometry.gate_up, in_place=True)
            release(*(getattr(layer, name) for name in _WEIGHTS))
            self._geometry: Geometry = geometry
            self.fused_experts = NotReady(layer.layer_name)

        def init_prepare_finalize(self, layer: Any) -> None:
            """Sets fused_experts. No mori dispatch op is built: unused, it would take up to 3.8 GiB of heap."""
            if isinstance(self.fused_experts, MegaExperts):
                return
            if self._converted is None:
                self.process_weights_after_loading(layer)
            assert self._converted is not None
            self.moe_quant_config = self.get_fused_moe_quant_config(layer)
            self._runtime.initialise_shmem()
            self.fused_experts = self._runtime.add_layer(layer.layer_name, self._geometry, self._converted)

    MegaMxfp4MoEMethod.__qualname__ = MegaMxfp4MoEMethod.__name__
    return MegaMxfp4MoEMethod
