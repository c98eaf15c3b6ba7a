"""`megamoe smoke`: asks everything once, then says what holds."""

from __future__ import annotations

from typing import Annotated

import typer

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def smoke(
    url: Annotated[str, typer.Argument(help="Server address, http://HOST:PORT.")],
    status_dir: Annotated[str | None, typer.Option(help="Folder with the adapter's evidence files.")] = None,
    status_command: Annotated[str | None, typer.Option(help="Command that prints the evidence.")] = None,
    model: Annotated[str | None, typer.Option(help="Served name (default: the only one listed).")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Token limit (default: from /v1/models).", min=16)] = None,
    max_batched: Annotated[int, typer.Option(help="max-num-batched-tokens: the largest token bucket.", min=16)] = 8192,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 60.0,
    api_key_file: Annotated[str | None, typer.Option(help="File with the API key (else MEGAMOE_API_KEY).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Prove that a server answers, and that the fused path ran."""

    def work() -> Outcome:
        from megamoe.smoke.run import run_smoke

        return run_smoke(url, status_dir, status_command, model, max_model_len, max_batched, timeout, api_key_file)

    run_verb("smoke", work, json_output=json_output)
