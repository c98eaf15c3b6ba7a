"""The launch that was validated, and the codes of what `serve` says about a changed one."""

from __future__ import annotations

from types import SimpleNamespace

from megamoe.image import launch
from megamoe_atom.problem import Exit

FLAGS = [
    "-tp", "8", "--enable-dp-attention", "--enable-expert-parallel", "--kv_cache_dtype", "fp8",
    "--max-num-batched-tokens", "8192", "--max-num-seqs", "256", "--max-model-len", "9472",
    "--gpu-memory-utilization", "0.85", "--no-enable_prefix_caching",
]  # fmt: skip
ENV = {
    "MEGAMOE_ENGINE_MODULE": "atom.entrypoints.openai_server",
    "ATOM_USE_FLYDSL": "1",
    "ATOM_USE_FLYDSL_FUSED": "1",
    "ATOM_FLYDSL_KERNELS_PATH": "/opt/megamoe/flydsl",
    "AITER_BF16_FP8_MOE_BOUND": "0",
    "ATOM_MOE_GU_ITLV": "1",
    "MORI_SHMEM_HEAP_SIZE": "5368709120",
}
VRAM = 288 << 30


def codes(box: SimpleNamespace) -> list[str]:
    outcome = launch.outcome(box.flags, box.env, box.root)
    for finding in outcome.findings:
        assert finding.what and finding.why and finding.fix
    errors = [f.code for f in outcome.findings if f.severity == "error"]
    assert bool(errors) is (outcome.exit_code is not Exit.PASS)
    if errors:
        assert outcome.exit_code in (Exit.REFUSED, Exit.CHECK_FAILED)
        assert "no weight was read" in outcome.summary or outcome.status == "refused"
    return errors
