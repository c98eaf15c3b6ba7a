"""gfx950 code objects of a few instructions, made from words: an ELF file as small as the metadata allows.

WORDS is our assembler: text as LLVM writes it to the words it encodes, checked against llvm-mc where that is installed.
"""

from __future__ import annotations

import struct
from typing import Any

WORDS: dict[str, tuple[int, ...]] = {
    "buffer_load_dwordx4 v1, s[4:7], 0 offen lds": (0xE05D1000, 0x80010001),
    "buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen": (0xE05C1000, 0x80010401),
    "buffer_load_dword v1, off, s[4:7], 0": (0xE0500000, 0x80010100),
    "buffer_store_dword v2, off, s[12:15], 0": (0xE0700000, 0x80030200),
    "buffer_store_dword v3, v4, s[8:11], 0 offen": (0xE0701000, 0x80020304),
    "buffer_wbl2 sc1": (0xE0A08000, 0x00000000),
    "global_atomic_add v[6:7], v2, off sc1": (0xDF088000, 0x007F0206),
    "global_load_dword v2, v[10:11], off sc0 sc1": (0xDE518000, 0x027F000A),
    "s_and_saveexec_b64 s[4:5], vcc": (0xBE84206A,),
    "s_xor_b64 s[8:9], exec, s[4:5]": (0x8888047E,),
    "s_andn2_saveexec_b64 s[8:9], s[8:9]": (0xBE882308,),
    "s_or_b64 exec, exec, s[8:9]": (0x87FE087E,),
    "s_waitcnt vmcnt(0)": (0xBF8C0F70,),
    "s_waitcnt vmcnt(1)": (0xBF8C0F71,),
    "s_waitcnt vmcnt(20)": (0xBF8C4F74,),
    "s_waitcnt lgkmcnt(0)": (0xBF8CC07F,),
    "s_barrier": (0xBF8A0000,),
    "s_endpgm": (0xBF810000,),
    "v_mov_b32_e32 v2, 0": (0x7E040280,),
    "v_mov_b32_e32 v16, v0": (0x7E200300,),
    "v_exp_f32_e32 v2, v1": (0x7E044101,),
    "v_add_f32_e32 v3, v2, v2": (0x02060502,),
    "v_readfirstlane_b32 s4, v0": (0x7E080500,),
    "global_load_dword v5, v6, s[4:5]": (0xDC508000, 0x05040006),
    "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:15], v[0:3], v16, v17 op_sel_hi:[0,0,0] blgp:4": (
        0xD3AC0000, 0x00022310, 0xD3AD0800, 0x84021904,
    ),
    "v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[0,1] op_sel_hi:[1,0]": (0xD3B15000, 0x08020902),
    "v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]": (0xD3B14800, 0x10020902),
    "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,1,0]": (0xD3B05000, 0x1C1A0902),
    "v_pk_add_f32 v[0:1], v[2:3], v[4:5]": (0xD3B24000, 0x18020902),
    "v_pk_add_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,1]": (0xD3B25800, 0x18020902),
    "s_nop 0": (0xBF800000,),
    "s_nop 1": (0xBF800001,),
    "s_nop 3": (0xBF800003,),
    "s_nop 4": (0xBF800004,),
    "s_nop 10": (0xBF80000A,),
    "s_nop 11": (0xBF80000B,),
}
_BRANCHES = {"s_branch": 0xBF820000, "s_cbranch_scc1": 0xBF850000, "s_cbranch_execz": 0xBF880000,
             "s_cbranch_execnz": 0xBF890000}  # fmt: skip


def assemble(text: str) -> bytes:
    """Machine code of lines of WORDS; `name:` marks a place, and a branch names one."""
    words: list[int] = []
    places: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in (raw.split("#")[0].strip() for raw in text.strip().splitlines()):
        if line.endswith(":"):
            places[line[:-1]] = len(words)
        elif line.split(" ")[0] in _BRANCHES:
            op, target = line.split()
            jumps.append((len(words), target))
            words.append(_BRANCHES[op])
        elif line:
            words += WORDS[line]
    for at, target in jumps:
        words[at] |= (places[target] - at - 1) & 0xFFFF
    return struct.pack(f"<{len(words)}I", *words)


def _pack(value: Any) -> bytes:
    """MessagePack, as far as the metadata needs it."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xce" + struct.pack(">I", value)
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value)) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(_pack(v) for v in value)
    return b"\xde" + struct.pack(">H", len(value)) + b"".join(_pack(k) + _pack(v) for k, v in value.items())


def code_object(
    text: str,
    *,
    name: str = "kernel",
    vgprs: int = 16,
    allocated: int | None = None,
    mode: int = 0xAF0000,
    lds: int = 0,
    scratch: int = 0,
    threads: int = 256,
    machine: int = 0x4F,
    abi_version: int = 4,
    undefined: str = "",
    extra: dict[str, Any] | None = None,
) -> bytes:
    """An ELF code object with one kernel of the given instructions.

    allocated: vector registers that the descriptor gives a lane (default: vgprs, rounded up); at most 256 are no AGPRs.
    mode: the descriptor's float mode, as FlyDSL 0.2.4's kernels have it.
    """
    code = assemble(text)
    kernel = {
        ".name": name, ".symbol": f"{name}.kd", ".kernarg_segment_size": 0, ".kernarg_segment_align": 8,
        ".group_segment_fixed_size": lds, ".private_segment_fixed_size": scratch, ".sgpr_count": 32,
        ".sgpr_spill_count": 0, ".vgpr_count": vgprs, ".vgpr_spill_count": 0, ".agpr_count": 0,
        ".max_flat_workgroup_size": threads, ".wavefront_size": 64, ".uses_dynamic_stack": False, ".args": [],
    } | (extra or {})  # fmt: skip
    metadata = _pack({"amdhsa.kernels": [kernel], "amdhsa.target": "amdgcn-amd-amdhsa--gfx950"})
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata + b"\0" * (-len(metadata) % 4)
    text_at, descriptor_at = 0x1000, 0x800
    given = -(-(vgprs if allocated is None else allocated) // 8)
    descriptor = struct.pack("<IIIIq20x", lds, scratch, 0, 0, text_at - descriptor_at)
    descriptor += struct.pack("<IIIHHI", min(63, 2 * given - 1), mode | 3 << 6 | given - 1, 2 << 1 | 1 << 7, 8, 0, 0)
    strings = b"\0"
    symbols = b"\0" * 24
    known = [(name, 4, text_at, len(code)), (f"{name}.kd", 3, descriptor_at, 64)]
    for symbol, section, value, size in known + ([(undefined, 0, 0, 0)] if undefined else []):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x10 | (2 if section == 4 else 1), 0, section, value, size)
        strings += symbol.encode() + b"\0"
    names = b"\0.note\0.dynsym\0.rodata\0.text\0.dynstr\0.shstrtab\0"
    rows = [  # name, type, address, content, link, entry size
        (".note", 7, 0, note, 0, 0), (".dynsym", 11, 0, symbols, 5, 24),
        (".rodata", 1, descriptor_at, descriptor, 0, 0), (".text", 1, text_at, code, 0, 0),
        (".dynstr", 3, 0, strings, 0, 0), (".shstrtab", 3, 0, names, 0, 0),
    ]  # fmt: skip
    body, headers = b"", b"\0" * 64
    for section_name, kind, address, content, link, entry in rows:
        body += b"\0" * (-(64 + len(body)) % 16)
        headers += struct.pack("<IIQQQQIIQQ", names.index(section_name.encode() + b"\0"), kind, 6 if address else 0,
                               address, 64 + len(body), len(content), link, 1, 16, entry)  # fmt: skip
        body += content
    ident = b"\x7fELF\x02\x01\x01" + bytes([64, abi_version]) + b"\0" * 7
    body += b"\0" * (-(64 + len(body)) % 16)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, 64 + len(body), 0x500 | machine, 64, 0, 0, 64,
                                 len(rows) + 1, len(rows))  # fmt: skip
    return header + body + headers
