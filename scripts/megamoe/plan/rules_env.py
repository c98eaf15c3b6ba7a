"""The environment: the model's contract, switches that contradict the plan, and sizes as mori really parses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from megamoe.deploy.sizes import human, mori_bytes, mori_bytes_as_parsed
from megamoe.plan.effective import MEGA_ENV, tokens_per_rank
from megamoe.plan.rule import Context, Hit, refuse, warn

# Kinds of switches that no service may have, whatever the engine calls them.
# Sources: sgl-project/sglang#22952, AMD-AGI/Primus#927, ROCm/FlyDSL#876, field notes.
_TUNING = re.compile(r"(AUTO_?TUNE|ONLINE_?TUNE|TUNE_GEMM)(?!.*(CACHE|DIR|CSV|LOG|FILE|PATH))")
_DUAL_CAPACITY = re.compile(r"DECODE_\w*MTPR|MTPR_\w*DECODE|DUAL_?(MTPR|CAPACITY|MODE)|FIXED_SLOT")
_BALANCED = re.compile(r"FAKE_?EPLB|(FORCE|FAKE)D?_\w*(BALANCE|UNIFORM)|(UNIFORM|RANDOM|BALANCED)_ROUTING")
_TRUNCATING = re.compile(r"MAX_(INPUT|INP|RECV|RECEIVE)_TOKENS?\Z")
EXPERIMENTAL = (_TUNING, _DUAL_CAPACITY, _BALANCED, _TRUNCATING)
_CODE_PATH = ("PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME")
_TRUE = ("1", "true", "yes", "on", "y", "t")
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIAL)S?\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Variables that must not be set at all in a service: name -> (why, source is in the catalogue).
FORBIDDEN = {
    "ATOM_V4_BYPASS_ATTN": "attention returns zeros: a debugging switch",
    "COMPILE_ONLY": "every kernel launch compiles and returns without running",
    "FLYDSL_FUSED_ZERO_MODE": "it clears the combine buffer while peers write to it: a debugging switch",
    "ATOM_MEGA_DUMP": "it writes activations to disk on every call: a debugging switch",
    "USE_ATOMESH_ENTRYPOINTS": "another server is started instead of ATOM's OpenAI server",
    "ATOM_DP_SIZE": "it overrides the parallel layout of the plan",
    "ATOM_DP_RANK": "it gives every process the same rank",
    "ATOM_DP_RANK_LOCAL": "it gives every process the same local rank",
    "MORI_DISABLE_P2P": "ranks on one node would need RDMA, or mori asserts",
}
# With the fused path only: these route around it. Source: ROCm/ATOM model_ops/moe.py.
PREEMPT = ("ATOM_USE_TRITON_MOE", "ATOM_USE_TRITON_GEMM", "ATOM_USE_TRITON_MOE_DECODE")
DEAD = ("FUSED_MEGA_COMPACT_ATOM", "FUSED_MEGA_W1_LOCAL")
TARGETS = ("ARCH", "FLYDSL_GPU_ARCH", "MORI_GPU_ARCHS", "GPU_ARCHS", "PYTORCH_ROCM_ARCH")
VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_KNOWN = (
    *FORBIDDEN,
    *PREEMPT,
    *DEAD,
    *TARGETS,
    *VISIBLE,
    *MEGA_ENV,
    "ATOM_MEGA_MTPR",
    "AITER_BF16_FP8_MOE_BOUND",
    "ATOM_MOE_GU_ITLV",
    "MORI_SHMEM_HEAP_SIZE",
    "MORI_SHMEM_MODE",
    "MORI_SHMEM_HEAP_TYPE",
    "ATOM_DISABLE_MMAP",
    "AITER_LOG_LEVEL",
    "ATOM_LOADER_NUM_THREADS",
    "ATOM_NUMA_BIND",
    "GPU_MAX_HW_QUEUES",
)


def truthy(text: str | None) -> bool:
    return text is not None and text.strip().lower() in _TRUE


def contract(c: Context) -> Iterator[Hit]:
    for name, wanted in c.profile.env_required.items():
        have = c.env.get(name)
        if have is None:
            yield refuse(
                "env_contract_missing",
                f"env.{name} is not set; {c.profile.name} needs {name}={wanted}",
                "without it the model answers fluently and wrongly (gsm8k 0.95 became 0.6), with no error",
                f'add env.{name}: "{wanted}"',
                f"env.{name}",
                "model.profile",
            )
        elif have != wanted:
            yield refuse(
                "env_contract",
                f"env.{name} is {have!r}; {c.profile.name} needs {wanted!r}",
                "with it the weights are laid out for one kernel and read by another: wrong answers, no error",
                f'set env.{name}: "{wanted}"',
                f"env.{name}",
                "model.profile",
            )


def switches(c: Context) -> Iterator[Hit]:
    for name, wanted in MEGA_ENV.items():
        have = c.env.get(name)
        if have is None:
            continue
        if c.mega and name != "ATOM_FLYDSL_KERNELS_PATH" and have != wanted:
            yield refuse(
                "env_contradicts_backend",
                f"env.{name} is {have!r} with args.moe_backend: mega",
                f"mega is switched on by {name}={wanted}",
                f"remove env.{name}: the plan renders it",
                f"env.{name}",
                "args.moe_backend",
            )
        elif not c.mega and name != "ATOM_FLYDSL_KERNELS_PATH" and truthy(have):
            yield refuse(
                "env_contradicts_backend",
                f"env.{name} is {have!r} with args.moe_backend: standard",
                "it would switch the fused path on behind the plan's back",
                f"remove env.{name}, or set args.moe_backend: mega",
                f"env.{name}",
                "args.moe_backend",
            )
        elif c.mega and name == "ATOM_FLYDSL_KERNELS_PATH" and have != wanted:
            make = warn if have.startswith("/") else refuse
            yield make(
                "kernels_path",
                f"env.{name} is {have!r}",
                f"the image keeps the pinned kernels at {wanted}; another tree is not the one that was validated",
                f"remove env.{name}",
                f"env.{name}",
            )
    for name, why in FORBIDDEN.items():
        if (name in c.env and c.env[name].strip().lower() not in ("", "0", "false", "no", "off")) or (
            name.startswith("ATOM_DP_") and name in c.env
        ):
            yield refuse("env_forbidden", f"env.{name} is {c.env[name]!r}", why, f"remove env.{name}", f"env.{name}")
    if not c.mega:
        return
    for name in PREEMPT:
        if truthy(c.env.get(name)):
            yield refuse(
                "env_preempts_mega",
                f"env.{name} is {c.env[name]!r} with args.moe_backend: mega",
                "Triton's MoE path is taken before the fused one is asked",
                f"remove env.{name}",
                f"env.{name}",
                "args.moe_backend",
            )
    for name in DEAD:
        if name in c.env:
            yield warn(
                "env_dead",
                f"env.{name} is set",
                "no code of the pinned FlyDSL reads it",
                f"remove env.{name}",
                f"env.{name}",
            )
    if truthy(c.env.get("FLYDSL_RUNTIME_RUN_ONLY")):
        yield warn(
            "env_run_only",
            "env.FLYDSL_RUNTIME_RUN_ONLY is on",
            "unedited FlyDSL never stores MegaMoE's stage 1 and combine on disk, and then raises at the first forward",
            "remove it unless the image was built with ahead-of-time kernels",
            "env.FLYDSL_RUNTIME_RUN_ONLY",
        )
    if c.env.get("FLYDSL_RUNTIME_ENABLE_CACHE", "1") == "0":
        yield warn(
            "env_no_cache",
            "env.FLYDSL_RUNTIME_ENABLE_CACHE is 0",
            "kernels compile in serving while peers spin",
            "remove it",
            "env.FLYDSL_RUNTIME_ENABLE_CACHE",
        )


def target(c: Context) -> Iterator[Hit]:
    """Variables that name the GPU to compile for. Source: ROCm/FlyDSL python/flydsl, ROCm/mori python/mori/jit."""
    if not c.on_gpu:
        return
    override = c.env.get("HSA_OVERRIDE_GFX_VERSION")
    named = {name: c.env[name] for name in TARGETS if c.env.get(name, "").strip()}
    wrong = {n: v for n, v in named.items() if c.deploy.gpu.arch not in re.split("[;,: ]+", v.strip())}
    for name, value in {**({"HSA_OVERRIDE_GFX_VERSION": override} if override else {}), **wrong}.items():
        yield refuse(
            "env_gfx_override",
            f"env.{name} is {value[:60]!r}, the GPUs are {c.deploy.gpu.arch}",
            "kernels would be compiled for another GPU than the one they run on",
            f"remove env.{name}",
            f"env.{name}",
            "gpu.arch",
        )


def visible_devices(c: Context) -> Iterator[Hit]:
    if not c.on_gpu:
        return
    for name in VISIBLE:
        if name not in c.env:
            continue
        listed = [part.strip() for part in c.env[name].split(",") if part.strip()]
        if len(listed) < c.layout.ranks or len(set(listed)) != len(listed):
            yield refuse(
                "visible_devices",
                f"env.{name} is {c.env[name]!r}: {len(set(listed))} GPUs for {c.layout.ranks} ranks",
                "it silently shrinks the set of GPUs, and MegaMoE needs device index = rank",
                f"remove env.{name}",
                f"env.{name}",
                "args.tensor_parallel",
            )
        elif c.mega and listed != [str(n) for n in range(len(listed))]:
            yield refuse(
                "visible_devices",
                f"env.{name} is {c.env[name]!r}",
                "it renumbers the GPUs; MegaMoE needs device index = rank on every process",
                f"remove env.{name}",
                f"env.{name}",
            )


def mori(c: Context) -> Iterator[Hit]:
    mode = c.env.get("MORI_SHMEM_MODE")
    if mode is not None and mode not in ("static_heap", "STATIC_HEAP"):
        plain = mode.strip().lower()
        if c.mega and plain in ("isolation", "vmm_heap"):
            yield refuse(
                "heap_mode",
                f"env.MORI_SHMEM_MODE is {mode!r} with args.moe_backend: mega",
                "FlyDSL's peer table needs the static heap; in this mode every pointer is 'not in symmetric heap "
                "[0x0, 0x0)' and the GPU faults",
                "remove env.MORI_SHMEM_MODE (static_heap is the default)",
                "env.MORI_SHMEM_MODE",
                "args.moe_backend",
            )
        elif plain not in ("isolation", "vmm_heap") or mode not in ("isolation", "ISOLATION", "vmm_heap", "VMM_HEAP"):
            yield warn(
                "heap_mode_unknown",
                f"env.MORI_SHMEM_MODE is {mode!r}",
                "mori knows static_heap, vmm_heap and "
                "isolation, all lower or all upper case; it takes static_heap for anything else",
                "write static_heap, or remove it",
                "env.MORI_SHMEM_MODE",
            )
    kind = c.env.get("MORI_SHMEM_HEAP_TYPE")
    if kind is not None and kind.lower() not in ("uncached", "normal"):
        yield warn(
            "heap_type_unknown",
            f"env.MORI_SHMEM_HEAP_TYPE is {kind!r}",
            "mori knows uncached and normal",
            "remove it",
            "env.MORI_SHMEM_HEAP_TYPE",
        )
    size = c.env.get("MORI_SHMEM_HEAP_SIZE")
    if size is not None and mori_bytes(size) is None:
        read = mori_bytes_as_parsed(size)
        effect = "mori aborts on it" if read is None else f"mori reads it as {human(read)}"
        yield refuse(
            "heap_size_malformed",
            f"env.MORI_SHMEM_HEAP_SIZE is {size[:60]!r}: {effect}",
            "it knows K, M, G with B or iB, takes whole numbers only and ignores trailing text",
            "write such as 16G or 17179869184",
            "env.MORI_SHMEM_HEAP_SIZE",
        )


def form(c: Context) -> Iterator[Hit]:
    for name, value in c.env.items():
        if not _NAME.match(name):
            yield refuse(
                "env_name",
                f"env has the name {name[:60]!r}",
                "not a name that a shell or the engine keeps",
                "use letters, digits and _",
                f"env.{name}",
            )
        if len(value) > 32768 or any(ord(ch) < 32 or 127 <= ord(ch) < 160 for ch in value):
            yield refuse(
                "env_value",
                f"env.{name} has a line break, another control character or more than 32768 characters",
                "engines cut or refuse such a value, and a terminal acts on it instead of showing it",
                "give one line of visible text",
                f"env.{name}",
            )
        counted = name.upper().endswith("TOKENS") and value.strip().isdecimal()  # a number of tokens, not a credential
        if _SECRET.search(name.upper()) and not counted:
            yield refuse(
                "env_secret",
                f"env.{name} looks like a secret (value not shown)",
                "it would be readable in the plan, in `docker inspect` and in the process list",
                "remove it: weights are local, no hub is asked",
                f"env.{name}",
            )
        elif name not in _KNOWN and re.match(r"(ATOM|MORI|AITER|FLYDSL|FUSED)_", name):
            near = get_close_matches(name, _KNOWN, n=1, cutoff=0.88)
            if near and near[0] not in c.env:
                yield warn(
                    "env_near_miss",
                    f"env.{name} is close to {near[0]}",
                    "a variable that nothing reads has no effect and no error",
                    f"did you mean {near[0]}?",
                    f"env.{name}",
                )


def experimental(c: Context) -> Iterator[Hit]:
    """Switches that make ranks choose differently, or that make speed without answers."""
    for name, value in c.env.items():
        on = value.strip().lower() not in ("", "0", "false", "no", "off")
        key = f"env.{name}"
        if _TUNING.search(name) and on and c.layout.ranks > 1:
            yield refuse(
                "env_online_tuning",
                f"{key} is {value[:40]!r} with {c.layout.ranks} ranks",
                "ranks that tune while serving reach a collective in different order: 300 s of silence, then every "
                "watchdog fires",
                f"remove {key}; tune offline and ship the files in the image",
                key,
                "args.tensor_parallel",
                "args.data_parallel",
            )
        if _DUAL_CAPACITY.search(name) and on:
            yield refuse(
                "env_dual_capacity",
                f"{key} is {value[:40]!r}",
                "a second capacity lets ranks choose different instances for one step: they never meet (8 of 8 "
                "watchdogs), or answers are wrong with every kernel test green",
                f"remove {key}: one capacity, max_num_batched_tokens, on every rank",
                key,
            )
        if _BALANCED.search(name) and on:
            yield refuse(
                "env_fake_routing",
                f"{key} is {value[:40]!r}",
                "it replaces the router's choice to make speed look balanced; the answers are nonsense",
                f"remove {key}; in a benchmark label the figures as forced balance",
                key,
            )
        if _TRUNCATING.search(name) and value.strip().isdecimal():
            least = c.layout.ranks * tokens_per_rank(c.args)
            if int(value.strip()[:18]) < least:
                yield refuse(
                    "env_truncates",
                    f"{key} is {value[:40]}, {c.layout.ranks} ranks x {tokens_per_rank(c.args)} tokens can arrive",
                    "rows beyond it are dropped without an error, and their tokens answer wrongly",
                    f"remove {key}, or give {least} or more",
                    key,
                    "args.max_num_batched_tokens",
                    "args.tensor_parallel",
                )
        if name in _CODE_PATH:
            yield warn(
                "env_code_path",
                f"{key} is {value[:80]!r}",
                "it puts other code before the image's: Python of one version over native code of another fails late "
                "or answers wrongly",
                f"remove {key}; a change of code is a new image with a new digest",
                key,
            )
    if truthy(c.env.get("AITER_USE_SYSTEM_TRITON")):
        yield warn(
            "env_deviation",
            "env.AITER_USE_SYSTEM_TRITON is on",
            "it silences aiter's check of the Triton version: a deviation that the deployment record must show",
            "remove it; the pinned image carries the Triton that aiter wants",
            "env.AITER_USE_SYSTEM_TRITON",
        )
    opened = any("seccomp" in option and "unconfined" in option for option in _security_opts(c))
    caps = {cap.upper().removeprefix("CAP_") for cap in c.container.cap_add or c.profile.container["cap_add"]}
    if truthy(c.env.get("ATOM_NUMA_BIND")) and not (c.container.privileged or opened or caps & {"SYS_NICE", "ALL"}):
        yield warn(
            "numa_bind_blocked",
            "env.ATOM_NUMA_BIND is on, and neither SYS_NICE nor seccomp=unconfined is given",
            "the engine's default seccomp profile answers set_mempolicy with 'Operation not permitted'",
            "add container.cap_add: [SYS_NICE], or remove env.ATOM_NUMA_BIND",
            "env.ATOM_NUMA_BIND",
            "container.cap_add",
            "container.security_opts",
        )


def _security_opts(c: Context) -> list[str]:
    given = c.container.security_opts
    return given if given is not None else list(c.profile.container["security_opts"])


RULES = (contract, switches, target, visible_devices, mori, experimental, form)
