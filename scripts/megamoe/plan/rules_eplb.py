"""Expert load balancing: the sub-options as ATOM checks them, and values that were never meant to serve.

Source: ROCm/ATOM atom/config.py EPLBConfig at the pinned commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from megamoe.plan.rule import Context, Hit, refuse, warn

# key -> (kind, least value or allowed words)
_KEYS: dict[str, tuple[type, Any]] = {
    "load_window_size": (int, 1),
    "rebalance_interval": (int, 1),
    "rebalance_layers_per_chunk": (int, 1),
    "num_redundant_experts": (int, 0),
    "rebalance_min_balancedness": (float, None),
    "rebalance_balancedness_agg": (str, ("min", "mean")),
    "p2p_batch_chunk_size": (int, 1),
    "placement_policy": (str, ("naive", "biased")),
}
_WINDOW, _INTERVAL = 1000, 3000  # ATOM's defaults


def eplb(c: Context) -> Iterator[Hit]:
    config = c.args.eplb_config
    if config is None:
        return
    if not c.args.eplb_enable:
        yield warn(
            "eplb_config_unused",
            "args.eplb_config is given and args.eplb_enable is false",
            "ATOM reads it only with EPLB on",
            "remove args.eplb_config, or set args.eplb_enable: true",
            "args.eplb_config",
            "args.eplb_enable",
        )
    for name, value in config.items():
        if name not in _KEYS:
            near = get_close_matches(name, _KEYS, n=1)
            yield refuse(
                "eplb_key",
                f"args.eplb_config has {name[:60]!r}",
                "ATOM refuses keys that it does not know; a placement made by hand can hold one expert twice on a rank",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(_KEYS)}",
                "args.eplb_config",
            )
            continue
        kind, least = _KEYS[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = (
            isinstance(value, str) and value.strip().lower() in least
            if kind is str
            else number and (least is None or (isinstance(value, int) and value >= least))
        )
        if not fits:
            wanted = "a number" if least is None else f"a whole number >= {least}"
            wanted = " or ".join(least) if kind is str else wanted
            yield refuse(
                "eplb_value",
                f"args.eplb_config.{name} is {str(value)[:60]!r}",
                f"ATOM asserts {wanted}",
                f"give {wanted}, or leave it out",
                "args.eplb_config",
            )
    window, interval = config.get("load_window_size", _WINDOW), config.get("rebalance_interval", _INTERVAL)
    if isinstance(window, int) and isinstance(interval, int) and interval < window:
        yield refuse(
            "eplb_value",
            f"args.eplb_config.rebalance_interval {interval} is below load_window_size {window}",
            "ATOM asserts the opposite: a rebalance needs a full window",
            "raise rebalance_interval",
            "args.eplb_config",
        )
    redundant = config.get("num_redundant_experts", 0)
    ranks = max(1, c.ep_size)
    whole = isinstance(redundant, int) and not isinstance(redundant, bool) and redundant > 0
    if whole and (c.profile.experts + redundant) % ranks:
        yield refuse(
            "eplb_slots",
            f"{c.profile.experts} experts and {redundant} redundant ones on {ranks} ranks",
            "every rank must hold the same number of slots",
            f"use a multiple that makes the sum divisible by {ranks}",
            "args.eplb_config",
            "model.profile",
            "args.tensor_parallel",
        )


RULES = (eplb,)
