"""isa/ -> C: each opcode's meaning put into its frame, once. The result is what runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kernel_lane.isa import OPCODES
from kernel_lane.isa.opcode import Opcode

_HERE = Path(__file__).parent
_VIEWS = {
    "u": "({0})", "i": "((i32){0})", "f": "as_f({0})", "u16": "({0} & 0xFFFFu)", "i16": "((i32)(i16){0})",
    "u8": "({0} & 0xFFu)",
    "u64": "({0})", "i64": "((i64){0})",
}  # fmt: skip
_STORE = {"u": "(u32)({0})", "i": "(u32)({0})", "f": "from_f({0})", "u64": "(u64)({0})", "i64": "(u64)({0})"}
_MEMORY = {
    "SMEM": "m_smem", "MUBUF load": "m_buffer_load", "MUBUF store": "m_buffer_store", "MUBUF cache": "m_cache",
    "FLAT load": "m_global_load", "FLAT store": "m_global_store", "FLAT atomic": "m_global_atomic",
    "DS lds_swizzle": "m_swizzle", "DS lds_permute": "m_bpermute",
}  # fmt: skip
_FLOW = {
    "nothing": "m_nothing", "end": "m_end", "barrier": "m_barrier", "wait": "m_wait", "branch 1": "m_branch_always",
    "branch !SCC": "m_branch_scc0", "branch SCC": "m_branch_scc1", "branch VCC == 0": "m_branch_vccz",
    "branch VCC != 0": "m_branch_vccnz", "branch EXEC == 0": "m_branch_execz", "branch EXEC != 0": "m_branch_execnz",
}  # fmt: skip


def function_name(op: Opcode) -> str:
    """The C function that executes an opcode."""
    if op.kind == "flow":
        return _FLOW[op.meaning]
    if op.memory is not None:
        action = op.memory[0].split(":")[0]
        return _MEMORY.get(op.encoding) or _MEMORY.get(f"{op.encoding} {action}") or "m_lds"
    return f"x_{op.name}"


def _translate(meaning: str, *, source: str, old: str, store: str) -> str:
    """A meaning with its names replaced; `source`, `old`, `store` are the frame's expressions."""

    def assigned(m: re.Match[str]) -> str:
        return f"{store} = {_STORE[m[1]].format(m[2])};"

    text = re.sub(r"\bD\.(\w+) = ([^;]+);", assigned, meaning)
    text = re.sub(r"\bS(\d)\.(\w+)", lambda m: _VIEWS[m[2]].format(source.format(m[1])), text)
    return re.sub(r"\bD\.(\w+)", lambda m: _VIEWS[m[1]].format(old), text)


def _scalar(op: Opcode) -> str:
    body = _translate(op.meaning, source="s{0}", old="old", store="d")
    body = re.sub(r"\bEXEC = ([^;]+);", r"set_s64(w, EXEC_LO, \1);", body)
    for name, value in (("EXEC", "exec_of(w)"), ("SCC", "w->scc"), (r"K", "(i32)(i16)i->imm")):
        body = re.sub(rf"\b{name}\b", value, body)
    lines = [f"static void {function_name(op)}(Wave *w, const Ins *i) {{"]
    lines += [f"    u{32 * words} s{n} = get_s{32 * words}(w, i, {n}); (void)s{n};" for n, words in enumerate(op.reads)]
    reads_old = re.search(r"D\.\w+(?! =[^=])", op.meaning) is not None or op.encoding == "SOPK"
    if reads_old:
        lines.append("    u32 old = w->s[i->d]; (void)old;")
    writes = re.search(r"\bD\.\w+ = ", op.meaning) is not None
    if writes:
        lines.append(f"    u{32 * max(op.writes, 1)} d;")
    lines.append(f"    {body}")
    if writes:
        lines.append(f"    set_s{32 * max(op.writes, 1)}(w, i->d, d);")
    return "\n".join([*lines, "}"])


def _lane(op: Opcode) -> str:
    body = _translate(op.meaning, source="s{0}[l]", old="old[l]", store="r[l]")
    for name, value in (("CIN", "(u32)(cin >> l & 1)"), ("COUT", "cout[l]"), ("P", "p[l]"), ("LANE", "(u32)l"),
                        ("OPSEL", "(u32)i->opsel"), ("IMM", "i->imm")):  # fmt: skip
        body = re.sub(rf"\b{name}\b", value, body)
    lines = [f"static void {function_name(op)}(Wave *w, const Ins *i) {{"]
    for n, words in enumerate(op.reads):
        if words == 2:
            lines.append(f"    u64 s{n}[64]; wide(w, i, {n}, s{n});")
        else:
            lines.append(f"    const u32 *s{n} = row(w, i, {n}); (void)s{n};")
    if "old[l]" in body:
        lines.append("    const u32 *old = reg(w, i->d);")
    if op.writes:
        lines.append(f"    u{32 * op.writes} r[64];")
    if "cin" in body:
        lines.append(f"    u64 cin = scalar_value64(w, i->s[{len(op.reads)}], 0);")
    lines += [f"    u8 {name}[64];" for name in ("cout", "p") if f"{name}[l]" in body]
    lines.append(f"    for (int l = 0; l < 64; l++) {{ {body} }}")
    if op.writes:
        lines.append("    put_wide(w, i, r);" if op.writes == 2 else "    put_result(w, i, r);")
    for name in ("cout", "p"):
        if f"{name}[l]" in body:
            lines.append(f"    set_s64(w, i->sd, pack_bits({name}) & exec_of(w));")
    return "\n".join([*lines, "}"])


def _wave(op: Opcode) -> str:
    return f"static void {function_name(op)}(Wave *w, const Ins *i) {{{op.meaning}}}"


def functions(opcodes: Iterable[Opcode] = OPCODES) -> str:
    """All opcodes' functions and the table that numbers them in the order of `opcodes`."""
    opcodes = tuple(opcodes)
    frames = {"scalar": _scalar, "lane": _lane, "wave": _wave}
    parts = [frames[o.kind](o) for o in opcodes if o.kind in frames]
    names = ",\n    ".join(function_name(o) for o in opcodes)
    return "\n".join([*parts, f"static const Execute TABLE[] = {{\n    {names}\n}};"])


def source(opcodes: Iterable[Opcode] = OPCODES) -> str:
    """The whole core as one C file."""
    read = {name: (_HERE / name).read_text(encoding="utf-8") for name in ("arith.h", "core.h", "core.c")}
    core = read["core.c"].replace("//FUNCTIONS//", functions(opcodes))
    return "\n".join(["#include <stddef.h>", "#include <stdlib.h>", read["arith.h"], read["core.h"], core])
