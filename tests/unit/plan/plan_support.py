"""The BASE deploy file of the cases, and how to patch and judge it."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.envelope import Outcome
from megamoe.plan.judge import outcome_of

BASE: dict[str, Any] = yaml.safe_load("""
host: node-a
engine: atom
image: registry.example/serve/moe@sha256:1111111111111111111111111111111111111111111111111111111111111111
model: {path: /models/demo-moe, profile: deepseek-v4-pro, weights: mxfp4}
gpu: {arch: gfx950, count: 8, vram_gib: 288}
args: {tensor_parallel: 8, enable_dp_attention: true, enable_expert_parallel: true, moe_backend: mega,
  max_num_batched_tokens: 8192, max_num_seqs: 256, kv_cache_dtype: fp8, gpu_memory_utilization: 0.80, port: 8000}
env: {AITER_BF16_FP8_MOE_BOUND: "0", ATOM_MOE_GU_ITLV: "1", MORI_SHMEM_HEAP_SIZE: "16G"}
container: {engine: docker, ipc: host, init: true, stop_timeout: 60, devices: [/dev/kfd, /dev/dri]}
""")


class _Drop:
    """Marks a key to be left out. Its name is the same in every process, so that test ids are, too."""

    def __repr__(self) -> str:
        return "DROP"


DROP = _Drop()


def patched(**changes: Any) -> dict[str, Any]:
    """BASE with dotted keys (written with __) set, or removed when the value is DROP."""
    raw = copy.deepcopy(BASE)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node = raw
        for part in parents:
            node = node[part]
        if value is DROP:
            node.pop(last)
        else:
            node[last] = value
    return raw


def plan(facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    return outcome_of(parse_deploy(yaml.safe_dump(patched(**changes))), facts or {})


def codes(outcome: Outcome, severity: str = "error") -> set[str]:
    return {f.code for f in outcome.findings if f.severity == severity}
