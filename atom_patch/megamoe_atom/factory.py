"""The call that the edits put at ATOM's construction sites, and the process-wide runtime behind it.

Not requested: the factory returns ATOM's own class, constructed as before, and nothing else of the adapter is imported.
Requested and impossible: a Problem at start-up. Never a silent fall-back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from megamoe_atom.problem import Exit, Problem, Reason

if TYPE_CHECKING:
    import torch

    from megamoe_atom.experts import Geometry, MegaExperts
    from megamoe_atom.graphs import LaunchCounter
    from megamoe_atom.layout import ConvertedLayer
    from megamoe_atom.selftest import Report, SelfTest
    from megamoe_atom.status import SelftestState, StatusWriter

log = logging.getLogger("megamoe_atom")
SWITCHES = ("ATOM_USE_FLYDSL", "ATOM_USE_FLYDSL_FUSED")


def requested(environment: Mapping[str, str] | None = None) -> bool:
    """Whether both switches of the contract are on."""
    env = os.environ if environment is None else environment
    # As settings.py reads a switch; a value that is neither counts as requested, and parsing then refuses it by name.
    return all(env.get(name, "0").strip().lower() not in ("", "0", "off", "false", "no") for name in SWITCHES)


def mxfp4_moe_method(base: Any, quant_config: Any, moe: Any, *, layer: Any, config: Callable[[], Any]) -> Any:
    """Replaces `Mxfp4MoEMethod(quant_config, moe)` in FusedMoE.

    Args:
        base: ATOM's Mxfp4MoEMethod; quant_config, moe: its arguments.
        layer: the FusedMoE that is being constructed. config: returns ATOM's config; only called when requested.
    """
    if not requested():
        return base(quant_config, moe)
    from megamoe_atom.method import mega_method_class

    return mega_method_class(base)(quant_config, moe, runtime=runtime(config))


class Runtime:
    """What one process (one EP rank) holds for all its MegaMoE layers."""

    def __init__(
        self,
        *,
        build: Callable[..., Any],
        initialise_shmem: Callable[[], Any],
        swiglu_in_kernel: bool,
        clone: bool,
        quant: str = "a8w4",
        selftest: SelfTest | None = None,
        accept_no_swiglu_limit: bool = False,
        check: Callable[[Any, Any, Geometry, int], list[Reason]] = lambda _layer, _method, _geometry, _taken: [],
        status: Callable[[Geometry], StatusWriter] | None = None,
        graphs: Any = None,
        mtpr: int | None = None,
    ) -> None:
        """build: MegaMoE's constructor. swiglu_in_kernel: whether it takes a swiglu_limit. clone: see MegaExperts.

        check: reasons against a layer's whole configuration, given the heap that kernels of other sizes take.
        status: makes the rank's StatusWriter.
        graphs: the class of captured graphs, whose replays are counted. mtpr: ATOM_MEGA_MTPR, when it was given.
        """
        from megamoe_atom.experts import KernelPool

        self.pool = KernelPool(build)
        self.layers: dict[str, MegaExperts] = {}
        self.selftest = selftest
        self.initialise_shmem = initialise_shmem
        self.proven = False
        self._quant = quant
        self._clone = clone
        self._swiglu_in_kernel = swiglu_in_kernel
        self._accept_no_limit = accept_no_swiglu_limit
        self._check = check
        self._make_status = status
        self._graphs = graphs
        self._mtpr = mtpr
        self._unapplied_limit = 0.0
        self._geometries: set[Geometry] = set()
        self.status: StatusWriter | None = None
        self._launches: LaunchCounter | None = None

    def geometry(self, layer: Any, method: Any) -> Geometry:
        """The kernel's geometry of a layer. mtpr is ATOM_MEGA_MTPR or the configured maximum, never a batch's size.

        Raises:
            Problem: every reason against this layer, each code once: how ATOM built it, mtpr, swiglu_limit (the kernel
                has none and that was not acknowledged), and whatever `check` finds.
        """
        from megamoe_atom.experts import Geometry
        from megamoe_atom.limits import mtpr_reasons
        from megamoe_atom.method import layer_reasons
        from megamoe_atom.support import swiglu_reason

        parallel = layer.moe_parallel_config
        mtpr = int(layer.moe_config.max_num_tokens) if self._mtpr is None else self._mtpr
        reasons = layer_reasons(layer, method) + mtpr_reasons(mtpr)
        limit = float(getattr(layer, "swiglu_limit", 0.0) or 0.0)
        if limit > 0 and not self._swiglu_in_kernel:
            if not self._accept_no_limit:
                reasons.append(swiglu_reason(limit))
            self._unapplied_limit, limit = limit, 0.0
        geometry = Geometry(
            rank=int(parallel.ep_rank),
            world_size=int(parallel.ep_size),
            hidden=int(method.hidden_size),
            inter=int(method.intermediate_size),
            experts=int(layer.global_num_experts),
            topk=int(layer.top_k),
            quant=self._quant,
            mtpr=mtpr,
            swiglu_limit=limit,
        )
        taken = sum(other.heap_bytes for other in self._geometries - {geometry})
        reasons += self._check(layer, method, geometry, taken)
        if reasons:
            once: dict[str, Reason] = {}
            for reason in reasons:
                once.setdefault(reason.code, replace(reason, what=f"{layer.layer_name}: {reason.what}"))
            raise Problem.of(list(once.values()), exit_code=Exit.REFUSED)
        self._geometries.add(geometry)
        return geometry

    def capture(self, name: str, geometry: Geometry, raw: tuple[torch.Tensor, ...]) -> None:
        """Lets the self-test compute its expectation while the raw weights are still there."""
        if self.selftest is not None:
            self.selftest.capture(name, geometry, *raw)

    def add_layer(self, name: str, geometry: Geometry, converted: ConvertedLayer) -> MegaExperts:
        from megamoe_atom.experts import MegaExperts

        if self.status is None and self._make_status is not None:
            from megamoe_atom.graphs import LaunchCounter

            self.status = self._make_status(geometry)
            self._launches = LaunchCounter(self.status)
            if self._graphs is not None:
                self._launches.watch(self._graphs)
        experts = MegaExperts(name, geometry, converted, self.pool, clone=self._clone, status=self._launches)
        self.layers[name] = experts
        if self.status is not None:
            self.status.status.layers_converted.append(name)
        return experts

    def prove_once(self) -> None:
        """Pre-warm and self-test, on all ranks together, once per process; raises when a layer is out of bounds."""
        if self.proven or not self.layers:
            return
        from megamoe_atom.warmup import prewarm

        prewarm(list(self.layers.values()))
        state: SelftestState = "off"
        try:
            if self.selftest is not None:
                state = "failed"
                self.selftest.verify_own(self.layers)
                state = "passed"
        finally:
            self._record(state)
        self._tell()
        self.proven = True

    @property
    def report(self) -> Report | None:
        return None if self.selftest is None else self.selftest.report

    def _tell(self) -> None:
        """The verdict in the log; loud where it proves less than it could."""
        if self.report is None:
            log.warning("SELF-TEST OFF (MEGAMOE_SELFTEST=0): wrong weights or a wrong layout would not be noticed here")
        else:
            worst = max(self.report.layers, key=lambda layer: max(layer.rel_quiet, layer.rel_loud))
            log.info(
                "self-test: %d layers passed, worst relL2 %.4f (%s)",
                len(self.report.layers), max(worst.rel_quiet, worst.rel_loud), worst.layer,
            )  # fmt: skip
        if self._unapplied_limit:
            log.warning(
                "THE MODEL'S SWIGLU LIMIT %g IS NOT APPLIED (MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT=1): the kernels have "
                "none%s",
                self._unapplied_limit,
                "" if self.report is None else ", and the self-test compared them with the unlimited arithmetic",
            )

    def _record(self, state: SelftestState) -> None:
        """Writes the verdict into this rank's evidence, also when it is the reason why the start stops."""
        if self.status is None:
            return
        evidence = self.status.status
        evidence.kernel_instances = len(self.pool)
        evidence.heap_used_bytes = sum(geometry.heap_bytes for geometry in self.pool.geometries())
        evidence.selftest_state = state
        if self.report is not None:
            evidence.selftest = {r.layer: max(r.rel_quiet, r.rel_loud) for r in self.report.layers}
        self.status.write()


_runtime: Runtime | None = None


def runtime(config: Callable[[], Any] | None = None) -> Runtime:
    """The process's runtime, made on first use from ATOM's config and the environment.

    Raises:
        Problem: whatever makes MegaMoE impossible here; see support.py.
    """
    global _runtime
    if _runtime is None:
        if config is None:
            raise RuntimeError("the runtime is made at the first MoE layer, which has not been constructed")
        from megamoe_atom.startup import make_runtime

        _runtime = make_runtime(config())
    return _runtime


def current_runtime() -> Runtime | None:
    return _runtime
