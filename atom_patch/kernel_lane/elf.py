"""A gfx950 code object: machine code, kernels and their metadata, read from the bytes and refused when in doubt.

Source: LLVM, "User Guide for AMDGPU Backend" (code object V5/V6: ELF header, note record 32 as MessagePack, kernel
descriptor); sizes and offsets are those of the ELF-64 specification.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from megamoe_atom.problem import Exit, Problem

EM_AMDGPU = 224
OSABI_HSA = 64
GFX950 = 0x4F  # EF_AMDGPU_MACH_AMDGCN_GFX950, the low byte of e_flags
ABI_VERSIONS = {3: 5, 4: 6}  # e_ident[EI_ABIVERSION] -> code object version
_NOTE_METADATA = 32
# Metadata of a kernel that this lane understands; a key beyond these changes a meaning we do not know.
_KERNEL_KEYS = {
    ".args", ".name", ".symbol", ".kernarg_segment_size", ".kernarg_segment_align", ".group_segment_fixed_size",
    ".private_segment_fixed_size", ".sgpr_count", ".sgpr_spill_count", ".vgpr_count", ".vgpr_spill_count",
    ".agpr_count",
    ".max_flat_workgroup_size", ".wavefront_size", ".uses_dynamic_stack", ".uniform_work_group_size", ".language",
    ".language_version", ".reqd_workgroup_size", ".workgroup_processor_mode", ".kind", ".workgroup_size_hint",
}  # fmt: skip
_KNOWN_HIDDEN = ("hidden_block_count_", "hidden_group_size_", "hidden_remainder_", "hidden_global_offset_")


def _bad(code: str, what: str, why: str, fix: str) -> Problem:
    return Problem(code, what=what, why=why, fix=fix, exit_code=Exit.REFUSED)


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: bytes [offset, offset+size) of the kernarg segment."""

    name: str
    offset: int
    size: int
    kind: str

    @property
    def hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The words of a kernel descriptor that say how hardware starts a wave; metadata only repeats some of it."""

    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    @property
    def vector_registers(self) -> int:
        """Vector registers that a lane is given, AGPRs included; may exceed what metadata counts as used."""
        return ((self.rsrc1 & 63) + 1) * 8

    @property
    def first_agpr(self) -> int:
        """Where the AGPRs begin among the vector registers."""
        return ((self.rsrc3 & 63) + 1) * 4

    @property
    def scalar_registers(self) -> int:
        return ((self.rsrc1 >> 6 & 15) // 2 + 1) * 16


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its entry (address in the code), registers, LDS and arguments; sizes in bytes, counts as in
    metadata."""

    name: str
    entry: int
    end: int
    kernarg_size: int
    lds: int
    scratch: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    max_threads: int
    arguments: tuple[Argument, ...]
    wavefront: int
    user_sgprs: int
    group_id: tuple[bool, bool, bool]
    descriptor: Descriptor
    metadata: dict[str, Any] = field(repr=False, hash=False, compare=False, default_factory=dict)

    def kernarg(self, values: Sequence[bytes], grid: Sequence[int], block: Sequence[int]) -> bytes:
        """The kernarg segment of one launch: explicit values in order, and the hidden ones that HIP would write."""
        segment = bytearray(self.kernarg_size)
        explicit = [a for a in self.arguments if not a.hidden]
        for argument, value in zip(explicit, values, strict=True):
            segment[argument.offset : argument.offset + argument.size] = value
        for a in self.arguments:
            axis = "xyz".find(a.kind[-1])
            if a.kind.startswith("hidden_block_count_"):
                struct.pack_into("<I", segment, a.offset, grid[axis])
            elif a.kind.startswith("hidden_group_size_"):
                struct.pack_into("<H", segment, a.offset, block[axis])
            elif a.kind == "hidden_grid_dims":
                used = [n for n in range(3) if grid[n] * block[n] > 1]
                struct.pack_into("<H", segment, a.offset, 1 + max(used, default=0))
        return bytes(segment)

    def defined(self) -> list[tuple[int, int]]:
        """Spans [start, end) of the segment that `kernarg` gives a value: no padding, no other hidden argument."""
        known = (*_KNOWN_HIDDEN, "hidden_grid_dims")
        return [(a.offset, a.offset + a.size) for a in self.arguments if not a.hidden or a.kind.startswith(known)]


@dataclass(frozen=True, slots=True)
class CodeObject:
    """`text` is the machine code, loaded at address `base` of the object; `undefined` names symbols nobody defines."""

    target: str
    version: int
    text: bytes
    base: int
    kernels: tuple[Kernel, ...]
    undefined: tuple[str, ...]
    sizes: dict[str, int] = field(hash=False, compare=False, default_factory=dict)

    def kernel(self, name: str) -> Kernel:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise _bad(
            "no_kernel",
            f"the code object holds {[k.name for k in self.kernels]}, not {name}",
            "a launch names the kernel that it runs",
            "take the kernel's name from the code object's metadata",
        )

    def code(self, kernel: Kernel) -> bytes:
        """The kernel's machine code, from its entry to the end of its symbol."""
        return self.text[kernel.entry - self.base : kernel.end - self.base]


def image_at(address: int) -> bytes:
    """The bytes of a code object in memory, its length from its own section table (hipModuleLoadData passes none)."""
    header = ctypes.string_at(address, 64)
    if header[:4] != b"\x7fELF":
        raise _bad(
            "not_elf", f"a module starts with {header[:4]!r}", "a code object is an ELF file", "compile for gfx950 only"
        )
    (table,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    return ctypes.string_at(address, table + size * count)


def read(data: bytes, *, name: str = "code object") -> CodeObject:
    """Parses a code object.

    Raises:
        Problem: not_elf, elf_truncated, wrong_arch, code_object_version, metadata, metadata_unknown.
    """
    try:
        return _read(data, name)
    except (
        struct.error,
        IndexError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _bad(
            "elf_truncated",
            f"{name} ({len(data)} bytes) does not hold what its headers announce: {type(error).__name__} {error}",
            "part of the machine code or its metadata is missing or garbled",
            "copy or build it again, and compare its sha256",
        ) from error


def _read(data: bytes, name: str) -> CodeObject:
    if data[:4] != b"\x7fELF":
        raise _bad("not_elf", f"{name} starts with {data[:4]!r}", "a code object is an ELF file", "pass a .hsaco file")
    machine, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    if data[4] != 2 or machine != EM_AMDGPU or data[7] != OSABI_HSA:
        raise _bad(
            "wrong_arch",
            f"{name} is an ELF file for machine {machine}, OS ABI {data[7]}",
            f"an AMD GPU code object has machine {EM_AMDGPU} and OS ABI {OSABI_HSA}",
            "pass the device code, not the host library that carries it",
        )
    if flags & 0xFF != GFX950:
        raise _bad(
            "wrong_arch",
            f"{name} is for AMD machine number {flags & 0xFF:#x}, not gfx950 ({GFX950:#x})",
            "other architectures encode other instructions with the same bits",
            "compile with ARCH=gfx950",
        )
    if data[8] not in ABI_VERSIONS:
        raise _bad(
            "code_object_version",
            f"{name} has ABI version {data[8]}",
            f"this lane knows {sorted(ABI_VERSIONS)} (code object versions {sorted(ABI_VERSIONS.values())})",
            "compile with -mcode-object-version=5 or 6",
        )
    sections = _sections(data, name)
    text = next((s for s in sections if s["name"] == ".text"), None)
    note = next((s for s in sections if s["type"] == 7 and s["name"] == ".note"), None)
    if text is None or note is None:
        raise _bad(
            "metadata",
            f"{name} has no {'.text' if text is None else '.note'} section",
            "there is nothing to run",
            "build it again",
        )
    metadata = _note(data[note["offset"] : note["offset"] + note["size"]], name)
    symbols, undefined = _symbols(data, sections)
    kernels = tuple(_kernel(k, data, sections, symbols, name) for k in metadata.get("amdhsa.kernels", []))
    if not kernels:
        raise _bad("metadata", f"{name} lists no kernels", "there is nothing to run", "build it again")
    return CodeObject(
        str(metadata.get("amdhsa.target", "")),
        ABI_VERSIONS[data[8]],
        data[text["offset"] : text["offset"] + text["size"]],
        text["address"],
        kernels,
        undefined,
        {s["name"]: s["size"] for s in sections if s["name"]},
    )


def _sections(data: bytes, name: str) -> list[dict[str, Any]]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = []
    for n in range(count):
        at, kind, _flags, address, offset, length, link, info, _align, entry = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + n * size
        )
        if kind != 8 and offset + length > len(data):
            raise struct.error(f"section {n} ends at byte {offset + length}")
        rows.append({"at": at, "type": kind, "address": address, "offset": offset, "size": length, "link": link,
                     "info": info, "entry": entry})  # fmt: skip
    strings = rows[names]
    for row in rows:
        row["name"] = _string(data, strings["offset"] + row["at"])
    return rows


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbols(data: bytes, sections: list[dict[str, Any]]) -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    found: dict[str, tuple[int, int]] = {}
    undefined = []
    for table in (s for s in sections if s["type"] in (2, 11)):
        strings = sections[table["link"]]["offset"]
        for at in range(table["offset"] + 24, table["offset"] + table["size"], 24):
            name_at, info, _other, section, value, size = struct.unpack_from("<IBBHQQ", data, at)
            symbol = _string(data, strings + name_at)
            if section == 0 and info >> 4 == 1:
                undefined.append(symbol)
            elif symbol:
                found[symbol] = (value, size)
    return found, tuple(sorted(set(undefined)))


def _note(note: bytes, name: str) -> dict[str, Any]:
    at = 0
    while at + 12 <= len(note):
        name_size, size, kind = struct.unpack_from("<III", note, at)
        start = at + 12 + (name_size + 3) // 4 * 4
        if kind == _NOTE_METADATA:
            if start + size > len(note):
                raise struct.error("the metadata note is cut off")
            value, _ = _unpack(note[start : start + size], 0)
            if not isinstance(value, dict):
                raise _bad("metadata", f"{name}: the metadata is no map", "it names the kernels", "build it again")
            return value
        at = start + (size + 3) // 4 * 4
    raise _bad("metadata", f"{name} has no metadata note", "it names the kernels and their arguments", "build it again")


def _kernel(
    m: dict[str, Any], data: bytes, sections: list[dict[str, Any]], symbols: dict[str, tuple[int, int]], name: str
) -> Kernel:
    unknown = sorted(set(m) - _KERNEL_KEYS)
    if unknown:
        raise _bad(
            "metadata_unknown",
            f"{name}: kernel {m.get('.name')} has metadata {unknown}",
            "a key that is not understood may change how the kernel must be started",
            "check the key in LLVM's AMDGPU guide and teach kernel_lane/elf.py",
        )
    missing = [key for key in (".name", ".symbol", ".kernarg_segment_size", ".wavefront_size") if key not in m]
    if missing or m[".symbol"] not in symbols or m[".name"] not in symbols:
        raise _bad(
            "metadata",
            f"{name}: kernel {m.get('.name')} lacks {missing or 'its symbols'}",
            "it cannot be started without them",
            "build it again",
        )
    at, _ = symbols[m[".symbol"]]
    held = (s for s in sections if s["address"] <= at < s["address"] + s["size"] and s["type"] != 0 and s["address"])
    home = next(held, None)
    if home is None:
        what = f"{name}: no section holds {m['.symbol']} at {at:#x}"
        raise _bad("metadata", what, "nothing tells how to start the kernel", "build it again")
    descriptor = data[home["offset"] + at - home["address"] :][:64]
    lds, scratch, kernarg_size, _, entry_offset = struct.unpack_from("<IIIIq", descriptor, 0)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", descriptor, 44)
    entry, size = symbols[m[".name"]]
    if at + entry_offset != entry:
        raise _bad(
            "metadata", f"{name}: descriptor and symbol of {m['.name']} disagree", "no known entry", "build it again"
        )
    arguments = []
    for n, a in enumerate(m.get(".args", [])):
        kind = str(a[".value_kind"])
        if kind.startswith("hidden_") and not (kind.startswith(_KNOWN_HIDDEN) or kind in _HIDDEN_UNREAD):
            raise _bad(
                "metadata_unknown", f"{name}: argument kind {kind}", "HIP would fill it", "teach kernel_lane/elf.py"
            )
        arguments.append(Argument(str(a.get(".name", f"arg{n}")), int(a[".offset"]), int(a[".size"]), kind))
    return Kernel(
        name=m[".name"], entry=entry, end=entry + size, kernarg_size=kernarg_size, lds=lds, scratch=scratch,
        vgprs=int(m.get(".vgpr_count", 0)), agprs=int(m.get(".agpr_count", 0)), sgprs=int(m.get(".sgpr_count", 0)),
        vgpr_spills=int(m.get(".vgpr_spill_count", 0)), sgpr_spills=int(m.get(".sgpr_spill_count", 0)),
        max_threads=int(m.get(".max_flat_workgroup_size", 1024)), arguments=tuple(arguments),
        wavefront=int(m[".wavefront_size"]), user_sgprs=(rsrc2 >> 1) & 31,
        group_id=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        descriptor=Descriptor(rsrc1, rsrc2, rsrc3, properties, preload),
        metadata={k: v for k, v in m.items() if k != ".args"},
    )  # fmt: skip


# Hidden arguments that a launch may list and that HIP would fill. All but hidden_grid_dims stay undefined here: a read
# of one finds poison, and is named where unwritten memory is looked for.
_HIDDEN_UNREAD = {
    "hidden_grid_dims", "hidden_none", "hidden_printf_buffer", "hidden_hostcall_buffer", "hidden_multigrid_sync_arg",
    "hidden_heap_v1", "hidden_default_queue", "hidden_completion_action", "hidden_private_base", "hidden_shared_base",
    "hidden_queue_ptr", "hidden_dynamic_lds_size",
}  # fmt: skip


def _unpack(b: bytes, i: int) -> tuple[Any, int]:
    """One MessagePack value at b[i:]; only the kinds that AMDGPU metadata uses."""
    t = b[i]
    i += 1
    if t < 0x80:
        return t, i
    if t < 0x90:
        return _unpack_map(b, i, t & 15)
    if t < 0xA0:
        return _unpack_list(b, i, t & 15)
    if t < 0xC0:
        return b[i : i + (t & 31)].decode(), i + (t & 31)
    if t in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[t], i
    if 0xCC <= t <= 0xD3:
        n = 1 << ((t - 0xCC) & 3)
        return int.from_bytes(b[i : i + n], "big", signed=t >= 0xD0), i + n
    if 0xD9 <= t <= 0xDB:
        k = 1 << (t - 0xD9)
        n = int.from_bytes(b[i : i + k], "big")
        return b[i + k : i + k + n].decode(), i + k + n
    if 0xDC <= t <= 0xDF:
        k = 2 << (t & 1)
        n = int.from_bytes(b[i : i + k], "big")
        return (_unpack_list if t < 0xDE else _unpack_map)(b, i + k, n)
    raise _bad("metadata_unknown", f"MessagePack byte {t:#x}", "AMDGPU metadata has no such value", "build it again")


def _unpack_map(b: bytes, i: int, n: int) -> tuple[dict[Any, Any], int]:
    value = {}
    for _ in range(n):
        key, i = _unpack(b, i)
        value[key], i = _unpack(b, i)
    return value, i


def _unpack_list(b: bytes, i: int, n: int) -> tuple[list[Any], int]:
    value = []
    for _ in range(n):
        item, i = _unpack(b, i)
        value.append(item)
    return value, i
