"""The C structures of core.h and core.c as ctypes sees them; sizes are compared when the library is loaded."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int16, c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p


class Ins(Structure):
    _fields_ = [
        ("function", c_uint32), ("pc", c_uint32), ("target", c_int32), ("s", c_int16 * 5), ("d", c_int16), ("sd",
        c_int16),
        ("flags", c_uint16), ("literal", c_uint32), ("imm", c_uint32), ("offset", c_int32), ("offset1", c_int32),
        ("form", c_uint8), ("neg", c_uint8), ("abs", c_uint8), ("opsel", c_uint8), ("opsel_hi", c_uint8), ("fmt_a",
        c_uint8),
        ("fmt_b", c_uint8), ("words", c_uint8), ("dpp", c_uint16), ("row_mask", c_uint8), ("bank_mask", c_uint8),
        ("bound", c_uint8), ("sel_d", c_uint8), ("unused", c_uint8), ("sel0", c_uint8), ("sel1", c_uint8), ("sext",
        c_uint8),
        ("use", c_int16 * 8), ("use_words", c_uint8 * 8), ("use_write", c_uint8), ("whole", c_uint8),
    ]  # fmt: skip


class Wave(Structure):
    """The part of a wave that the tests of single opcodes set and read; the rest is the core's own."""

    _fields_ = [
        ("v", c_uint32 * 64 * 512), ("s", c_uint32 * 128), ("scc", c_uint32), ("pc", c_int32), ("tmp",
        c_uint32 * 64 * 3),
        ("m", c_void_p), ("block", c_void_p), ("id", c_uint32), ("index", c_uint32), ("done", c_uint8), ("at_barrier",
        c_uint8),
        ("stalled", c_uint8), ("slow", c_uint8), ("steps", c_uint64), ("frozen_until", c_uint64), ("vm", c_void_p * 64),
        ("lg", c_void_p * 16), ("vm_store", c_uint32 * 64), ("vm_count", c_int32), ("lg_count", c_int32),
        ("pending", c_uint64 * 512), ("pending_s", c_uint8 * 128), ("store_seq", c_uint32), ("waited_seq", c_uint32),
        ("clock", c_void_p),
    ]  # fmt: skip


class Region(Structure):
    _fields_ = [
        ("lo", c_uint64), ("hi", c_uint64), ("top", c_uint64), ("id", c_uint32), ("flags", c_uint32), ("written",
        c_void_p),
        ("writer", c_void_p), ("sync", c_void_p), ("pending", c_void_p),
    ]  # fmt: skip


class Finding(Structure):
    _fields_ = [
        (n, c_uint32)
        for n in ("kind", "code", "pc", "other_code", "other_pc", "region", "rank", "other_rank", "detail", "same_wave")
    ] + [("offset", c_uint64), ("count", c_uint64)]


class LaunchRecord(Structure):
    _fields_ = [
        ("ins", POINTER(Ins)), ("count", c_uint32), ("grid", c_uint32 * 3), ("threads", c_uint32), ("lds", c_uint32),
        ("kernarg_bytes", c_uint32), ("kernarg", c_uint64), ("rank", c_uint32), ("code", c_uint32), ("user_sgprs",
        c_uint32),
        ("group_id", c_uint32), ("waves_per_block", c_uint32), ("next", c_uint32), ("live", c_uint32),
        ("order", c_uint32),
    ]  # fmt: skip


class HostWrite(Structure):
    _fields_ = [("to", c_uint64), ("source", c_uint64), ("bytes", c_uint64), ("rank", c_uint32), ("order", c_uint32)]


class Options(Structure):
    _fields_ = [
        ("schedule", c_uint32), ("late", c_uint32), ("model", c_uint32), ("quantum", c_uint32), ("checks", c_uint32),
        ("resident", c_uint32), ("seed", c_uint64), ("limit", c_uint64), ("freeze", c_uint64), ("sample_early",
        c_double),
        ("visible_now", c_double), ("land_early", c_double), ("store_mean", c_double), ("flags_now", c_uint32),
        ("stall", c_uint32), ("lds_poison", c_uint32), ("register_poison", c_uint32), ("slow", c_double),
    ]  # fmt: skip


class MachineRecord(Structure):
    _fields_ = [
        ("region", POINTER(Region)), ("regions", c_uint32), ("launch", POINTER(LaunchRecord)), ("launches", c_uint32),
        ("host", POINTER(HostWrite)), ("hosts", c_uint32), ("o", Options), ("found", POINTER(Finding)),
        ("found_count", c_uint32),
        ("found_limit", c_uint32), ("found_lost", c_uint32),
        ("steps", c_uint64), ("round", c_uint64), ("random", c_uint64), ("stop", c_uint32),
        ("numbers", c_uint32), ("waves", c_uint32), ("stop_pc", c_uint32), ("stop_rank", c_uint32), ("stop_code",
        c_uint32),
        ("last", c_void_p), ("live", c_void_p), ("live_size", c_uint32), ("sync_key", c_void_p),
        ("sync_clock", c_void_p), ("sync_count", c_uint32), ("sync_size", c_uint32), ("block", c_void_p), ("blocks",
        c_uint32),
        ("block_size", c_uint32), ("pool", c_void_p * 8192), ("pooled", c_uint32), ("vm_ops", c_uint64), ("barriers",
        c_uint64),
        ("atomics", c_uint64), ("opcode_count", c_void_p),
    ]  # fmt: skip


SIZED = (Wave, Ins, MachineRecord, Region, LaunchRecord, Options, Finding, HostWrite)


def connect(library: ctypes.CDLL) -> ctypes.CDLL:
    """Types the library's functions and proves that both sides mean the same structures."""
    library.machine_sizes.restype = c_uint64
    for n, kind in enumerate(SIZED):
        have, want = int(library.machine_sizes(n)), ctypes.sizeof(kind)
        assert have == want, f"{kind.__name__}: {have} bytes in C, {want} here"
    library.machine_run.argtypes = [POINTER(MachineRecord)]
    library.machine_run.restype = c_uint32
    library.machine_step.argtypes = [POINTER(MachineRecord), POINTER(Wave), POINTER(Ins)]
    library.machine_step.restype = None
    return library
