"""A code object from machine code: the few ELF parts that a loader reads. For our own kernels, and for broken files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def listing(path: Path) -> list[tuple[bytes, str]]:
    """Lines `HEX HEX | text` -> (machine code, text)."""
    rows = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            words, text = line.split(" | ")
            rows.append((b"".join(struct.pack("<I", int(w, 16)) for w in words.split()), text.strip()))
    return rows


def pack(value: Any) -> bytes:
    """MessagePack, as far as metadata needs it."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">BI", 0xCE, value)
    if isinstance(value, str):
        raw = value.encode()
        return struct.pack(">BB", 0xD9, len(raw)) + raw
    if isinstance(value, list):
        return struct.pack(">BH", 0xDC, len(value)) + b"".join(pack(v) for v in value)
    return struct.pack(">BH", 0xDE, len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


# compute_pgm_rsrc1 of FlyDSL 0.2.4's kernels: round to nearest even, denormals kept, DX10_CLAMP, IEEE mode.
MODE = 0xAF0000


@dataclass
class Parts:
    """What a test may spoil: everything has the value of a sound file."""

    code: bytes
    name: str = "ours"
    lds: int = 0
    kernarg: int = 48
    scratch: int = 0
    user_sgprs: int = 2
    vgprs: int = 16
    descriptor: dict[str, int] = field(default_factory=dict)
    machine: int = 224
    flags: int = 0x4F
    osabi: int = 64
    abi: int = 4
    metadata: dict[str, Any] = field(default_factory=dict)
    undefined: tuple[str, ...] = ()


def code_object(p: Parts) -> bytes:
    """An ELF file with .text at 0x1000 (one kernel), its descriptor in .rodata, metadata in .note, and symbols."""
    text_at = 0x1000
    kernel = {
        ".name": p.name, ".symbol": f"{p.name}.kd", ".kernarg_segment_size": p.kernarg, ".kernarg_segment_align": 8,
        ".group_segment_fixed_size": p.lds, ".private_segment_fixed_size": p.scratch, ".sgpr_count": 32,
        ".vgpr_count": p.vgprs,
        ".max_flat_workgroup_size": 1024, ".wavefront_size": 64,
        ".args": [{".offset": n, ".size": 8, ".value_kind": "global_buffer"} for n in range(0, p.kernarg, 8)],
    } | p.metadata  # fmt: skip
    note_body = pack(
        {"amdhsa.kernels": [kernel], "amdhsa.target": "amdgcn-amd-amdhsa--gfx950", "amdhsa.version": [1, 2]}
    )
    note = struct.pack("<III", 7, len(note_body), 32) + b"AMDGPU\0\0" + note_body + bytes(-len(note_body) % 4)
    descriptor_at = 0x800
    descriptor = bytearray(64)
    struct.pack_into("<IIIIq", descriptor, 0, p.lds, p.scratch, p.kernarg, 0, text_at - descriptor_at)
    words = {
        "rsrc3": -(-p.vgprs // 4) - 1, "rsrc1": MODE | 3 << 6 | -(-p.vgprs // 8) - 1,
        "rsrc2": p.user_sgprs << 1 | 1 << 7, "properties": 8, "preload": 0,
    } | p.descriptor  # fmt: skip
    struct.pack_into("<IIIHH", descriptor, 44, *words.values())
    strings = b"\0" + b"".join(n.encode() + b"\0" for n in (p.name, f"{p.name}.kd", *p.undefined))
    names = [b"", b".note", b".rodata", b".text", b".strtab", b".dynsym", b".shstrtab"]
    section_names = b"\0".join(names) + b"\0"

    def symbol(name: str, section: int, value: int, size: int) -> bytes:
        return struct.pack("<IBBHQQ", strings.index(name.encode() + b"\0"), 0x12, 0, section, value, size)

    symbols = bytes(24) + symbol(p.name, 3, text_at, len(p.code)) + symbol(f"{p.name}.kd", 2, descriptor_at, 64)
    symbols += b"".join(symbol(n, 0, 0, 0) for n in p.undefined)
    bodies = [b"", note, bytes(descriptor), p.code, strings, symbols, section_names]
    addresses = [0, 0x200, descriptor_at, text_at, 0, 0x400, 0]
    kinds, links, entries = [0, 7, 1, 1, 3, 11, 3], [0, 0, 0, 0, 0, 4, 0], [0, 0, 0, 0, 0, 24, 0]
    out, offsets = bytearray(64), []
    for body in bodies:
        out += bytes(-len(out) % 8)
        offsets.append(len(out))
        out += body
    out += bytes(-len(out) % 8)
    table = len(out)
    at = 0
    for n, body in enumerate(bodies):
        out += struct.pack(
            "<IIQQQQIIQQ", at, kinds[n], 2, addresses[n], offsets[n], len(body), links[n], 0, 8, entries[n]
        )
        at += len(names[n]) + 1
    ident = b"\x7fELF" + bytes([2, 1, 1, p.osabi, p.abi]) + bytes(7)
    out[:64] = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, p.machine, 1, 0, 0, table, p.flags, 64, 56, 0, 64, len(bodies), 6
    )
    return bytes(out)
