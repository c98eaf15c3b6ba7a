"""`megamoe kernels lint`: static checks of compiled kernels, before one of them runs.

collect finds code objects (files, folders, bundles, FlyDSL's cache), judge reads them, the verb prints. The rules come
from faults that were found in the pinned kernels by executing them; a finding's fix names the edit that closes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb
from megamoe.kernels.lint_fit import FULL_CU_COUNT, Need, groups_per_cu, resident_groups
from megamoe.kernels.lint_flow import Flow
from megamoe.kernels.lint_order import early_flags, unwaited_stores

if TYPE_CHECKING:
    from kernel_lane.elf import CodeObject, Kernel

_ELF = b"\x7fELF"
_ESCAPED = b'"\\7FELF'
_SUFFIXES = (".hsaco", ".co", ".pkl", ".mlir")
_AMDGPU = (224).to_bytes(2, "little")


@dataclass(frozen=True, slots=True)
class Image:
    """A code object to look at. groups: work-groups of a launch per kernel name; dynamic_lds: bytes per kernel name."""

    label: str
    data: bytes
    groups: dict[str, int] = field(default_factory=dict)
    dynamic_lds: dict[str, int] = field(default_factory=dict)


# ---- collect


def _unescape(text: bytes) -> bytes:
    """The bytes of an MLIR string literal: two hex digits or one character after each backslash."""
    return re.sub(
        rb"\\([0-9A-Fa-f]{2}|.)",
        lambda m: bytes([int(m[1], 16)]) if len(m[1]) == 2 else {b"n": b"\n", b"t": b"\t"}.get(m[1], m[1]),
        text,
        flags=re.DOTALL,
    )


def code_objects_in(data: bytes) -> list[bytes]:
    """The AMD code objects in a file: the file itself, or those in MLIR text, alone or in a cache entry of FlyDSL.

    A cache entry is a pickle; it is searched, never loaded, so that looking at one runs nothing.
    """
    if data.startswith(_ELF):
        return [data]
    found = []
    at = data.find(_ESCAPED)
    while at >= 0:
        end = at + 1
        while data[end : end + 1] not in (b'"', b""):
            end += 2 if data[end : end + 1] == b"\\" else 1
        image = _unescape(data[at + 1 : end])
        if image[18:20] == _AMDGPU:
            found.append(image)
        at = data.find(_ESCAPED, end)
    return found


def _of_bundle(root: Path) -> list[Image]:
    """The code objects of a bundle, each with the largest launch that the bundle makes of it.

    Raises:
        Problem: bundle_format, bundle_file (exit 2): a launch whose code cannot be looked at is no launch that passed.
    """
    from kernel_lane.bundle import Bundle

    bundle = Bundle.parse(root)
    bundle.check_code()
    launches: dict[str, list[dict[str, Any]]] = {}
    for step in bundle.steps:
        for launch in step.get("launches", ()):
            launches.setdefault(launch["code"], []).append(launch)
    images = []
    for path in sorted((root / "code").glob("*.hsaco")):
        groups: dict[str, int] = {}
        lds: dict[str, int] = {}
        for launch in launches.get(path.relative_to(root).as_posix(), []):
            grid = launch["grid"]
            name = launch["kernel"]
            groups[name] = max(groups.get(name, 0), grid[0] * grid[1] * grid[2])
            lds[name] = max(lds.get(name, 0), launch["dynamic_lds"])
        images.append(Image(str(path), path.read_bytes(), groups, lds))
    return images


def collect(paths: Iterable[Path]) -> list[Image]:
    """Every code object below the given files and folders, each content once, in path order.

    Raises:
        Problem: lint_path (exit 4), no_code_object (exit 5), for what would otherwise pass by holding nothing;
            bundle_format, bundle_file (exit 2).
    """
    images: list[Image] = []
    for path in paths:
        if not path.exists():
            raise _unread(path, "does not exist")
        found: list[Image] = []
        if path.is_file():
            found = _of_file(path)
        else:
            bundles = sorted(p.parent for p in path.rglob("bundle.json"))
            for bundle in bundles:
                found += _of_bundle(bundle)
            for file in sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and (p.is_file() or p.is_symlink())):
                if not any(file.is_relative_to(b) for b in bundles):
                    found += _of_file(file)
        if not found:
            raise _nothing_in(path)
        images += found
    unique: dict[str, Image] = {}
    for image in images:
        unique.setdefault(hashlib.sha256(image.data).hexdigest(), image)
    return list(unique.values())


def _unread(path: Path, what: str) -> Problem:
    return Problem(
        "lint_path",
        what=f"{path} {what}",
        why="a kernel that was not read is not a kernel that passed",
        fix="pass code objects (.hsaco), bundles, or a folder that holds them, such as FlyDSL's cache",
        exit_code=Exit.PRECONDITION,
    )


def _nothing_in(path: Path) -> Problem:
    return Problem(
        "no_code_object",
        what=f"{path} holds no AMD code object",
        why="a check of nothing proves nothing",
        fix="pass .hsaco files, a bundle of `megamoe kernels capture`, or a filled FlyDSL cache (0.2.2 to 0.2.4)",
        exit_code=Exit.NO_EVIDENCE,
    )


def _of_file(path: Path) -> list[Image]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unread(path, f"cannot be read: {error.strerror}") from error
    if path.suffix in (".hsaco", ".co"):
        return [Image(str(path), data)]
    objects = code_objects_in(data)
    if not objects:  # a cache entry in a form that we cannot read is a kernel that nobody has looked at
        raise _nothing_in(path)
    names = [str(path)] if len(objects) == 1 else [f"{path}#{n}" for n in range(len(objects))]
    return [Image(name, image) for name, image in zip(names, objects, strict=True)]


# ---- judge


def judge(images: list[Image], *, cu_count: int) -> Outcome:
    """Every rule on every kernel. The data holds, per kernel, what was measured, so that a pass can be read too."""
    findings: list[Finding] = []
    rows: list[dict[str, Any]] = []
    for image in images:
        new, kernels = lint_image(image, cu_count=cu_count)
        findings += new
        rows += kernels
    bad = len({f.file for f in findings if f.severity == "error"})
    return outcome_from(
        findings,
        summary_ok=f"{len(images)} code objects, {len(rows)} kernels: nothing found",
        summary_bad=f"{bad} of {len(images)} code objects have faults",
        data={"cu_count": cu_count, "kernels": rows},
        text="\n".join(_row(r) for r in rows),
    )


def _row(r: dict[str, Any]) -> str:
    waits = f"{r['counted_waits']} counted waits leave {r['lds_dma_left']} LDS-DMA" if r["counted_waits"] else "-"
    return (
        f"{r['kernel']}  instructions {r['instructions']}  VGPR {r['vgprs']} (AGPR {r['agprs']})  SGPR {r['sgprs']}  "
        f"LDS {r['lds']}  groups/CU {r['groups_per_cu']}  {waits}"
    )


def lint_image(image: Image, *, cu_count: int) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Findings and measurements of one code object. A file that cannot be read is a finding, not the end."""
    from kernel_lane import elf

    try:
        code = elf.read(image.data, name=image.label)
    except Problem as problem:
        return [_at(Finding.from_reason(r), image.label) for r in problem.reasons], []
    findings = [
        Finding(
            "undefined_symbol",
            "error",
            f"symbol {symbol} is undefined",
            "a GPU refuses to load this object, or calls address 0",
            "link the real device library (ockl.bc of ROCm for __ockl_*), not an empty one, and compile again",
            file=image.label,
        )
        for symbol in code.undefined
    ]
    rows = []
    for kernel in code.kernels:
        new, row = _lint_kernel(image, code, kernel, cu_count)
        findings += new
        rows += row
    return findings, rows


def _at(finding: Finding, label: str) -> Finding:
    return Finding(finding.code, finding.severity, finding.what, finding.why, finding.fix, file=label)


def _lint_kernel(
    image: Image, code: CodeObject, kernel: Kernel, cu_count: int
) -> tuple[list[Finding], list[dict[str, Any]]]:
    from kernel_lane.decode import decode
    from kernel_lane.machine.start import refusals
    from kernel_lane.text import text

    from megamoe.kernels.lint_silicon import gap_in_words, gaps, packed_float_faults
    from megamoe.kernels.lint_steps import step_of, waits_for_others

    findings: list[Finding] = []

    def add(rule: str, what: str, why: str, fix: str) -> None:
        findings.append(Finding(rule, "error", f"{kernel.name}: {what}", why, fix, file=image.label))

    if kernel.scratch or kernel.metadata.get(".uses_dynamic_stack"):
        add(
            "scratch",
            f"uses {kernel.scratch} bytes of scratch per lane" if kernel.scratch else "needs a stack of unknown size",
            "registers spilled to memory cost more than the fused kernel gains, and no baked kernel has any",
            "look for a changed tile, waves_per_eu or compiler; compare the register figures with the proven ones",
        )
    try:
        instructions = decode(code.code(kernel), kernel.entry)
    except Problem as problem:
        return findings + [_at(Finding.from_reason(r), image.label) for r in problem.reasons], []
    for refused in refusals(kernel, instructions):
        findings += [_at(Finding.from_reason(r), image.label) for r in refused.reasons]
    flow = Flow([step_of(i) for i in instructions])
    barriers = flow.barriers()
    left = [b for b in barriers if b.lds_dma]
    if left:
        b = max(left, key=lambda b: b.lds_dma)
        wait = f"`s_waitcnt vmcnt({b.vmcnt})` at {b.wait_pc:#x}" if b.wait_pc is not None else "no wait"
        add(
            "tile_not_landed",
            f"{len(left)} of {len(barriers)} barriers may be crossed with LDS-DMA of a wave under way; {b.lds_dma} at "
            f"{b.pc:#x}, after {wait}",
            "other waves read that part of the tile right behind the barrier: wrong tiles, rarely, silently (L1)",
            "megamoe patch apply --flydsl DIR (edit tile_wait), then compile again; or MEGAMOE_ASYNC_COPY=0",
        )
    for e in early_flags(flow):
        add(
            "flag_before_data",
            f"the flag at {e.flag:#x} is stored by some lanes before others store the data at {e.data:#x} (and publish "
            f"again at {e.again:#x})",
            "a reader that is quick takes the flag and old data: tokens go to wrong experts, silently (E9)",
            "megamoe patch apply --flydsl DIR (edit publish_order), then compile again; or use the compact layout",
        )
    for u in unwaited_stores(flow):
        add(
            "payload_not_waited",
            f"{u.stores} stores may be under way in a wave at the barrier at {u.barrier:#x}; the release at "
            f"{u.release:#x} and the arrival at {u.arrival:#x} are another wave's",
            "a wave's release covers its own stores only, so peers may read rows that have not arrived (L2)",
            "megamoe patch apply --flydsl DIR (edit payload_wait), then compile again; or use the compact layout",
        )
    close = list(gaps(instructions, flow))
    if close:
        add(
            "wait_states",
            f"{gap_in_words(close[0])}; {len(close)} such places",
            "the hardware does not hold the second one back: it reads, or loses, what the first has not finished",
            "compile with an LLVM that keeps gfx950's distances, as FlyDSL 0.2.4's does; older ones may keep gfx942's",
        )
    packed = packed_float_faults(instructions)
    if packed:
        add(
            "packed_float32",
            f"{text(packed[0])} at {packed[0].pc:#x} takes the low register of its first source and the high one of "
            f"its second; {len(packed)} such places",
            "gfx950 may read that second source as zero while matrix work is under way on the compute unit, and "
            "reports nothing (ROCm/rocMLIR#2459)",
            "swap the two sources, the same arithmetic with op_sel [1,0], as newer LLVM does; or compile without "
            "packed float32 (-packed-fp32-ops)",
        )
    spins = waits_for_others(instructions)
    need = Need(
        int(kernel.metadata.get(".reqd_workgroup_size", [kernel.max_threads])[0]) or kernel.max_threads,
        kernel.descriptor.vector_registers,
        kernel.lds + image.dynamic_lds.get(kernel.name, 0),
    )
    groups = image.groups.get(kernel.name) or _groups_in_name(kernel.name)
    room = resident_groups(need, cu_count)
    if spins and groups is not None and groups > room:
        add(
            "co_residency",
            f"its {groups} work-groups wait for each other, {cu_count} compute units hold {room} "
            f"({need.vgprs} registers, {need.lds} bytes of LDS, {need.threads} threads)",
            "a work-group that is not resident waits for one that waits for it: the launch never ends",
            "compile for the compute units that this GPU shows (CU_NUM), or remove the partition or CU mask",
        )
    counted = [b for b in barriers if b.vmcnt]
    row = {
        "file": image.label,
        "kernel": kernel.name,
        "sha256": hashlib.sha256(image.data).hexdigest(),
        "bytes": len(image.data),
        "code_object_version": code.version,
        "instructions": len(instructions),
        "vgprs": kernel.vgprs,
        "vgprs_allocated": kernel.descriptor.vector_registers,
        "agprs": kernel.agprs,
        "sgprs": kernel.sgprs,
        "lds": need.lds,
        "scratch": kernel.scratch,
        "spills": [kernel.vgpr_spills, kernel.sgpr_spills],
        "waits_for_others": spins,
        "groups": groups,
        "groups_per_cu": groups_per_cu(need),
        "barriers": len(barriers),
        "counted_waits": len(counted),
        "lds_dma_left": sum(b.lds_dma for b in barriers),
    }
    return findings, [row]


def _groups_in_name(name: str) -> int | None:
    """Stage-1's grid never exceeds the compute units that it was compiled for, which its name tells."""
    found = re.search(r"_persist_cu(\d+)_", name)
    return int(found[1]) if found else None


# ---- render

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="CODE_OBJECT...", help="Code objects (.hsaco), bundles, or folders such as FlyDSL's cache."),
]


def command(
    paths: Paths,
    cu_count: Annotated[
        int, typer.Option("--cu-count", min=1, help="Compute units that the GPU shows to a process.")
    ] = FULL_CU_COUNT,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout.")] = False,
) -> NoReturn:
    """Check compiled kernels without running them: symbols, registers, waits, publish order, gfx950's own faults."""
    run_verb("kernels lint", lambda: judge(collect(paths), cu_count=cu_count), json_output=json_output)
