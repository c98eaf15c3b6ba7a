"""Program flow, waits and barriers: SOPP. Their meaning is the machine's own (machine/core.c); here stand their
numbers."""

from __future__ import annotations

from kernel_lane.isa.opcode import Opcode, table

OPCODES: list[Opcode] = table("SOPP", "flow", """
    0  s_nop            nothing
    1  s_endpgm         end
    2  s_branch         branch 1
    4  s_cbranch_scc0   branch !SCC
    5  s_cbranch_scc1   branch SCC
    6  s_cbranch_vccz   branch VCC == 0
    7  s_cbranch_vccnz  branch VCC != 0
    8  s_cbranch_execz  branch EXEC == 0
    9  s_cbranch_execnz branch EXEC != 0
    10 s_barrier        barrier
    12 s_waitcnt        wait
    14 s_sleep          nothing
    15 s_setprio        nothing
""")  # fmt: skip
