"""The gfx950 subset that these kernels use, one module per family; an opcode stands in one of them, once."""

from __future__ import annotations

from kernel_lane.isa import crosslane, flow, memory, scalar, vector
from kernel_lane.isa.opcode import Opcode

OPCODES: tuple[Opcode, ...] = (
    *scalar.OPCODES,
    *flow.OPCODES,
    *vector.OPCODES,
    *crosslane.OPCODES,
    *memory.OPCODES,
)
BY_NAME = {o.name: o for o in OPCODES}
BY_NUMBER: dict[tuple[str, int], Opcode] = {(o.encoding, o.number): o for o in OPCODES}
assert len(BY_NAME) == len(BY_NUMBER) == len(OPCODES), "an opcode stands twice"
