"""`megamoe smoke`: asks everything once, then says what holds."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from megamoe.envelope import Outcome, run_verb

app = typer.Typer(add_completion=False)


@app.command()
def smoke(
    url: Annotated[str, typer.Argument(help="Server address, http://HOST:PORT.")],
    status_dir: Annotated[
        str | None, typer.Option(help="Folder with the adapter's evidence (inside a container of ours: its own).")
    ] = None,
    status_command: Annotated[str | None, typer.Option(help="Command that prints the evidence.")] = None,
    inspect: Annotated[
        str | None, typer.Option(help="Container inspection (JSON; - reads standard input): its labels and digest.")
    ] = None,
    deploy: Annotated[str | None, typer.Option(help="Deploy file: its image and token limits.")] = None,
    kernels: Annotated[
        str | None,
        typer.Option(help="Result of `megamoe kernels verify --json` on this node: whether it is of these kernels."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image that was planned, by digest (default: the deploy file's).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Served name (default: the only one listed).")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Token limit (default: the server's, else the deploy file's).", min=16)
    ] = None,
    max_batched: Annotated[
        int | None, typer.Option(help="Largest token bucket (default: deploy file, evidence, 8192).", min=16)
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 60.0,
    api_key_file: Annotated[str | None, typer.Option(help="File with the API key (else MEGAMOE_API_KEY).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the JSON envelope.")] = False,
) -> None:
    """Prove that a server answers, and that the fused path ran."""

    def work() -> Outcome:
        from megamoe.smoke.run import Ask, run_smoke

        inside = not status_dir and not status_command and os.environ.get("ATOM_USE_FLYDSL_FUSED") == "1"
        return run_smoke(
            Ask(
                url,
                os.environ.get("MEGAMOE_STATUS_DIR") if inside else status_dir,
                status_command,
                inspect,
                deploy,
                model,
                max_model_len,
                max_batched,
                timeout,
                api_key_file,
                image=image,
                kernels=kernels,
                selftest_off=inside and os.environ.get("MEGAMOE_SELFTEST") == "off",
            )
        )

    run_verb("smoke", work, json_output=json_output)
