"""`megamoe gate`: reads policy and evidence, prints the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megamoe.envelope import Outcome, run_verb

if TYPE_CHECKING:
    from megamoe.gate.evidence import Evidence

app = typer.Typer(add_completion=False)


@app.command()
def gate(
    policy: Annotated[str, typer.Option(help="Packaged policy (v4-pro-fused, ...) or a .toml/.json file.")],
    result: Annotated[str, typer.Option(help="Result JSON of lm-eval, or a results folder.")],
    samples: Annotated[str | None, typer.Option(help="Samples JSONL of the same run.")] = None,
    run: Annotated[str | None, typer.Option(help="Run record (RUN.json): only that run's own files count.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Run folder, or samples JSONL, of a known-good run.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """PASS, FAIL, INCONCLUSIVE or INVALID: may this deployment serve?"""

    def work() -> Outcome:
        from megamoe.gate.evidence import load_evidence
        from megamoe.gate.judge import judge
        from megamoe.gate.policy import load_policy

        loaded = load_policy(policy)
        return judge(loaded, load_evidence(result, samples, run), _baseline(baseline) if baseline else None)

    run_verb("gate", work, json_output=json_output)


def _baseline(source: str) -> Evidence:
    from megamoe.gate.evidence import Evidence, load_evidence, load_samples

    if Path(source).is_dir():
        record = Path(source) / "run.json"
        return load_evidence(source, None, str(record) if record.exists() else None)
    return Evidence(samples=load_samples(source))
