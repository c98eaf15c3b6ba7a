"""`serve` in the rocm image: everything that can be known without reading a weight is judged, then ATOM takes over.

    python -m megamoe.image.launch [--check] [ATOM FLAGS]

The rules are the plan's own (megamoe.plan), applied to the flags and environment that the engine will really get, and
to the GPUs that are really there; what only the container knows is judged here. Findings go to stderr; exit 2 refused,
4 a precondition, 1 the image was changed. --check judges only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from megamoe_atom.problem import Exit, Problem
from pydantic import ValidationError

from megamoe.deploy.profiles import Profile, load_profile, names
from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding, Outcome, as_text, outcome_of_problem
from megamoe.image import arguments
from megamoe.image.facts import Facts, collect
from megamoe.plan import memory, rules_env, rules_eplb, rules_parallel, rules_tokens
from megamoe.plan.effective import layout_of
from megamoe.plan.rule import Context
from megamoe.version import identity

_RULES = (*rules_parallel.RULES, *rules_eplb.RULES, *rules_tokens.RULES, *rules_env.RULES, *memory.RULES)
_READ_BY_ENGINE = (
    "ATOM_", "MORI_", "AITER_", "FLYDSL_", "FUSED_", "FLIR_", "HIP_", "ROCR_", "HSA_", "CUDA_", "GPU_", "MEGAMOE_",
)  # fmt: skip
_ALSO = {*rules_env.FORBIDDEN, *rules_env.PREEMPT, *rules_env.DEAD, *rules_env.VISIBLE, "ARCH", "CU_NUM"}
MIN_SHM = (
    1 << 30
)  # ranks exchange through /dev/shm; the engines' default of 64 MiB is what breaks (NVIDIA/nccl issue 342)
GIB = 1 << 30
_CHANGED = ("file_drift", "file_unreadable", "package_drift", "package_added", "stack_lock_unreadable")
_SHAPE = ("hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")


def _error(code: str, what: str, why: str, fix: str) -> Finding:
    return Finding(code, "error", what, why, fix)


def judge_container(facts: Facts, *, mega: bool, env: Mapping[str, str]) -> Iterator[Finding]:
    """What only the container itself can know."""
    if facts.not_run:
        yield _error(
            "stand_in_image",
            f"this image was built on a stand-in base: {', '.join(facts.not_run)} did not run",
            "it proves the build, and holds neither a ROCm runtime nor compiled kernels",
            "serve the image that was built on the pinned base",
        )
    for item in facts.devices:
        if item.error == "ENOENT":
            yield _error(
                "device_missing",
                f"{item.path} is not in this container",
                "without it no GPU can be opened",
                "run it with --device /dev/kfd --device /dev/dri",
            )
        elif item.error in ("EACCES", "EPERM"):
            numbers = ", ".join(map(str, facts.groups))
            yield _error(
                "device_group",
                f"{item.path} belongs to group {item.group}; uid {facts.uid} has the groups {numbers}: {item.error}",
                "group names mean other numbers inside an image, so the host's numbers must be given",
                f"run it with --group-add {item.group}"
                if item.error == "EACCES"
                else f"pass it with --device {item.path}",
            )
        elif item.error is not None:
            yield _error(
                "device_error",
                f"{item.path} cannot be opened: {item.error}",
                "the driver does not answer",
                "look at the host's kernel log; a GPU may have to be reset",
            )
    if not any("renderD" in item.path for item in facts.devices):
        yield _error(
            "device_missing",
            "no /dev/dri/renderD* is in this container",
            "each rank opens the render node of its GPU",
            "run it with --device /dev/dri",
        )
    if facts.shm_bytes is not None and facts.shm_bytes < MIN_SHM:
        yield _error(
            "shm_small",
            f"/dev/shm has {facts.shm_bytes >> 20} MiB",
            "the ranks exchange buffers there and fail with 'unhandled system error'",
            "run it with --ipc host, or --shm-size 16g",
        )
    for name, error in facts.writable.items():
        if error is not None:
            yield _error(
                "not_writable",
                f"{name}={env[name]} cannot be written: {error}",
                "compiled code and evidence are written there while serving",
                "mount a directory or tmpfs there that this user owns (install -d -o 10001 -g 10001 DIR on the host)",
            )
    mode = env.get("MORI_SHMEM_MODE")
    if mega and mode is not None and mode not in ("static_heap", "STATIC_HEAP"):
        yield _error(
            "heap_mode",
            f"MORI_SHMEM_MODE is {mode!r}",
            "it was inherited from another recipe: the fused kernels' peer pointers are null in any mode but the "
            "static heap, and the GPU faults",
            "remove it from the environment; static_heap is mori's default",
        )


def judge_model(path: str | None) -> Iterator[Finding]:
    """The checkpoint's directory, without opening a shard."""
    if path is None:
        yield _error(
            "model_not_given",
            "no --model is given",
            "ATOM would try to fetch its default model from a hub",
            "add --model PATH, the directory that is mounted read-only",
        )
        return
    folder = Path(path)
    if not (folder / "config.json").is_file():
        yield _error(
            "model_missing",
            f"{path} holds no readable config.json",
            "a hub cache mounted without its blobs, or a wrong mount, looks like this",
            "mount the checkpoint's real directory at the same path, read-only, and see `megamoe verify-model`",
        )
    elif not any(folder.glob("*.safetensors")):
        yield _error(
            "model_missing",
            f"{path} holds no *.safetensors",
            "there is nothing to load",
            "copy the whole checkpoint, and see `megamoe verify-model`",
        )


def profile_of(path: str | None, env: Mapping[str, str]) -> Profile:
    """The profile named by MEGAMOE_PROFILE, else the one whose geometry the checkpoint's config.json has.

    Raises:
        Problem: profile_unknown, or profile_not_found (no profile has this geometry).
    """
    if named := env.get("MEGAMOE_PROFILE"):
        return load_profile(named)
    profiles = [profile for name in names() if (profile := load_profile(name)).engine == "atom"]
    try:
        config = json.loads((Path(path or "/nowhere") / "config.json").read_text(encoding="utf-8"))
        shape = tuple(config[key] for key in _SHAPE)
    except (OSError, ValueError, KeyError, TypeError):
        return profiles[-1]  # what is wrong with the file is said elsewhere; the rest is judged
    for profile in profiles:
        if shape == (profile.hidden, profile.inter, profile.experts, profile.topk):
            return profile
    raise Problem(
        "profile_not_found",
        what=f"config.json has {', '.join(f'{k} {v}' for k, v in zip(_SHAPE, shape, strict=True))}",
        why=f"limits are known for {', '.join(p.name for p in profiles)} only",
        fix="mount one of these models, or name a profile in MEGAMOE_PROFILE",
    )


def _judged(name: str) -> bool:
    """Whether the rules look at a variable: those that a part of the stack reads, and switches that no service has.

    The rest (PATH, LD_LIBRARY_PATH, ...) is the image's own, and no DEPLOY gave it.
    """
    kinds = rules_env.EXPERIMENTAL
    return name.startswith(_READ_BY_ENGINE) or name in _ALSO or any(kind.search(name) for kind in kinds)


def deploy_of(read: arguments.Read, env: Mapping[str, str], facts: Facts, profile: Profile) -> Deploy:
    """The DEPLOY that this command line, this environment and these GPUs amount to.

    Raises:
        Problem: flag_value, a value that no DEPLOY may have.
    """
    smallest = min((gpu.vram_bytes for gpu in facts.gpus), default=0)
    archs = sorted({gpu.arch for gpu in facts.gpus})
    body: dict[str, Any] = {
        "engine": "atom",
        "image": "sha256:" + "0" * 64,  # this container's own; the rules that look at it are not asked
        "model": {"path": read.model or "/models", "profile": profile.name, "weights": profile.weights},
        "gpu": {"arch": "+".join(archs) or "none", "count": len(facts.gpus), "vram_gib": smallest / GIB},
        "args": read.args,
        "env": {k: v for k, v in env.items() if _judged(k)},
    }
    try:
        return Deploy.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Problem(
            "flag_value",
            what=f"{where} = {first['input']!r}: {first['msg']}",
            why="the engine would refuse it after minutes, or read it otherwise",
            fix="correct the flag; `megamoe plan --schema` shows what each may be",
        ) from error


def judge(argv: list[str], env: Mapping[str, str], facts: Facts) -> list[Finding]:
    """Every finding of this start. Pure, but for the profile's file and the model's directory."""
    read = arguments.read(argv, env)
    profile = profile_of(read.model, env)
    mega = read.args.get("moe_backend") == "mega"
    findings = [*judge_container(facts, mega=mega, env=env), *judge_model(read.model)]
    deploy = deploy_of(read, env, facts, profile)
    context = Context(deploy, profile, {}, {k: str(v) for k, v in deploy.env.items()}, layout_of(deploy.args))
    for rule in _RULES:
        findings += [Finding(hit.code, hit.severity, hit.what, hit.why, hit.fix) for hit in rule(context)]
    if read.passed_on:
        findings.append(
            Finding(
                "flag_not_judged",
                "info",
                f"passed on as given: {' '.join(read.passed_on)[:200]}",
                "DEPLOY has no such argument, so no rule looked at it",
                "see ATOM's own help for it",
            )
        )
    return list({(f.code, f.what): f for f in findings}.values())


def _linked(env: Mapping[str, str], root: Path) -> list[Finding]:
    """The opt-in of the build that keeps kernels linked with mori's device functions, said at every start."""
    path = root / env.get("MEGAMOE_KERNELS", "/opt/megamoe/kernels").lstrip("/") / "aot.json"
    try:
        needs = json.loads(path.read_text(encoding="utf-8"))["depends_on"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # what is wrong with a baked file, its hash in the stack lock says
    if "bitcode" not in needs:
        return []
    return [
        Finding(
            "kernels_linked_unverified",
            "warn",
            f"stage 1 and combine come from the image's cache (KEEP_LINKED=on, bitcode {needs['bitcode'][:12]})",
            "loading such an entry is unverified on a GPU; FlyDSL itself declines to keep them",
            "gate this image like a new one; build without KEEP_LINKED to have them compiled at each start",
        )
    ]


def outcome(argv: list[str], env: Mapping[str, str], root: Path = Path("/")) -> Outcome:
    """Facts, judgement and the image's own identity as one result."""
    try:
        findings = judge(argv, env, collect(env, root))
    except Problem as problem:
        return outcome_of_problem(problem)
    try:
        findings += identity.drift(identity.read(root / identity.LOCK_PATH.relative_to("/")))
    except Problem as problem:  # an image without its lock is as little the built one as one with other files
        findings += [Finding.from_reason(reason) for reason in problem.reasons]
    findings += _linked(env, root)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        changed = all(f.code in _CHANGED for f in errors)
        count = "1 reason" if len(errors) == 1 else f"{len(errors)} reasons"
        exit_code = Exit.CHECK_FAILED if changed else Exit.REFUSED
        return Outcome("refused", exit_code, f"{count}; no weight was read", findings)
    warned = any(f.severity == "warn" for f in findings)
    return Outcome("warn" if warned else "pass", Exit.PASS, "the launch is legal; ATOM starts", findings)


def seed_caches(env: Mapping[str, str]) -> int:
    """Puts what was compiled ahead of time where the engine looks for it and may also write. Returns kernels seeded.

    FlyDSL locks each entry that it reads, and aiter imports a module only from the directory that it compiles to, so a
    read-only copy would be passed over: FlyDSL's entries (a few hundred KB) and mori's device code are copied, aiter's
    modules are linked.
    """
    target = Path(env["FLYDSL_RUNTIME_CACHE_DIR"])
    baked = Path(env["MEGAMOE_KERNELS"])
    key = json.loads((baked / "aot.json").read_text(encoding="utf-8"))["cache"]
    shutil.copytree(baked / key, target, dirs_exist_ok=True, copy_function=shutil.copyfile)
    seeded = sum(1 for _ in (baked / key).rglob("*.pkl"))
    code = baked.parent / "mori/jit"
    if code.is_dir():  # absent where mori's steps did not run, and `serve` refuses such an image
        mori = Path(env["MORI_JIT_CACHE_DIR"])
        for path in code.rglob("*"):
            if path.is_symlink():  # copytree makes links anew, and a restarted container has them already
                (mori / path.relative_to(code)).unlink(missing_ok=True)
        shutil.copytree(code, mori, symlinks=True, dirs_exist_ok=True, copy_function=shutil.copyfile)
    spec = importlib.util.find_spec("aiter")
    if spec is not None and spec.origin is not None:
        jit = Path(spec.origin).parent / "jit"
        if (jit / "flydsl_cache").is_dir():
            shutil.copytree(jit / "flydsl_cache", target, dirs_exist_ok=True, copy_function=shutil.copyfile)
        if "AITER_JIT_DIR" in env:
            folder = Path(env["AITER_JIT_DIR"])
            folder.mkdir(parents=True, exist_ok=True)
            for module in sorted(jit.glob("*.so")):
                link = folder / module.name
                link.unlink(missing_ok=True)
                link.symlink_to(module)
    return seeded


def command(argv: list[str], env: Mapping[str, str]) -> list[str]:
    """What is executed: the engine's module with the flags as given, and the port that the health check asks."""
    flags = list(argv)
    if not any(word == "--server-port" or word.startswith("--server-port=") for word in flags):
        flags += ["--server-port", env.get("MEGAMOE_PORT", "8000")]
    return [sys.executable, "-m", env["MEGAMOE_ENGINE_MODULE"], *flags]


def main(argv: list[str]) -> NoReturn:
    check = argv[:1] == ["--check"]
    flags = argv[1:] if check else argv
    result = outcome(flags, os.environ)
    print(as_text(result), file=sys.stderr, flush=True)
    if check or result.exit_code is not Exit.PASS:
        sys.exit(int(result.exit_code))
    seed_caches(os.environ)
    words = command(flags, os.environ)
    os.execv(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
