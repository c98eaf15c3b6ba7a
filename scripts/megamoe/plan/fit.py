"""`plan --fit`: the nearest legal plan, as changes to DEPLOY, each with the reason that forces it.

Every change is made by the fixer of one refusal code and judged again, so that what is offered is accepted by the very
rules that refused; a change without which the plan is accepted too is taken back. What no change of settings can repair
(an image without digest, a model's wrong weights) is left and named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from megamoe_atom.problem import Exit

from megamoe.deploy.load import Loaded, typed
from megamoe.deploy.schema import DP_PORT, INTERNAL_PORT, PORT
from megamoe.envelope import Finding, Outcome
from megamoe.plan import arithmetic, memory
from megamoe.plan.judge import judge, outcome_of
from megamoe.plan.rule import Context
from megamoe.plan.rules_tokens import neighbours
from megamoe.text_input import Document

REMOVE = object()
Change = tuple[str, Any]  # dotted key, new value or REMOVE
Fixer = Callable[[Context], list[Change]]
_ROUNDS = 12
USUAL_SHARE = 0.85  # ROCm/ATOM .github/benchmark/models_accuracy.json, V4-Pro with DP attention


def _tokens(c: Context) -> list[Change]:
    legal = arithmetic.largest_legal(c.profile, max(1, c.layout.ep_size)) or c.profile.validated_mbt
    given = c.args.max_num_batched_tokens or c.profile.validated_mbt
    near = min(neighbours(given), key=lambda power: abs(power - given))
    return [("args.max_num_batched_tokens", min(near, legal, c.profile.validated_mbt))]


def _heap(c: Context) -> list[Change]:
    ask = memory.heap_to_ask_for(c)
    return [("env.MORI_SHMEM_HEAP_SIZE", str(ask))] if ask else []


def _memory(c: Context) -> list[Change]:
    vram = c.deploy.gpu.vram_gib * (1 << 30)
    share = int((vram - memory.heap_bytes(c) - memory.reserve_bytes(c)) / vram * 100) / 100 if vram else 0.0
    return [("args.gpu_memory_utilization", share)] if share >= 0.05 else _heap(c)


def _larger_share(c: Context) -> list[Change]:
    """Room for the weights: the share of the runs on record where that is enough, else all that there is."""
    most = _memory(c)
    enough = [(key, min(value, USUAL_SHARE)) for key, value in most if key == "args.gpu_memory_utilization"]
    return enough if enough and enough[0][1] > c.args.gpu_memory_utilization else most


def _contract(c: Context) -> list[Change]:
    return [(f"env.{n}", v) for n, v in c.profile.env_required.items() if c.env.get(n) != v]


def _drop_env(*names: str) -> Fixer:
    return lambda c: [(f"env.{n}", REMOVE) for n in names if n in c.env]


def _set(key: str, value: Any) -> Fixer:
    return lambda c: [(key, value)]


def _drop_forbidden(c: Context) -> list[Change]:
    from megamoe.plan.rules_env import DEAD, FORBIDDEN, PREEMPT, VISIBLE

    return [(f"env.{n}", REMOVE) for n in (*FORBIDDEN, *PREEMPT, *DEAD, *VISIBLE) if n in c.env]


def _drop_named(c: Context) -> list[Change]:
    """The variables that rules_env refuses whatever their value's neighbours, by the key that each refusal names."""
    from megamoe.plan.rules_env import experimental, target

    return [(".".join(map(str, hit.keys[0])), REMOVE) for rule in (experimental, target) for hit in rule(c)
            if hit.severity == "error"]  # fmt: skip


def _seqs(c: Context) -> list[Change]:
    per = 1 + (c.args.num_speculative_tokens if c.args.method else 0)
    most = (c.args.max_num_batched_tokens or c.profile.validated_mbt) // per
    room = 512 if c.args.gpu_memory_utilization >= 0.9 else c.profile.validated_seqs
    return [("args.max_num_seqs", max(1, min(c.args.max_num_seqs or 256, room, most)))]


def _none(c: Context) -> list[Change]:
    return []


def _divisible(c: Context) -> list[Change]:
    most = min(8, c.deploy.gpu.count) if c.on_gpu else 8
    ranks = next((n for n in range(most, 0, -1) if c.profile.experts % n == 0), 1)
    return [("args.tensor_parallel", ranks), ("args.data_parallel", 1)]


def _heads(c: Context) -> list[Change]:
    """The nearest number of ranks that attention can be split over; of two the larger."""
    most = min(8, c.deploy.gpu.count)
    legal = [n for n in (8, 4, 2, 1) if n <= most]
    ranks = min(legal, key=lambda n: abs(n - c.args.tensor_parallel), default=1)
    return [("args.tensor_parallel", ranks)]


def _devices(c: Context) -> list[Change]:
    """The two nodes that every rank needs, or all GPUs by name; what else is passed stays."""
    given = c.container.devices or []
    if any(d.startswith("amd.com/gpu=") for d in given):
        return [("container.devices", ["amd.com/gpu=all", *(d for d in given if not d.startswith("amd.com/gpu="))])]
    gpu = ("/dev/kfd", "/dev/dri")
    others = [d for d in given if d.startswith("/dev/") and ".." not in d and not d.startswith(gpu)]
    return [("container.devices", ["/dev/kfd", "/dev/dri", *others])]


def _without_tag(c: Context) -> list[Change]:
    name, _, digest = c.deploy.image.partition("@")
    return [("image", f"{name.rpartition(':')[0]}@{digest}")]


def _keep_groups(c: Context) -> list[Change]:
    return [("container.group_add", ["keep-groups"])] if c.container.engine == "podman" else []


def _caps(c: Context) -> list[Change]:
    given = c.container.cap_add if c.container.cap_add is not None else list(c.profile.container["cap_add"])
    kept = {name.upper().removeprefix("CAP_") for name in given}
    left = [name for name in c.container.cap_drop or [] if name.upper().removeprefix("CAP_") not in kept]
    return [("container.cap_drop", left)]


FIXERS: dict[str, Fixer] = {
    "mega_needs_expert_parallel": _set("args.enable_expert_parallel", True),
    "mega_needs_dp_attention": _set("args.enable_dp_attention", True),
    "dp_without_dp_attention": _set("args.enable_dp_attention", True),
    "mega_tbo": _set("args.enable_tbo", REMOVE),
    "mega_eplb": _set("args.eplb_enable", False),
    "mega_all2all": _set("args.all2all_backend", REMOVE),
    "mega_online_quant": _set("args.online_quant_config", REMOVE),
    "mega_pcp": _set("args.prefill_context_parallel", 1),
    "dp_attention_pcp": _set("args.prefill_context_parallel", 1),
    "mega_weights": _set("args.moe_backend", "standard"),
    "arch": _set("args.moe_backend", "standard"),
    "mega_world_size": lambda c: [("args.tensor_parallel", 8), ("args.data_parallel", 1)],
    "tensor_parallel_range": _set("args.tensor_parallel", 8),
    "too_few_gpus": lambda c: [("args.tensor_parallel", min(8, c.deploy.gpu.count)), ("args.data_parallel", 1)],
    "experts_not_divisible": _divisible,
    "heads_not_divisible": _heads,
    "weights_over_share": _larger_share,
    "tokens_not_given": _tokens,
    "tokens_not_power_of_two": _tokens,
    "tokens_above_int32": _tokens,
    "mtpr_differs": _drop_env("ATOM_MEGA_MTPR"),
    "mori_dispatch_small": _set("args.max_num_batched_tokens", 256),
    "seqs_not_given": _set("args.max_num_seqs", 256),
    "seqs_too_many": _seqs,
    "seqs_above_tokens": _seqs,
    "graph_size": _set("args.cudagraph_capture_sizes", REMOVE),
    "mtp_tokens": _set("args.num_speculative_tokens", 3),
    "mega_fixed_slot": _drop_env("MEGAMOE_WITHOUT_EDITS"),
    "mega_swiglu_limit": _drop_env("MEGAMOE_WITHOUT_EDITS"),
    "mega_dummy_routing": _set("args.load_dummy", REMOVE),
    "env_contract": _contract,
    "env_contract_missing": _contract,
    "env_contradicts_backend": _drop_env("ATOM_USE_FLYDSL", "ATOM_USE_FLYDSL_FUSED"),
    "kernels_path": _drop_env("ATOM_FLYDSL_KERNELS_PATH"),
    "env_forbidden": _drop_forbidden,
    "env_preempts_mega": _drop_forbidden,
    "env_gfx_override": _drop_named,
    "env_online_tuning": _drop_named,
    "env_dual_capacity": _drop_named,
    "env_fake_routing": _drop_named,
    "env_truncates": _drop_named,
    "eplb_key": _set("args.eplb_config", REMOVE),
    "eplb_value": _set("args.eplb_config", REMOVE),
    "eplb_slots": _set("args.eplb_config", REMOVE),
    "visible_devices": _drop_forbidden,
    "heap_mode": _drop_env("MORI_SHMEM_MODE"),
    "heap_size_malformed": _heap,
    "heap_not_given": _heap,
    "heap_too_small": _heap,
    "memory_over_card": _memory,
    "podman_ipc_host_shm_size": _set("container.shm_size", REMOVE),
    "shm_size_malformed": _set("container.shm_size", REMOVE),
    "shm_default_64m": _set("container.shm_size", "16g"),
    "ipc_mode": _set("container.ipc", "host"),
    "init_off": _set("container.init", True),
    "stop_timeout_short": _set("container.stop_timeout", 60),
    "restart_policy": _set("container.restart_policy", "no"),
    "device_missing": _devices,
    "device_rights": _devices,
    "device_malformed": _devices,
    "keep_groups_docker": _set("container.group_add", REMOVE),
    "keep_groups_alone": _set("container.group_add", ["keep-groups"]),
    "group_mismatch": _set("container.group_add", REMOVE),
    "group_number": _set("container.group_add", REMOVE),
    "rootless_groups": _keep_groups,
    "cap_both": _caps,
    "ulimit_order": _set("container.ulimits", REMOVE),
    "host_address": _set("args.host", "0.0.0.0"),
    "image_tag_and_digest": _without_tag,
    "network_none": _set("container.network_mode", "host"),
    "ports_with_host": _set("container.ports", []),
    "memlock": lambda c: [("container.ulimits", {"memlock": -1, "stack": 67108864})],
    "profile_engine": lambda c: [("engine", c.profile.engine)],
    "port_taken": lambda c: (
        [("args.internal_port", INTERNAL_PORT + (c.args.port == INTERNAL_PORT))]
        + ([("args.port", PORT)] if c.args.port == DP_PORT else [])
    ),
}


def fit_outcome(loaded: Loaded, facts: dict[str, Any]) -> Outcome:
    """The nearest legal plan: accepted (exit 0) when one was found, refused with what remains otherwise."""
    if loaded.reasons:  # a key that is not understood has no nearest value
        refused = outcome_of(loaded, facts)
        refused.summary = f"{loaded.document.name}: no nearest plan, because the file itself is not understood"
        return refused
    raw: dict[str, Any] = copy.deepcopy(loaded.document.data)
    changes: dict[str, tuple[Any, Any, Finding]] = {}
    current = loaded
    for _ in range(_ROUNDS):
        judged = judge(current, facts)
        progress = False
        for finding in (f for f in judged.findings if f.severity == "error"):
            for key, value in FIXERS.get(finding.code, _none)(judged.context):
                old = _get(raw, key)
                if old == value or (old is None and value is REMOVE):
                    continue
                _put(raw, key, value)
                changes[key] = (changes[key][0] if key in changes else old, value, finding)
                progress = True
        if not progress:
            break
        current = typed(Document(loaded.document.name, raw, loaded.document.lines))
    raw, changes = _least(loaded, raw, changes, facts)
    outcome = outcome_of(typed(Document(loaded.document.name, raw, loaded.document.lines)), facts)
    listed = [
        {"key": key, "from": old, "to": None if new is REMOVE else new, "code": f.code, "because": f.what, "why": f.why}
        for key, (old, new, f) in changes.items()
    ]
    text = (
        "\n".join(
            f"{row['key']}: {row['from']!r} -> {'removed' if row['to'] is None else repr(row['to'])}\n"
            f"  because {row['because']}: {row['why']} [{row['code']}]"
            for row in listed
        )
        or "no change is needed"
    )
    count = "1 change" if len(listed) == 1 else f"{len(listed)} changes"
    if outcome.exit_code is Exit.PASS:
        summary = f"nearest legal plan: {count}" if listed else "the plan is legal as it is"
    else:
        summary = f"no legal plan by changing settings alone; after {count} the reasons below remain"
    return Outcome(
        outcome.status,
        outcome.exit_code,
        summary,
        outcome.findings,
        {**outcome.data, "changes": listed, "deploy": raw},
        text + "\n\n" + outcome.text,
    )


def _least(
    loaded: Loaded, raw: dict[str, Any], changes: dict[str, tuple[Any, Any, Finding]], facts: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any, Finding]]]:
    """An accepted plan without the changes that it does not need: a later fix can make an earlier one idle."""

    def refused(candidate: dict[str, Any]) -> bool:
        return judge(typed(Document(loaded.document.name, candidate, loaded.document.lines)), facts).refused

    if refused(raw):
        return raw, changes
    kept = dict(changes)
    for key, (old, _, _) in reversed(changes.items()):
        candidate = copy.deepcopy(raw)
        _put(candidate, key, REMOVE if old is None else old)
        if not refused(candidate):
            raw = candidate
            kept.pop(key)
    return raw, kept


def _get(raw: dict[str, Any], key: str) -> Any:
    node: Any = raw
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = raw
    for part in parents:
        node = node.setdefault(part, {})
    if value is REMOVE:
        node.pop(last, None)
    else:
        node[last] = value
