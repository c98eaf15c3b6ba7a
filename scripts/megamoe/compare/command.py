"""`megamoe compare A B`: two releases or two endpoints on the same questions, flips shown."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    before: Annotated[
        str, typer.Argument(help="Earlier or known-good side: run folder, samples JSONL, or http://HOST:PORT.")
    ],
    after: Annotated[str, typer.Argument(help="Side that is judged: run folder, samples JSONL, or http://HOST:PORT.")],
    policy: Annotated[str, typer.Option(help="Policy whose protocol, metric and paired test apply.")] = "v4-pro-fused",
    dataset: Annotated[str | None, typer.Option(help="Questions for a side that is an address.")] = None,
    out: Annotated[str, typer.Option(help="Folder for the evidence of sides that are addresses.")] = "comparison",
    fewshot: Annotated[str | None, typer.Option(help="Few-shot examples (default: ours).")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.", min=1)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1, max=1024)] = 64,
    endpoint: Annotated[Literal["completions", "chat"] | None, typer.Option(help="Default: the policy's.")] = None,
    max_gen_toks: Annotated[int | None, typer.Option(help="Tokens per answer.", min=1)] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File with the API key (else MEGAMOE_API_KEY).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Compare two evaluations question by question."""

    def work() -> Outcome:
        from megamoe.compare.sides import compare_sides

        given: dict[str, Any] = {
            "fewshot": fewshot,
            "limit": limit,
            "concurrency": concurrency,
            "endpoint": endpoint,
            "max_gen_toks": max_gen_toks,
            "api_key_file": api_key_file,
        }
        return compare_sides(before, after, policy, dataset, out, given)

    run_verb("compare", work, json_output=json_output)
