"""`megamoe kernels capture | run | check | lint | verify`: each word has a module of its own with one `command`."""

from __future__ import annotations

import importlib
import importlib.util

import typer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Capture, run, check and lint the gfx950 kernels, on any machine."
)
# word -> module; imported here, so a module keeps heavy imports inside its function.
WORDS = {
    "capture": "megamoe.kernels.capture",
    "run": "megamoe.kernels.run",
    "check": "megamoe.kernels.check",
    "lint": "megamoe.kernels.lint",
    "verify": "megamoe.kernels.verify",
}

for _word, _module in WORDS.items():
    if importlib.util.find_spec(_module) is not None:
        app.command(_word)(importlib.import_module(_module).command)


@app.callback()
def _group() -> None:
    """Keeps the words even while only one of them exists."""
