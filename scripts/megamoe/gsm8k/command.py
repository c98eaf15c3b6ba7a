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
    deploy: Annotated[str | None, typer.Option(help="Deploy file: image digest and arguments, for provenance.")] = None,
    status_dir: Annotated[
        str | None, typer.Option(help="Folder with the adapter's evidence: a restart is seen.")
    ] = None,
    status_command: Annotated[str | None, typer.Option(help="Command that prints the evidence.")] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File with the API key (else MEGAMOE_API_KEY).")] = None,
    further: Annotated[
        bool, typer.Option("--further", help="Further questions for the second stage: may be fewer than the policy's.")
    ] = False,
    early_stop: Annotated[bool, typer.Option(help="Stop a broken model early.")] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume; keep what is there under previous/.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Run gsm8k through lm-evaluation-harness; judge the folder with `megamoe gate`."""

    def work() -> Outcome:
        from megamoe.gsm8k.run import Request, run_gsm8k

        return run_gsm8k(
            Request(
                url=url,
                dataset=dataset,
                out=out,
                policy=policy,
                fewshot=fewshot,
                limit=limit,
                num_fewshot=num_fewshot,
                concurrency=concurrency,
                endpoint=endpoint,
                max_gen_toks=max_gen_toks,
                max_retries=max_retries,
                timeout=timeout,
                model=model,
                server_started=server_started,
                image_created=image_created,
                image_digest=image_digest,
                deploy=deploy,
                status_dir=status_dir,
                status_command=status_command,
                api_key_file=api_key_file,
                further=further,
                early_stop=early_stop,
                fresh=fresh,
            )
        )

    run_verb("gsm8k", work, json_output=json_output)
