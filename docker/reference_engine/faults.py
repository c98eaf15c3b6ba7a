"""Faults that a rehearsal plants to see its gates fail. This engine only; the product image knows nothing of them."""

from __future__ import annotations

from collections.abc import Mapping

from megamoe_atom.problem import Problem

VARIABLE = "MEGAMOE_REHEARSAL_FAULT"
FAULTS = {
    "gate_up_mispaired": "w13 is laid out separated while the kernel reads it interleaved",
    "expert_zeroed": "one expert's down projection is zero in every layer",
    "http_5xx": "every 20th completion request is answered 500",
    "never_ready": "the engine loads and then never opens its port",
}


def planted(environment: Mapping[str, str]) -> str | None:
    """The planted fault's name, or None.

    Raises:
        Problem: the name is unknown (code "fault_unknown", exit 2).
    """
    name = environment.get(VARIABLE, "")
    if name and name not in FAULTS:
        raise Problem(
            "fault_unknown",
            what=f"{VARIABLE}={name}",
            why="a fault that is not planted proves nothing",
            fix=f"use one of: {', '.join(FAULTS)}; or leave it unset",
        )
    return name or None
