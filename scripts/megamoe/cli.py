"""Entry point. Verbs are imported only when called, so that `plan` answers within a second."""

from __future__ import annotations

import importlib
import importlib.util

import click
import typer.main

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


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if self._exists(verb)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS or not self._exists(cmd_name):
            return None
        app = importlib.import_module(VERBS[cmd_name][0]).app
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, VERBS[verb][1]) for verb in self.list_commands(ctx)])

    @staticmethod
    def _exists(verb: str) -> bool:
        module = VERBS[verb][0]
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]},
             help="MegaMoE on MI355X: plan, check, validate and prove a deployment. Every verb takes --json.")
def main() -> None:
    pass
