"""`megamoe patch apply | check | diff | revert`, on an ATOM tree (--atom DIR) or a FlyDSL tree (--flydsl DIR)."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from megamoe_atom import kernel_edits
from megamoe_atom.kernel import blob_id, differing_files
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.settings import parse_kernel_edits

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb
from megamoe.patch import tree
from megamoe.patch.contract import check_contract
from megamoe.patch.rules import Rule, TreeName, Upstream, edits_hash, load_rules, load_upstream, transform

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Apply, check, show or revert the semantic edits.")
Atom = Annotated[
    Path | None, typer.Option("--atom", metavar="DIR", help="ATOM source tree (the folder that holds atom/).")
]
Flydsl = Annotated[
    Path | None, typer.Option("--flydsl", metavar="DIR", help="FlyDSL source tree (the folder that holds kernels/).")
]
Compiler = Annotated[
    Path | None,
    typer.Option(
        "--flydsl-compiler",
        metavar="DIR",
        help="FlyDSL source tree whose compiler (python/) is to keep linked kernels in its cache: an opt-in of the "
        "image's build, unverified on a GPU.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="EDIT",
        help=f"Leave this FlyDSL edit out ({', '.join(kernel_edits.EDITS)}); may be given several times. "
        "Default: MEGAMOE_WITHOUT_EDITS.",
    ),
]
AsyncCopy = Annotated[
    bool | None,
    typer.Option(
        "--async-copy/--no-async-copy",
        help="FlyDSL: asynchronous copies to LDS in stage-1 (always off without tile_wait). "
        "Default: MEGAMOE_ASYNC_COPY, else on.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout.")]
Drift = Annotated[bool, typer.Option("--allow-drift", help="Report on a tree that is not the pinned one.")]


@dataclass(frozen=True, slots=True)
class Job:
    """One tree, its rules, and the edits that it should carry."""

    root: Path
    upstream: Upstream
    rules: tuple[Rule, ...]
    selection: frozenset[str]


def job(
    atom: Path | None = None,
    flydsl: Path | None = None,
    without: list[str] | None = None,
    async_copy: bool | None = None,
    compiler: Path | None = None,
) -> Job:
    """What the options ask for.

    Raises:
        Problem: which_tree (none or several named, or edits chosen for another than the kernels), kernel_edit (no such
            edit), and the environment's own mistakes.
    """
    trees: dict[TreeName, Path | None] = {"atom": atom, "flydsl": flydsl, "flydsl_compiler": compiler}
    given = [(name, root) for name, root in trees.items() if root is not None]
    if len(given) != 1 or (flydsl is None and (without or async_copy is not None)):
        raise Problem(
            "which_tree",
            what="name one tree: --atom DIR, --flydsl DIR (which alone takes --without and --no-async-copy) or "
            "--flydsl-compiler DIR",
            why="each call edits one upstream tree; ATOM's edits are applied together",
            fix="see `megamoe patch --help`",
            exit_code=Exit.REFUSED,
        )
    name, root = given[0]
    upstream = load_upstream(name)
    selection = upstream.default
    if name == "flydsl":
        left_out, copies = parse_kernel_edits(os.environ)
        selection = kernel_edits.wanted(
            without if without is not None else left_out, async_copy=copies if async_copy is None else async_copy
        )
    return Job(root, upstream, load_rules(name), selection)


def _data(work: Job, changed: list[str]) -> dict[str, object]:
    return {
        work.upstream.name: str(work.root),
        "commit": work.upstream.commit,
        "edits": [e for e in work.upstream.edits if e in work.selection],
        "edits_sha256": edits_hash(),
        "changed": changed,
        "files": [{"path": f.path, "before": f.before, "after": f.after(work.selection)} for f in work.upstream.files],
    }


def move(work: Job, *, undo: bool) -> Outcome:
    """Brings the tree to the chosen edits, or to none; all or nothing; a tree that is already there is left alone."""
    states = tree.read_tree(work.root, work.upstream)
    tree.refuse_other(states, work.upstream)
    tree.clear_leftovers(work.root, work.upstream)
    new = tree.target_contents(states, work.rules, frozenset() if undo else work.selection)
    if not undo:
        broken = _needs(work, new)[0]
        if broken:
            return Outcome("fail", Exit.CHECK_FAILED, f"{len(broken)} needs of the adapter are not met", broken,
                           _data(work, []))  # fmt: skip
    if new:
        tree.write_all(work.root, new, {s.pinned.path: s.content for s in states}, work.upstream.name)
    word = "reverted" if undo else "applied"
    summary = f"{word} in {len(new)} files" if new else f"already {word}; nothing to do"
    return Outcome("pass", Exit.PASS, summary, [], _data(work, sorted(new)))


def _needs(work: Job, new: dict[str, bytes] | None = None) -> tuple[list[Finding], int]:
    """What the adapter leans on: names of ATOM, or every kernel file of FlyDSL; and how many of them were read."""
    if work.upstream.name == "flydsl":
        edited = {f.path for f in work.upstream.files}
        differing = [r for path, r in differing_files(work.root) if path not in edited]
        return [Finding.from_reason(r) for r in differing], len(kernel_edits.pinned().files)
    if work.upstream.name == "flydsl_compiler":
        return [], 0
    broken, count = check_contract(work.root, new)
    return [
        Finding(
            "contract", "error", f"{b.file}: {b.what}", b.why, "the adapter must be adjusted to this ATOM", file=b.file
        )
        for b in broken
    ], count


def check(work: Job, *, allow_drift: bool) -> Outcome:
    """Post-image and needs; with allow_drift, what another tree would need."""
    states = tree.read_tree(work.root, work.upstream)
    findings: list[Finding] = []
    if not allow_drift:
        tree.refuse_other(states, work.upstream)
        findings = [f for s in states for f in _wrong_edits(work, s)]
    else:
        for s in states:
            findings += _drift(work, s)
    broken, count = _needs(work)
    findings += broken
    read = {"flydsl": "kernel files are the pinned ones", "atom": "needs of the adapter are met"}
    return outcome_from(
        findings,
        summary_ok="the edits fit" + (f" and {count} {read[work.upstream.name]}" if count else ""),
        summary_bad=f"{sum(f.severity == 'error' for f in findings)} things do not fit",
        data=_data(work, []) | {"needs_read": count, "needs_broken": len(broken)},
    )


def _wrong_edits(work: Job, s: tree.FileState) -> list[Finding]:
    have, want = s.edits, work.selection & s.pinned.edits
    assert have is not None
    found = []
    apply = f"megamoe patch apply {work.upstream.option} {work.root}{_options(work)}"
    if want - have:
        why = {
            "atom": "this ATOM ignores the adapter: MegaMoE would be off whatever the environment says",
            "flydsl": "these kernels have the fault that the edit closes",
            "flydsl_compiler": "this compiler keeps no linked kernel, and each start would compile them",
        }
        image = "the unedited pre-image" if not have else "an image without " + ", ".join(sorted(want - have))
        found.append(
            Finding(
                "not_applied",
                "error",
                f"{s.pinned.path} is {image} ({s.found}), expected {s.pinned.images[want]}",
                why[work.upstream.name],
                apply,
                file=s.pinned.path,
            )
        )
    if have - want:
        found.append(
            Finding(
                "not_wanted",
                "error",
                f"{s.pinned.path} carries {', '.join(sorted(have - want))}, which the options leave out",
                "what runs would differ from what was asked for",
                apply,
                file=s.pinned.path,
            )
        )
    return found


def _options(work: Job) -> str:
    """The options that choose these edits, for a command that a person can paste."""
    without = "".join(f" --without {e}" for e in work.upstream.edits if e in work.upstream.default - work.selection)
    copies = kernel_edits.ASYNC_COPY_OFF in work.selection and kernel_edits.TILE_WAIT in work.selection
    return without + (" --no-async-copy" if copies else "")


def _drift(work: Job, s: tree.FileState) -> list[Finding]:
    """What a file of another upstream would need; edits that it already carries whole are not looked for again."""
    if s.edits is not None and s.edits == work.selection & s.pinned.edits:
        return []
    found = []
    if s.edits is None:
        found.append(
            Finding(
                "drift",
                "warn",
                f"{s.pinned.path} has git blob id {s.found}, pinned is {s.pinned.before}",
                f"this file differs from the {work.upstream.title} that the edits were proven on",
                "read what changed upstream; then pin the new ids",
                file=s.pinned.path,
            )
        )
    todo = work.selection - (s.edits or frozenset())
    content, counts = transform(s.pinned.path, s.content, [r for r in work.rules if r.edit in todo], undo=False)
    for rule, count in counts:
        if count != rule.matches:
            found.append(
                Finding(
                    "edit_site",
                    "error",
                    f"edit {rule.name} matches {count} times in {s.pinned.path}, must match {rule.matches}",
                    rule.why,
                    f"find where upstream moved it, and adjust the rule {rule.name}",
                    file=s.pinned.path,
                )
            )
    if not any(f.severity == "error" for f in found):
        found.append(
            Finding(
                "would_give",
                "info",
                f"the edits still match {s.pinned.path} and would give blob id {blob_id(content)}",
                "the structure that the rules look for is unchanged",
                "review the diff before pinning it",
                file=s.pinned.path,
            )
        )
    return found


def diff(work: Job, *, allow_drift: bool) -> Outcome:
    """The chosen edits as a unified diff against upstream's files, on a tree in any pinned state."""
    states = tree.read_tree(work.root, work.upstream)
    if not allow_drift:
        tree.refuse_other(states, work.upstream)
    text = ""
    for s in states:
        undone = [r for r in work.rules if r.edit in (s.edits or frozenset())]
        old = transform(s.pinned.path, s.content, undone, undo=True)[0]
        new = transform(s.pinned.path, old, [r for r in work.rules if r.edit in work.selection], undo=False)[0]
        text += "".join(
            difflib.unified_diff(
                old.decode().splitlines(keepends=True),
                new.decode().splitlines(keepends=True),
                f"a/{s.pinned.path}",
                f"b/{s.pinned.path}",
            )
        )
    return Outcome("pass", Exit.PASS, f"{len(states)} files are edited", [], _data(work, []) | {"diff": text}, text)


@app.command("apply")
def apply_command(
    atom: Atom = None,
    flydsl: Flydsl = None,
    compiler: Compiler = None,
    without: Without = None,
    async_copy: AsyncCopy = None,
    json_output: Json = False,
) -> NoReturn:
    """Make the edits: all or nothing, idempotent, only on the pinned files."""
    run_verb(
        "patch apply",
        lambda: move(job(atom, flydsl, without, async_copy, compiler), undo=False),
        json_output=json_output,
    )


@app.command("revert")
def revert_command(
    atom: Atom = None, flydsl: Flydsl = None, compiler: Compiler = None, json_output: Json = False
) -> NoReturn:
    """Give the files their bytes back."""
    run_verb("patch revert", lambda: move(job(atom, flydsl, compiler=compiler), undo=True), json_output=json_output)


@app.command("check")
def check_command(
    atom: Atom = None,
    flydsl: Flydsl = None,
    compiler: Compiler = None,
    without: Without = None,
    async_copy: AsyncCopy = None,
    allow_drift: Drift = False,
    json_output: Json = False,
) -> NoReturn:
    """Check the edited files, and every name or file of the tree that the adapter leans on."""
    run_verb(
        "patch check",
        lambda: check(job(atom, flydsl, without, async_copy, compiler), allow_drift=allow_drift),
        json_output=json_output,
    )


@app.command("diff")
def diff_command(
    atom: Atom = None,
    flydsl: Flydsl = None,
    compiler: Compiler = None,
    without: Without = None,
    async_copy: AsyncCopy = None,
    allow_drift: Drift = False,
    json_output: Json = False,
) -> NoReturn:
    """Print the edits as a unified diff."""
    run_verb(
        "patch diff",
        lambda: diff(job(atom, flydsl, without, async_copy, compiler), allow_drift=allow_drift),
        json_output=json_output,
    )
