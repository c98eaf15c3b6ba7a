"""The adapter's environment, parsed once into one frozen dataclass. Every error names its variable."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem, Reason

GIB = 2**30
DEFAULT_STATUS_DIR = Path("/run/megamoe/status")
DEFAULT_MTPR = 8192
PREFIX = "MEGAMOE_"
ADAPTER_NAMES = (
    "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT",
    "MEGAMOE_ASYNC_COPY",
    "MEGAMOE_SELFTEST",
    "MEGAMOE_STATUS_DIR",
    "MEGAMOE_WITHOUT_EDITS",
)
# Read by the command line, the image and the rehearsal in the same containers; a name beyond these is a typing mistake.
_OTHER_NAMES = frozenset(
    {
        "MEGAMOE_API_KEY",
        "MEGAMOE_AUTHORIZED_KEY",
        "MEGAMOE_DEBIAN_MIRROR",
        "MEGAMOE_DEBUG",
        "MEGAMOE_ENGINE_MODULE",
        "MEGAMOE_EVENTS",
        "MEGAMOE_LM_EVAL_VENV",
        "MEGAMOE_PORT",
        "MEGAMOE_REGISTRY",
        "MEGAMOE_STACK_LOCK",
        "MEGAMOE_STATE",
        "MEGAMOE_ATOM_DIR",
        "MEGAMOE_ATOM_MAIN_DIR",
        "MEGAMOE_ATOM_RC0_DIR",
        "MEGAMOE_ATOM_PYTHON",
        "MEGAMOE_FLYDSL_PYTHON",
        "MEGAMOE_FLYDSL_DIR",
        "MEGAMOE_GIT_BASE",
        "MEGAMOE_DEVICE_LIBS",
        "MEGAMOE_KERNELS",
        "MEGAMOE_LANE_CACHE",
        "MEGAMOE_LLD",
        "MEGAMOE_MORI_BC",
        "MEGAMOE_NOT_RUN",
        "MEGAMOE_PROFILE",
        "MEGAMOE_STAND_IN",
    }
)
_OTHER_PREFIXES = ("MEGAMOE_REHEARSAL_", "MEGAMOE_NODE_", "MEGAMOE_GID_")
_TRUE, _FALSE = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")
_HEAP_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_HEAP_MODES = {"static_heap": "static", "vmm_heap": "vmm", "isolation": "isolation"}
_HEAP_DEFAULTS = {"static": 4 * GIB, "vmm": 16 * GIB, "isolation": 0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks of the adapter.

    requested: both switches of the contract. heap_bytes: of the symmetric heap, as mori will take it.
    shmem_mode: static, vmm or isolation; shmem_mode_known: False when mori would warn and take static.
    kernel_edits: the edits that FlyDSL's kernels must carry (MEGAMOE_WITHOUT_EDITS, MEGAMOE_ASYNC_COPY).
    """

    use_flydsl: bool = False
    use_flydsl_fused: bool = False
    kernels_path: Path | None = None
    mtpr: int | None = None
    accept_no_swiglu_limit: bool = False
    selftest: bool = True
    status_dir: Path = DEFAULT_STATUS_DIR
    shmem_mode: str = "static"
    shmem_mode_known: bool = True
    heap_bytes: int = 4 * GIB
    compile_only: bool = False
    triton_moe: bool = False
    triton_moe_decode: bool = False
    kernel_edits: frozenset[str] = frozenset(kernel_edits.EDITS)

    @property
    def requested(self) -> bool:
        return self.use_flydsl and self.use_flydsl_fused


def _switch(env: Mapping[str, str], name: str, default: bool, reasons: list[Reason]) -> bool:
    if name not in env:
        return default
    value = env[name].strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    reasons.append(
        Reason(
            "env_switch",
            f"{name}={env[name]!r}",
            "it is a switch, and a value that is read either way by two programs turns on half of a feature",
            f"set {name} to 1 or 0 (on and off are accepted too)",
        )
    )
    return default


def parse_heap_size(text: str, name: str = "MORI_SHMEM_HEAP_SIZE") -> int:
    """Bytes of a size as mori reads it: K, M, G with or without B or iB, all binary.

    Raises:
        Problem: "heap_size", for what mori would throw on or silently misread ("1.5G" is 1 GiB to mori).
    """
    found = re.fullmatch(r"\s*(\d+)([KkMmGg]?)(?:[Bb]|i[Bb])?\s*", text)
    if found is None or (not found[2] and text.strip()[-1:] in "Bb"):
        raise Problem(
            "heap_size",
            exit_code=Exit.REFUSED,
            what=f"{name}={text!r} is not a size",
            why="mori reads leading digits and one of K, M, G (binary); it drops or rejects anything else",
            fix=f"set {name} to whole units, for example 6G",
        )
    return int(found[1]) * _HEAP_UNITS[found[2].upper()]


def unknown_names(env: Mapping[str, str]) -> list[Reason]:
    """A reason per MEGAMOE_* variable that nothing here reads, with the nearest name that exists."""
    reasons = []
    known = [*ADAPTER_NAMES, *sorted(_OTHER_NAMES)]
    for name in sorted(env):
        if not name.startswith(PREFIX) or name in known or name.startswith(_OTHER_PREFIXES):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        reasons.append(
            Reason(
                "env_unknown",
                f"{name} is set, and nothing reads it",
                "a mistyped setting would be ignored, and its default would run in its place",
                f"did you mean {near}? Otherwise unset {name}",
            )
        )
    return reasons


def parse_kernel_edits(env: Mapping[str, str]) -> tuple[frozenset[str], bool]:
    """(edits of FlyDSL to leave out, whether stage-1 copies asynchronously).

    MEGAMOE_WITHOUT_EDITS: names out of kernel_edits.EDITS, divided by commas or spaces. MEGAMOE_ASYNC_COPY: a switch.

    Raises:
        Problem: env_switch, kernel_edit.
    """
    reasons: list[Reason] = []
    async_copy = _switch(env, "MEGAMOE_ASYNC_COPY", True, reasons)
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)
    left_out = frozenset(env.get("MEGAMOE_WITHOUT_EDITS", "").replace(",", " ").split())
    kernel_edits.wanted(left_out)
    return left_out, async_copy


def parse(env: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment once.

    Raises:
        Problem: env_switch, env_unknown, env_number, heap_size, kernel_edit; all of them together, exit 2.
    """
    env = os.environ if env is None else env
    reasons = unknown_names(env)
    mode_text = env.get("MORI_SHMEM_MODE", "static_heap")
    # mori compares all-lower or all-upper spellings only, and takes a static heap for anything else.
    known = mode_text in _HEAP_MODES or (mode_text.isupper() and mode_text.lower() in _HEAP_MODES)
    mode = _HEAP_MODES[mode_text.lower()] if known else "static"
    heap = _HEAP_DEFAULTS[mode]
    if env.get("MORI_SHMEM_HEAP_SIZE"):
        try:
            heap = parse_heap_size(env["MORI_SHMEM_HEAP_SIZE"])
        except Problem as problem:
            reasons += problem.reasons
    mtpr: int | None = None
    if env.get("ATOM_MEGA_MTPR", "").strip():
        if env["ATOM_MEGA_MTPR"].strip().isascii() and env["ATOM_MEGA_MTPR"].strip().isdigit():
            mtpr = int(env["ATOM_MEGA_MTPR"])
        else:
            reasons.append(
                Reason(
                    "env_number",
                    f"ATOM_MEGA_MTPR={env['ATOM_MEGA_MTPR']!r} is not a whole number",
                    "it is the number of tokens per rank that the buffers are sized for",
                    "set ATOM_MEGA_MTPR=8192, or unset it",
                )
            )
    edits = frozenset(kernel_edits.EDITS)
    try:
        left_out, async_copy = parse_kernel_edits(env)
        edits = kernel_edits.wanted(left_out, async_copy=async_copy)
    except Problem as problem:
        reasons += problem.reasons
    path = env.get("ATOM_FLYDSL_KERNELS_PATH", "").strip()
    status = env.get("MEGAMOE_STATUS_DIR", "").strip()
    settings = Settings(
        use_flydsl=_switch(env, "ATOM_USE_FLYDSL", False, reasons),
        use_flydsl_fused=_switch(env, "ATOM_USE_FLYDSL_FUSED", False, reasons),
        kernels_path=Path(path) if path else None,
        mtpr=mtpr,
        accept_no_swiglu_limit=_switch(env, "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT", False, reasons),
        selftest=_switch(env, "MEGAMOE_SELFTEST", True, reasons),
        status_dir=Path(status) if status else DEFAULT_STATUS_DIR,
        shmem_mode=mode,
        shmem_mode_known=known,
        heap_bytes=heap,
        compile_only=_switch(env, "COMPILE_ONLY", False, reasons),
        triton_moe=_switch(env, "ATOM_USE_TRITON_MOE", False, reasons),
        triton_moe_decode=_switch(env, "ATOM_USE_TRITON_MOE_DECODE", False, reasons),
        kernel_edits=edits,
    )
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)
    return settings
