"""The protocol of an evaluation, read from lm-eval's result: what a score means depends on all of it."""

from __future__ import annotations

from typing import Any

# What lm-eval's task gsm8k version 3.0 says; an edited prompt or filter under the same name is another measurement.
_PROMPT = "Question: {{question}}\nAnswer:"
_PATTERNS = {"strict-match": r"#### (\-?[0-9\.\,]+)", "flexible-extract": r"(-?[$0-9.,]{2,})|(-?[0-9]+)"}


def protocol_of(result: dict[str, Any], task: str) -> dict[str, Any]:
    """Shots, version, counts, endpoint, limits; None where the result does not say."""
    samples = _at(result, "n-samples", task)
    config = _mapping(result.get("config"))
    task_config = _mapping(_at(result, "configs", task))
    args = _model_args(config.get("model_args"))
    metadata = _mapping(task_config.get("metadata"))
    return {
        "num_fewshot": _whole(_at(result, "n-shot", task)),
        "task_version": _number(_at(result, "versions", task)),
        "n_effective": _whole(samples.get("effective") if isinstance(samples, dict) else samples),
        "n_original": _whole(samples.get("original")) if isinstance(samples, dict) else None,
        "limit": config.get("limit"),
        "endpoint": _endpoint(str(config.get("model") or "")),
        "concurrency": _whole(args.get("num_concurrent")),
        "max_gen_toks": _whole(
            args.get("max_gen_toks") or _mapping(task_config.get("generation_kwargs")).get("max_gen_toks")
        ),
        "dataset_sha256": metadata.get("dataset_sha256"),
        "fewshot_sha256": metadata.get("fewshot_sha256"),
        "until": _mapping(task_config.get("generation_kwargs")).get("until"),
        "scoring_changed": _scoring_changed(task, task_config),
    }


def protocol_text(protocol: dict[str, Any]) -> str:
    """For the verdict line: a gsm8k number without these is not a number."""
    parts = [
        f"{protocol['num_fewshot']}-shot",
        f"n {protocol['n_effective']}",
        f"task version {protocol['task_version']:g}",
    ]
    for key, label in (("endpoint", "endpoint"), ("max_gen_toks", "max_gen_toks"), ("concurrency", "concurrency")):
        if protocol[key] is not None:
            parts.append(f"{label} {protocol[key]}")
    return ", ".join(parts)


def _scoring_changed(task: str, config: dict[str, Any]) -> str | None:
    if task != "gsm8k" or not config:
        return None
    prompt = config.get("doc_to_text")
    if isinstance(prompt, str) and prompt != _PROMPT:
        return "doc_to_text"
    for entry in config.get("filter_list") or []:
        name = _mapping(entry).get("name")
        for step in _mapping(entry).get("filter") or []:
            pattern = _mapping(step).get("regex_pattern")
            if name in _PATTERNS and pattern is not None and pattern != _PATTERNS[name]:
                return f"filter {name}"
    return None


def _endpoint(model: str) -> str | None:
    if not model:
        return None
    return "chat" if "chat" in model else "completions" if "completions" in model else model


def _model_args(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return dict(p.partition("=")[::2] for p in value.split(",")) if isinstance(value, str) else {}


def _at(result: dict[str, Any], section: str, task: str) -> Any:
    return _mapping(result.get(section)).get(task)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return (
        int(number)
        if number is not None and number == number and abs(number) < 1e15 and number == int(number)
        else None
    )
