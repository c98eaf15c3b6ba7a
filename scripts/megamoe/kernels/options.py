"""Options that several words of `megamoe kernels` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout.")]
BundleFolder = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder that `kernels capture` wrote.")]
ScheduleText = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="S",
        help="NAME[:MODEL][@SEED]: order (when left out), random, frozen, late, scatter, flag, stall, slow.",
    ),
]
