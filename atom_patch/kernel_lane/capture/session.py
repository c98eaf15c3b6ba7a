"""One process, one FlyDSL checkout: builds the layer of a case on all ranks, runs its forwards, saves the bundle."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megamoe_atom import kernel_edits
from megamoe_atom.kernel import verify_files

from kernel_lane.capture import rocm, upstream
from kernel_lane.capture.cases import Case
from kernel_lane.capture.hip import StandIn
from kernel_lane.capture.ranks import Ranks
from kernel_lane.capture.recorder import Recorder
from kernel_lane.layer import case_inputs, golden_inputs, of_case, reference_outputs, shuffled
from kernel_lane.machine.schedule import Schedule


class Session:
    """The stand-ins are process-wide, so one process captures with one number of CUs and ranks."""

    def __init__(self, flydsl: Path, ranks: int, cu: int, schedule: Schedule | None = None) -> None:
        # Read before flydsl is imported: the target, no cache (another source would hit it), the device libraries.
        self._rocm = tempfile.TemporaryDirectory(prefix="megamoe-rocm-")
        os.environ |= {
            "ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950", "FLYDSL_RUNTIME_ENABLE_CACHE": "0", "CU_NUM": str(cu),
            "ROCM_PATH": str(rocm.make_tree(Path(self._rocm.name))),
        }  # fmt: skip
        torch.set_num_threads(1)
        self.flydsl, self.ranks_count, self.cu = flydsl, ranks, cu
        self.recorder = Recorder(schedule)
        self.ranks = Ranks(self.recorder.execute)
        self.hip = StandIn(self.ranks.receive)
        self.heap = upstream.Heap(ranks, lambda t, r, _size: self.recorder.track(t, rank=r, heap=True))
        upstream.install_mori(self.heap)
        upstream.install_torch(cu)
        self.megamoe = upstream.load(flydsl)

    def run(self, work: Sequence[Any]) -> list[Any]:
        """work[r]() on every rank, with its tensors watched.

        Raises:
            Problem: the work's own; flydsl_commit, when it loaded what is not the pinned source.
        """

        def watched(call: Any) -> Any:
            def body() -> Any:
                with self.recorder.watch():
                    return call()

            return body

        try:
            results = self.ranks.run([watched(call) for call in work])
        except BaseException:
            if self.hip.failure is not None:
                raise self.hip.failure from None
            raise
        upstream.verify_loaded(self.flydsl)
        return results


def constructor_arguments(case: Case, rank: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "rank": rank, "world_size": case.ranks, "model_dim": case.hidden, "inter_dim": case.inter,
        "experts": case.experts,
        "topk": case.topk, "quant": case.quant, "max_tok_per_rank": case.mtpr, **case.arguments,
    }  # fmt: skip
    if case.swiglu_limit:
        arguments["swiglu_limit"] = case.swiglu_limit
    return arguments


def place_form(case: Case) -> None:
    """The two choices that small cases need and the constructor does not offer: compact dispatch, combine's
    geometry."""
    module: Any = importlib.import_module(upstream.MODULES[0])
    original = getattr(module, "_lane_resolve", None) or module.resolve_stage1_config
    module._lane_resolve = original
    module.resolve_stage1_config = (
        original if case.compact is None else lambda **k: original(**k) | {"compact": bool(case.compact)}
    )
    config = getattr(module, "_lane_config", None) or module.FlyDSLDispatchCombineConfig
    module._lane_config = config
    if case.combine is None:
        module.FlyDSLDispatchCombineConfig = config
        return
    blocks, waves = case.combine
    module.FlyDSLDispatchCombineConfig = lambda **k: config(
        **k,
        combine_block_num=blocks,
        combine_warp_num_per_block=waves,
        dispatch_block_num=blocks,
        dispatch_warp_num_per_block=waves,
    )


def name_buffers(recorder: Recorder, rank: int, kernel: Any) -> None:
    """Names after the attributes that hold the tensors: r0.op.comb_bar, r0.gm.rx_em, r0.s1_meta."""
    owners = [("gm", getattr(kernel.comb_op, "_gm", None)), ("op", kernel.comb_op), ("", kernel)]
    by_address = {t.address: t for t in recorder.tracked.values()}
    for prefix, owner in owners:
        for attribute, value in vars(owner).items() if owner is not None else ():
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in by_address:
                t = by_address[value.untyped_storage().data_ptr()]
                if not t.name:
                    t.name = (
                        f"r{rank}." + (f"{prefix}." if prefix else "") + attribute.strip("_").removeprefix("shmem_")
                    )


def capture(case: Case, flydsl: Path, folder: Path, *, golden: Path | None = None) -> dict[str, Any]:
    """Captures a case as a bundle whose expectations are the reference's outputs (or the golden file's).

    Returns:
        figures: kernels, instructions, whether the in-order execution already meets every expectation.
    """
    if golden is not None:
        w, forwards, outputs = golden_inputs(golden)
        of_case(case, w, forwards)
    else:
        w, forwards = case_inputs(case)
        outputs = reference_outputs(case, w, forwards)
    session = Session(flydsl, case.ranks, case.cu)
    place_form(case)
    equal: list[bool] = []

    def rank_work(r: int) -> Any:
        def work() -> Any:
            kernel = session.megamoe(
                **constructor_arguments(case, r), **{k: t.clone() for k, t in shuffled(case, w, r).items()}
            )
            name_buffers(session.recorder, r, kernel)
            out = None
            for k, rows in enumerate(forwards):
                x, weights, ids = (t.clone() for t in rows[r])
                out = kernel.forward(x, weights, ids)
                have = out.view(torch.int16).numpy().view(np.uint16)
                equal.append(bool(np.array_equal(have, outputs[k][r])))
                session.recorder.expect(f"forward{k}.rank{r}", out, outputs[k][r].tobytes())
            return kernel

        return work

    session.run([rank_work(r) for r in range(case.ranks)])
    provenance = asdict(case) | {"golden_file": golden.name if golden else None} | figures(session, all(equal))
    session.recorder.save(folder, provenance, case.ranks)
    return provenance


def figures(session: Session, equal: bool) -> dict[str, Any]:
    """What a capture was made with, and what it showed; `equal`: in order, every expectation was met."""
    return {
        "flydsl": importlib.metadata.version("flydsl"), "torch": torch.__version__, "linker": rocm.linker_version(),
        "edits": sorted(kernel_edits.present(verify_files(session.flydsl))),
        "launches": sum(len(s.get("launches", [])) for s in session.recorder.steps),
        "instructions": session.recorder.instructions, "equal_in_order": equal,
    }  # fmt: skip
