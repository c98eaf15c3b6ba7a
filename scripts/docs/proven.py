"""The page "What is proven, how, and what is not": `python scripts/docs/proven.py > scripts/docs/proven.md`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megamoe_atom.kernel_edits import EDITS

HERE = Path(__file__).parent
KINDS = {
    "executed": "the compiled gfx950 kernels, executed instruction by instruction on a CPU",
    "golden": "equal to bits that the executed kernels produced, in every test run",
    "compared": "compared with upstream's own code, on a CPU",
    "static": "counted in the compiled kernels",
    "h200": "measured on an NVIDIA H200",
    "reading": "read in source or documents",
    "none": "not at all",
}


def claims() -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = tomllib.loads((HERE / "proven.toml").read_text(encoding="utf-8"))["claim"]
    return data


def figures() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / "proven_edits.json").read_text(encoding="utf-8"))
    return data


def page() -> str:
    """Markdown, byte-identical for the same data."""
    out = [
        "# What is proven, how, and what is not",
        "",
        "Generated from `scripts/docs/proven.toml` and `scripts/docs/proven_edits.json` by "
        "`python scripts/docs/proven.py`. Do not edit.",
        "",
        "Nothing here has run on an MI355X. `megamoe kernels verify` on one node settles most of it in one call.",
        "",
        "| kind of proof | what it means |",
        "|---|---|",
        *(f"| {kind} | {meaning} |" for kind, meaning in KINDS.items()),
        "",
    ]
    about = ""
    for claim in claims():
        if claim["about"] != about:
            about = claim["about"]
            out += [f"## {about}", "", "| claim | proof | how | open | what settles it |", "|---|---|---|---|---|"]
        out.append(
            f"| {claim['says']} | {', '.join(claim['proof'])} | {claim['how']} | {claim.get('open', '-')} "
            f"| {_code(claim['settle'])} |"
        )
        following = claims().index(claim) + 1
        if following == len(claims()) or claims()[following]["about"] != about:
            out.append("")
    out += list(_experiments()) + list(_costs())
    return "\n".join(out)


def _code(settle: str) -> str:
    """A command in code marks, words as they are."""
    command, comma, rest = settle.partition(", ")
    return f"`{command}`{comma}{rest}" if command.startswith(("megamoe ", "docker ", "ansible-")) else settle


def _tree(edits: list[str]) -> str:
    """A tree by the edits that it carries."""
    return (
        "stock"
        if not edits
        else "all six"
        if len(edits) == len(EDITS)
        else f"all but {(set(EDITS) - set(edits)).pop()}"
        if len(edits) == len(EDITS) - 1
        else ", ".join(edits)
    )


def _experiments() -> Iterator[str]:
    data = figures()
    days = ", ".join(sorted({e["date"] for e in data["experiments"]}))
    yield "## The edits, without and with"
    yield ""
    yield (
        f"{days}, FlyDSL {data['flydsl_commit'][:9]}: {data['conditions']}. *Wrong* is a run whose output is "
        "not the reference's bit for bit, *hung* one that did not end. Cases: `kernel_lane/capture/cases.py`; `:10` is "
        "a SwiGLU limit of 10."
    )
    yield ""
    yield (
        "| edit | fault | case | schedule | launches before | without it | runs, wrong, hung | worst relL2 | with it "
        "| runs, wrong, hung |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for e in data["experiments"]:
        a, b = e["without"], e["with"]
        yield (
            f"| {e['edit']} | {e['fault']} | {e['case']} | {', '.join(e['schedules'])} | {e['launches_before'] or '-'} "
            f"| {_tree(e['trees']['without'])} | {a['runs']}, {a['wrong']}, {a['hung']} | {a['worst_rel_l2']} "
            f"| {_tree(e['trees']['with'])} | {b['runs']}, {b['wrong']}, {b['hung']} |"
        )
    yield ""


def _costs() -> Iterator[str]:
    data = figures()
    rows = {(r["tree"], r["model"], r["tokens"], r["limit"]): r for r in data["kernels"]}
    yield "## What the edits cost in stage-1"
    yield ""
    yield (
        "Compiled for gfx950 (8 ranks, rank 0, 256 CUs), difference to the unedited kernel of the same geometry. "
        "*LDS-DMA left*: copies that may be under way at barriers, over all of a kernel's barriers. Scratch is 0."
    )
    yield ""
    yield "| edits | model, tokens per rank | instructions | VGPR (AGPR) | SGPR | LDS | LDS-DMA left | linter |"
    yield "|---|---|---|---|---|---|---|---|"
    for (tree, model, tokens, limit), r in rows.items():
        base = rows[("stock", model, tokens, 0.0)]
        same = "the same bytes" if r["sha256"] == base["sha256"] and tree != "stock" else ""
        delta = r["instructions"] - base["instructions"]
        name = {"stock": "none", "all": "all six"}.get(tree, tree) + (f", limit {limit:g}" if limit else "")
        yield (
            f"| {name} | V4-{model.capitalize()}, {tokens} | {r['instructions']}"
            f"{f' ({delta:+d})' if tree != 'stock' and not same else ''}{' ' + same if same else ''} "
            f"| {r['vgprs']} ({r['agprs']}) | {r['sgprs']} | {r['lds']} | {r['lds_dma_left']} "
            f"| {', '.join(r['findings']) or 'nothing'} |"
        )
    yield ""


if __name__ == "__main__":
    print(page(), end="")
