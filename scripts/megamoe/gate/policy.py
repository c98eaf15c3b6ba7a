"""Policies: what an evaluation must show before a node may serve. Data files in, one frozen dataclass out.

A policy is a name (policies/NAME.toml of this package), or a .toml or .json file. The JSON form of the cases
({"task", "metric", "floor", ...}) and the TOML form have the same keys.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.gate.stats import FIRST_LOOK_SHARE
from megamoe.text_input import load_json, read_text

POLICY_DIR = Path(__file__).resolve().parent.parent / "policies"


@dataclass(frozen=True, slots=True)
class Policy:
    """Rates are shares of the questions asked, in [0, 1]. Defaults are the field's rules (see scripts/docs/gate.md)."""

    task: str
    metric: str  # "exact_match,flexible-extract": metric and filter, as lm-eval spells its result keys
    num_fewshot: int
    n_required: int
    floor: float
    name: str = "unnamed"
    note: str = ""
    task_version: float = 3
    endpoint: str | None = None  # "completions" or "chat"; None: not judged
    max_gen_toks: int | None = None
    reference: float | None = None
    reference_n: int | None = None  # None: as many questions as n_required
    reference_note: str = ""
    reference_alpha: float = 0.01  # a good run fails the comparison with the reference this often
    max_empty_rate: float = 0.01
    max_truncated_rate: float = 0.01
    max_error_rate: float = 0.005  # requests without an answer after all retries
    max_retry_rate: float = 0.03  # requests that had to be sent more than once: a lossy path shows, a sick one fails
    max_filter_gap: float = 0.02  # a larger distance of strict-match from flexible-extract is a warning
    paired_required: bool = False
    paired_find_loss: float = 0.01
    paired_tolerated_loss: float = 0.0
    paired_alpha: float = 0.05
    paired_power: float = 0.8
    paired_stages: int = 1  # looks planned beforehand; 2 allows further files (--further) and spends the alarms on both
    sequential_floor: float | None = None  # None: floor
    sequential_alpha: float = 0.001
    dataset_sha256: str | None = None
    fewshot_sha256: str | None = None

    @property
    def metric_name(self) -> str:
        return self.metric.partition(",")[0]

    @property
    def filter_name(self) -> str:
        return self.metric.partition(",")[2]

    @property
    def first_look_alpha(self) -> float:
        """False alarms that the first look may spend: all of them, unless a second look is planned."""
        return self.paired_alpha * (1.0 if self.paired_stages == 1 else FIRST_LOOK_SHARE)

    @property
    def stop_floor(self) -> float:
        return self.floor if self.sequential_floor is None else self.sequential_floor


_KEYS = {f.name: f for f in fields(Policy)}
_REQUIRED = ("task", "metric", "num_fewshot", "n_required", "floor")
_RATES = (
    "floor",
    "reference",
    "reference_alpha",
    "max_empty_rate",
    "max_truncated_rate",
    "max_error_rate",
    "max_retry_rate",
    "max_filter_gap",
    "paired_find_loss",
    "paired_tolerated_loss",
    "paired_alpha",
    "paired_power",
    "sequential_floor",
    "sequential_alpha",
)
_COUNTS = ("num_fewshot", "n_required", "reference_n", "max_gen_toks")


def packaged_policies() -> list[str]:
    return sorted(p.stem for p in POLICY_DIR.glob("*.toml"))


def load_policy(source: str) -> Policy:
    """A packaged policy by name, or a .toml/.json file by path.

    Raises:
        Problem: no such policy, broken file, unknown key (nearest key named), wrong type or range (all exit 2).
    """
    packaged = packaged_policies()
    path = Path(source)
    if source in packaged:
        path = POLICY_DIR / f"{source}.toml"
    elif path.suffix not in (".toml", ".json") and not path.exists():
        near = difflib.get_close_matches(source, packaged, 1)
        raise Problem(
            "policy_unknown",
            what=f"there is no policy named {source!r}",
            why=f"the packaged policies are: {', '.join(packaged)}",
            fix=f"use {near[0]!r}" if near else "name one of them, or give a .toml or .json file",
        )
    if path.suffix == ".toml":
        try:
            raw: Any = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise Problem(
                "policy_syntax",
                what=f"{path} is not TOML: {error}",
                why="no key of it can be trusted",
                fix="correct that line",
            ) from None
    else:
        raw = load_json(path)
    return parse_policy(raw, str(path), default_name=path.stem)


def parse_policy(raw: Any, where: str, default_name: str = "unnamed") -> Policy:
    """A policy from parsed data. Raises Problem (exit 2) with every key that is wrong."""
    if not isinstance(raw, dict):
        raise Problem(
            "policy_shape",
            what=f"{where} holds a {type(raw).__name__}, not an object of keys",
            why="the keys are the policy",
            fix="see policies/v4-pro-fused.toml for the form",
        )
    problems: list[Problem] = []

    def bad(code: str, what: str, fix: str) -> None:
        problems.append(
            Problem(
                code,
                what=f"{where}: {what}",
                fix=fix,
                why="a policy that is read wrongly would let a broken model through",
            )
        )

    for key in raw:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            bad(
                "policy_key",
                f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                f"write {near[0]!r}" if near else f"keys are: {', '.join(sorted(_KEYS))}",
            )
    for key in _REQUIRED:
        if raw.get(key) is None:
            bad("policy_missing", f"{key!r} is missing", f"add {key}")
    values = {k: v for k, v in raw.items() if k in _KEYS and v is not None}
    for key in _RATES:
        value = values.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1
        ):
            bad(
                "policy_value",
                f"{key}={value!r} is not a share between 0 and 1",
                "write 0.90 for 90 %" if key in ("floor", "reference") else "write 0.01 for 1 %",
            )
    for key in _COUNTS:
        value = values.get(key)
        least = 0 if key == "num_fewshot" else 1
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            bad("policy_value", f"{key}={value!r} is not a whole number of at least {least}", "write a whole number")
    for key in ("task", "metric", "name", "note", "reference_note", "dataset_sha256", "fewshot_sha256"):
        if key in values and not isinstance(values[key], str):
            bad("policy_value", f"{key}={values[key]!r} is not text", "quote it")
    if isinstance(values.get("metric"), str) and not all(values["metric"].partition(",")[::2]):
        bad(
            "policy_metric",
            f"metric={values['metric']!r} does not name a filter",
            'write "exact_match,flexible-extract" or "exact_match,strict-match"',
        )
    if values.get("endpoint") not in (None, "completions", "chat"):
        bad("policy_value", f"endpoint={values['endpoint']!r}", 'write "completions" or "chat"')
    version = values.get("task_version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, (int, float))):
        bad("policy_value", f"task_version={version!r} is not a number", "write 3")
    stages = values.get("paired_stages", 1)
    if isinstance(stages, bool) or stages not in (1, 2):
        bad("policy_value", f"paired_stages={stages!r}", "write 1, or 2 to plan a second look at further questions")
    elif stages == 2 and values.get("paired_tolerated_loss"):
        bad(
            "policy_value",
            "paired_stages=2 with a paired_tolerated_loss",
            "the second look is exact for a tolerated loss of 0 only: leave one of the two out",
        )
    if not isinstance(values.get("paired_required", False), bool):
        bad("policy_value", f"paired_required={values['paired_required']!r}", "write true or false")
    if not problems:
        if values.get("paired_tolerated_loss", 0.0) >= values.get("paired_find_loss", 0.01):
            bad(
                "policy_value",
                "paired_tolerated_loss is not below paired_find_loss",
                "a loss that is tolerated cannot be one that must be found: raise paired_find_loss",
            )
        for key in (
            "reference_alpha",
            "paired_alpha",
            "paired_power",
            "sequential_alpha",
            "sequential_floor",
            "paired_find_loss",
        ):
            if key in values and not 0 < values[key] < 1:
                bad("policy_value", f"{key}={values[key]!r} must lie strictly between 0 and 1", "choose e.g. 0.05")
    if problems:
        raise Problem.of([reason for p in problems for reason in p.reasons], exit_code=Exit.REFUSED)
    values.setdefault("name", default_name)
    return Policy(**values)
