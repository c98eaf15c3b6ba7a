"""Loads, stores and atomics: SMEM, MUBUF, FLAT (global and flat), DS. What is moved stands here; how it lands, and
when,
is the machine's (machine/core.c).

`memory=(action, bytes per lane, count)`: action is "load", "store", "atomic:OP", "cache" (write-back or invalidate),
"lds_read", "lds_write", "lds_atomic:OP", "lds_swizzle", "lds_permute"; count 2 with two offsets (ds_read2), stride
64 in st64.
"""

from __future__ import annotations

from kernel_lane.isa.opcode import Encoding, Opcode


def _op(
    name: str, encoding: Encoding, number: int, action: str, size: int, count: int = 1, meaning: str = ""
) -> Opcode:
    return Opcode(name, encoding, number, "memory", meaning or action, memory=(action, size, count))


_SMEM = [
    _op(f"s_load_dword{'' if n == 1 else f'x{n}'}", "SMEM", k, "load", 4 * n) for k, n in enumerate((1, 2, 4, 8, 16))
]

_LOADS = (("ubyte", 16, 1), ("sbyte", 17, 1), ("ushort", 18, 2), ("sshort", 19, 2), ("dword", 20, 4), ("dwordx2", 21,
8),
          ("dwordx3", 22, 12), ("dwordx4", 23, 16))  # fmt: skip
_STORES = (
    ("byte", 24, 1),
    ("short", 26, 2),
    ("dword", 28, 4),
    ("dwordx2", 29, 8),
    ("dwordx3", 30, 12),
    ("dwordx4", 31, 16),
)
_ATOMICS = (("swap", 64, 4), ("add", 66, 4), ("smin", 68, 4), ("umin", 69, 4), ("smax", 70, 4), ("umax", 71, 4),
("and", 72, 4),
            ("or", 73, 4), ("add_f32", 77, 4), ("pk_add_bf16", 82, 4), ("swap_x2", 96, 8), ("add_x2", 98,
            8))  # fmt: skip

_MUBUF = [_op(f"buffer_load_{t}", "MUBUF", n, "load", size) for t, n, size in _LOADS]
_MUBUF += [_op(f"buffer_store_{t}", "MUBUF", n, "store", size) for t, n, size in _STORES]
_MUBUF += [_op("buffer_wbl2", "MUBUF", 40, "cache", 0), _op("buffer_inv", "MUBUF", 41, "cache", 0)]
# One number serves global_ and flat_: two bits of the instruction say which, and decode.py names it.
_FLAT = [_op(f"global_load_{t}", "FLAT", n, "load", size) for t, n, size in _LOADS]
_FLAT += [_op(f"global_store_{t}", "FLAT", n, "store", size) for t, n, size in _STORES]
_FLAT += [_op(f"global_atomic_{t}", "FLAT", n, f"atomic:{t.removesuffix('_x2')}", size) for t, n, size in _ATOMICS]

_DS = [
    _op("ds_add_u32", "DS", 0, "lds_atomic:add", 4),
    _op("ds_max_u32", "DS", 8, "lds_atomic:umax", 4),
    _op("ds_write_b32", "DS", 13, "lds_write", 4),
    _op("ds_write2_b32", "DS", 14, "lds_write", 4, 2),
    _op("ds_write2st64_b32", "DS", 15, "lds_write", 4, 64),
    _op("ds_write_b8", "DS", 30, "lds_write", 1),
    _op("ds_write_b16", "DS", 31, "lds_write", 2),
    _op("ds_add_rtn_u32", "DS", 32, "lds_atomic_rtn:add", 4),
    _op("ds_max_rtn_u32", "DS", 40, "lds_atomic_rtn:umax", 4),
    _op("ds_read_b32", "DS", 54, "lds_read", 4),
    _op("ds_read2_b32", "DS", 55, "lds_read", 4, 2),
    _op("ds_read2st64_b32", "DS", 56, "lds_read", 4, 64),
    _op("ds_read_i8", "DS", 57, "lds_read_signed", 1),
    _op("ds_read_u8", "DS", 58, "lds_read", 1),
    _op("ds_read_i16", "DS", 59, "lds_read_signed", 2),
    _op("ds_read_u16", "DS", 60, "lds_read", 2),
    _op("ds_swizzle_b32", "DS", 61, "lds_swizzle", 4),
    _op("ds_bpermute_b32", "DS", 63, "lds_permute", 4),
    _op("ds_write_b64", "DS", 77, "lds_write", 8),
    _op("ds_write2_b64", "DS", 78, "lds_write", 8, 2),
    _op("ds_write2st64_b64", "DS", 79, "lds_write", 8, 64),
    _op("ds_read_b64", "DS", 118, "lds_read", 8),
    _op("ds_read2_b64", "DS", 119, "lds_read", 8, 2),
    _op("ds_read2st64_b64", "DS", 120, "lds_read", 8, 64),
    _op("ds_write_b96", "DS", 222, "lds_write", 12),
    _op("ds_write_b128", "DS", 223, "lds_write", 16),
    _op("ds_read_b96", "DS", 254, "lds_read", 12),
    _op("ds_read_b128", "DS", 255, "lds_read", 16),
]

OPCODES: list[Opcode] = [*_SMEM, *_MUBUF, *_FLAT, *_DS]
