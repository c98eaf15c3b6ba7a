"""The command line as one page, from the commands themselves: `python -m megamoe.reference > scripts/docs/cli.md`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer.main
from megamoe_atom.problem import Exit

from megamoe.cli import VERBS, existing_verbs

_EXIT = {
    Exit.PASS: "pass; warnings are said aloud",
    Exit.CHECK_FAILED: "a check failed: drift, fault found, gate FAIL or INCONCLUSIVE",
    Exit.REFUSED: "refused: configuration, input or usage",
    Exit.UNREACHABLE: "unreachable: a file, host, engine or server could not be read or asked",
    Exit.PRECONDITION: "a precondition does not hold",
    Exit.NO_EVIDENCE: "no evidence: INVALID is never counted as PASS",
    Exit.OUR_BUG: "a bug of ours",
    Exit.INTERRUPTED: "interrupted",
}


def page() -> str:
    """Markdown, byte-identical for the same commands."""
    out = [
        "# megamoe(1)",
        "",
        "Generated from the commands by `python -m megamoe.reference`. Do not edit.",
        "",
        "`megamoe VERB [OPTIONS] [ARGUMENTS]`: every verb takes `--json` (one object: schema_version, command,",
        "status, exit_code, summary, findings, data) and `--help`. Files are given by path; where it says so, `-` is",
        "standard input.",
        "",
        "Shell completion: `megamoe --install-completion` for the shell in use, `megamoe --show-completion` to see it.",
        "`MEGAMOE_DEBUG=1` shows the traceback of a bug of ours.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {int(code)} | {_EXIT[code]} |" for code in Exit),
    ]
    for verb in existing_verbs():
        command = typer.main.get_command(importlib.import_module(VERBS[verb][0]).app)
        out += ["", *_command(f"megamoe {verb}", command, VERBS[verb][1], 2)]
    return "\n".join(out) + "\n"


def _command(name: str, command: Any, line: str, level: int) -> list[str]:
    out = [f"{'#' * level} {name}", ""]
    text = _paragraphs(command.help or line)
    out += [text, ""] if text else []
    children = getattr(command, "commands", None)
    if children:
        for child in sorted(children):
            out += [*_command(f"{name} {child}", children[child], "", level + 1), ""]
        return out[:-1]
    shown = [p for p in command.params if not getattr(p, "hidden", False) and "--help" not in p.opts]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    words = [_argument(p) for p in arguments]
    out += ["```", " ".join([name, *(["[OPTIONS]"] if options else []), *words]), "```"]
    rows = [(_argument(p), p.help or "") for p in arguments] + [(_option(p), _described(p)) for p in options]
    if rows:
        out += ["", "| word | meaning |", "|---|---|"]
        out += [f"| `{word}` | {meaning} |".replace("\n", " ") for word, meaning in rows]
    return out


def _paragraphs(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\n".join(lines)


def _argument(param: Any) -> str:
    word = param.metavar or str(param.name).upper().replace("_", "-")
    word = f"{word}..." if param.nargs == -1 or getattr(param, "multiple", False) else word
    return str(word if param.required else f"[{word}]")


def _option(param: Any) -> str:
    names = ", ".join([*param.opts, *param.secondary_opts])
    if getattr(param, "is_flag", False):
        return names
    number = isinstance(param.default, (int, float)) and not isinstance(param.default, bool)
    return f"{names} {param.metavar or ('NUMBER' if number else 'TEXT')}"


def _described(param: Any) -> str:
    text = str(param.help or "").replace("|", "\\|")
    default = param.default
    plain = isinstance(default, (int, float, str)) and not isinstance(default, bool) and default not in ("", None)
    notes = [
        *(["required"] if param.required else []),
        *(["repeatable"] if getattr(param, "multiple", False) else []),
        *([f"default {default}"] if plain and not getattr(param, "is_flag", False) else []),
    ]
    return text + (f" ({', '.join(notes)})" if notes else "")


if __name__ == "__main__":
    sys.stdout.write(page())
