"""`megamoe gsm8k`: asks a server the questions through lm-eval, keeps all evidence in one folder, and can resume."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def gsm8k(
    url: Annotated[str, typer.Argument(help="Server address, http://HOST:PORT.")],
    dataset: Annotated[str, typer.Option(help="Questions: GSM8K-format JSONL file.")],
    out: Annotated[str, typer.Option(help="Folder for the evidence; an unfinished run in it is resumed.")],
    policy: Annotated[str, typer.Option(help="Policy whose protocol and early stop apply.")] = "v4-pro-fused",
    fewshot: Annotated[str | None, typer.Option(help="Few-shot examples, same format (default: ours).")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.", min=1)] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Shots (default: the policy's).", min=0)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1, max=1024)] = 64,
    endpoint: Annotated[Literal["completions", "chat"] | None, typer.Option(help="Default: the policy's.")] = None,
    max_gen_toks: Annotated[int | None, typer.Option(help="Tokens per answer (256; 2048 for chat).", min=1)] = None,
    max_retries: Annotated[int, typer.Option(help="Further tries of a request that failed.", min=0)] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 300.0,
    model: Annotated[str | None, typer.Option(help="Served name (default: the only one listed).")] = None,
    server_started: Annotated[str | None, typer.Option(help="Start of the server, epoch seconds or ISO time.")] = None,
    image_created: Annotated[
        str | None, typer.Option(help="Build time of the image, epoch seconds or ISO time.")
    ] = None,
    image_digest: Annotated[str | None, typer.Option(help="Digest of the running image, for provenance.")] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File with the API key (else MEGAMOE_API_KEY).")] = None,
    early_stop: Annotated[bool, typer.Option(help="Stop a broken model early.")] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume; keep what is there under previous/.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Run gsm8k through lm-evaluation-harness; judge the folder with `megamoe gate`."""

    def work() -> Outcome:
        from megamoe.gsm8k.run import Request, run_gsm8k

        return run_gsm8k(
            Request(
                url,
                dataset,
                out,
                policy,
                fewshot,
                limit,
                num_fewshot,
                concurrency,
                endpoint,
                max_gen_toks,
                max_retries,
                timeout,
                model,
                server_started,
                image_created,
                image_digest,
                api_key_file,
                early_stop,
                fresh,
            )
        )

    run_verb("gsm8k", work, json_output=json_output)
