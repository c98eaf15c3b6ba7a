"""`megamoe bench-report`: benchmark figures with honest labels."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from megamoe_atom.problem import Problem

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def bench_report(
    bench: Annotated[str, typer.Argument(help="Benchmark output, JSON.")],
    gate: Annotated[
        str | None, typer.Option(help="Gate result (`megamoe gate --json`) of the same digest and args.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks that share the requests (default: BENCH's, else 8).", min=1)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Label benchmark figures honestly."""

    def work() -> Outcome:
        from megamoe.bench_report.judge import judge_bench
        from megamoe.text_input import load_json

        body, proof = _load_bench(bench), load_json(gate) if gate else None
        for name, value in ((bench, body), (gate, proof)):
            if value is not None and not isinstance(value, dict):
                raise Problem(
                    "input_shape",
                    what=f"{name} is not a JSON object",
                    why="its fields cannot be read",
                    fix="give the file as the tool wrote it",
                )
        return judge_bench(body, proof, ranks)

    run_verb("bench-report", work, json_output=json_output)


def _load_bench(path: str) -> Any:
    """The benchmark's JSON. NaN, which clients do write, becomes a word: an invalid figure, not an error."""
    from megamoe.text_input import load_json, read_text

    try:
        return load_json(path)
    except Problem as problem:
        if problem.code != "json_number" or path == "-":
            raise
    return json.loads(read_text(path), parse_constant=str)
