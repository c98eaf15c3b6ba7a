"""Entry point. Verbs are imported only when called, so that `plan` answers within a second."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, NoReturn

import typer
import typer.core
import typer.main
from megamoe_atom.problem import Exit

from megamoe.envelope import Finding, Outcome, as_json

# verb -> (module that holds `app`, one line of help). Kept here so that --help imports no verb.
VERBS: dict[str, tuple[str, str]] = {
    "plan": ("megamoe.plan.command", "Refuse an unsafe launch, or print its environment, flags and memory budget."),
    "preflight": ("megamoe.preflight.command", "Judge host facts before anything changes."),
    "verify-model": ("megamoe.verify_model.command", "Check a model directory without reading its data."),
    "verify-deploy": ("megamoe.verify_deploy.command", "Compare a running container with the plan."),
    "diagnose": ("megamoe.diagnose.command", "Name the first cause in one or more logs."),
    "smoke": ("megamoe.smoke.command", "Prove that a server answers, and that the fused path ran."),
    "gsm8k": ("megamoe.gsm8k.command", "Run gsm8k through lm-evaluation-harness."),
    "gate": ("megamoe.gate.command", "PASS, FAIL, INCONCLUSIVE or INVALID from evaluation output and a policy."),
    "compare": ("megamoe.compare.command", "Compare two evaluations question by question."),
    "report": ("megamoe.report.command", "Write the HTML, JSON, JUnit and Markdown report."),
    "bench-report": ("megamoe.bench_report.command", "Label benchmark figures honestly."),
    "patch": ("megamoe.patch.command", "Apply, check, show or revert the semantic edits."),
    "pins": ("megamoe.pins.command", "Check, mirror and verify the pinned sources."),
    "kernels": ("megamoe.kernels.command", "Capture, run, check and lint the gfx950 kernels."),
    "status": ("megamoe.status.command", "Evidence of the running adapter, rank by rank."),
    "version": ("megamoe.version.command", "What this installation or image is, re-verified."),
    "rehearse": ("megamoe.rehearse.command", "Bare machine to validated two-node service, on a CPU."),
}


# typer re-exports BadParameter, not its base: every mistake in the words of a command line is one of these.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class LazyGroup(typer.core.TyperGroup):
    """A group whose verbs are listed from VERBS and imported one at a time."""

    def list_commands(self, ctx: Any) -> list[str]:
        return existing_verbs()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS or not _exists(cmd_name):
            return None
        command = typer.main.get_command(importlib.import_module(VERBS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(verb, VERBS[verb][1]) for verb in self.list_commands(ctx)]
        if rows:
            with formatter.section("Verbs"):
                formatter.write_dl(rows)


def existing_verbs() -> list[str]:
    """The verbs whose package is in this installation, in the order of VERBS."""
    return [verb for verb in VERBS if _exists(verb)]


def _exists(verb: str) -> bool:
    try:
        return importlib.util.find_spec(VERBS[verb][0]) is not None
    except ModuleNotFoundError:
        return False


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.callback(help="MegaMoE on MI355X: plan, check, validate and prove a deployment. Every verb takes --json.")
def _root() -> None:
    pass


def main() -> NoReturn:
    """Runs the CLI. A usage mistake is exit 2, and with --json it speaks the envelope like everything else."""
    command = typer.main.get_command(app)
    try:
        result = command.main(standalone_mode=False)
    except UsageError as error:
        message = str(error.format_message())  # type: ignore[attr-defined] # every UsageError has it
        if "--json" not in sys.argv:
            error.show()  # type: ignore[attr-defined] # every UsageError has it
        else:
            verb = next((a for a in sys.argv[1:] if a in VERBS), "megamoe")
            print(
                as_json(
                    verb,
                    Outcome(
                        "refused",
                        Exit.REFUSED,
                        message,
                        [
                            Finding(
                                "usage",
                                "error",
                                message,
                                "the command line could not be understood",
                                f"see `megamoe {verb} --help`" if verb in VERBS else "see `megamoe --help`",
                            )
                        ],
                    ),
                )
            )
        sys.exit(int(Exit.REFUSED))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(int(Exit.INTERRUPTED))
    sys.exit(result if isinstance(result, int) else 0)
