"""The task file for lm-eval: gsm8k version 3's prompt, filters and metric, with the data set from local files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megamoe.gsm8k.extract import STOP_STRINGS, TASK_VERSION


def task_config(dataset: Path, fewshot: Path, num_fewshot: int, hashes: dict[str, str]) -> dict[str, Any]:
    """As lm_eval/tasks/gsm8k/gsm8k.yaml (0.4.12) says, but for dataset_path and the hashes in its metadata."""
    return {
        "task": "gsm8k",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"train": str(fewshot.resolve()), "test": str(dataset.resolve())}},
        "output_type": "generate_until",
        "training_split": "train",
        "fewshot_split": "train",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "num_fewshot": num_fewshot,
        "repeats": 1,
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "ignore_case": True,
                "ignore_punctuation": False,
                "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
            }
        ],
        "generation_kwargs": {"until": list(STOP_STRINGS), "do_sample": False, "temperature": 0.0},
        "filter_list": [
            {
                "name": "strict-match",
                "filter": [
                    {"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"},
                    {"function": "take_first"},
                ],
            },
            {
                "name": "flexible-extract",
                "filter": [
                    {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                    {"function": "take_first"},
                ],
            },
        ],
        "metadata": {"version": float(TASK_VERSION), **hashes},
    }


def write_task(folder: Path, config: dict[str, Any]) -> None:
    """Writes the task as YAML (JSON is YAML)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gsm8k.yaml").write_text(json.dumps(config, indent=1), encoding="utf-8")
