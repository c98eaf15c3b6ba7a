"""`megamoe patch apply | check | diff | revert --atom DIR`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from megamoe_atom.problem import Exit

from megamoe.envelope import Finding, Outcome, outcome_from, run_verb
from megamoe.patch import tree
from megamoe.patch.contract import check_contract
from megamoe.patch.rules import Edit, blob_id, edits_hash, load_edits, load_upstream, transform

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Apply, check, show or revert the semantic edits.")
Atom = Annotated[Path, typer.Option("--atom", metavar="DIR", help="ATOM source tree (the folder that holds atom/).")]
Json = Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout.")]
Drift = Annotated[bool, typer.Option("--allow-drift", help="Report on an ATOM that is not the pinned one.")]


def _data(root: Path, changed: list[str]) -> dict[str, object]:
    upstream = load_upstream()
    return {
        "atom": str(root),
        "commit": upstream.commit,
        "edits_sha256": edits_hash(),
        "changed": changed,
        "files": [{"path": f.path, "before": f.before, "after": f.after} for f in upstream.files],
    }


def move(root: Path, *, undo: bool) -> Outcome:
    """Applies or reverts all edits, all or nothing; a tree that is already there is left alone."""
    upstream, edits = load_upstream(), load_edits()
    states = tree.read_tree(root, upstream)
    tree.refuse_other(states, upstream)
    new = tree.target_contents(states, edits, undo=undo)
    if not undo:
        broken, _ = check_contract(root, new)
        if broken:
            return _contract_outcome(root, [_finding(b.file, b.what, b.why) for b in broken])
    if new:
        tree.write_all(root, new, {s.pinned.path: s.content for s in states})
    word = "reverted" if undo else "applied"
    summary = f"{word} in {len(new)} files" if new else f"already {word}; nothing to do"
    return Outcome("pass", Exit.PASS, summary, [], _data(root, sorted(new)))


def _finding(file: str, what: str, why: str) -> Finding:
    return Finding("contract", "error", f"{file}: {what}", why, "the adapter must be adjusted to this ATOM", file=file)


def _contract_outcome(root: Path, findings: list[Finding]) -> Outcome:
    return Outcome(
        "fail", Exit.CHECK_FAILED, f"{len(findings)} needs of the adapter are not met", findings, _data(root, [])
    )


def check(root: Path, *, allow_drift: bool) -> Outcome:
    """Post-image and contract; with allow_drift, what another ATOM would need."""
    upstream, edits = load_upstream(), load_edits()
    states = tree.read_tree(root, upstream)
    findings: list[Finding] = []
    if not allow_drift:
        tree.refuse_other(states, upstream)
        findings += [
            Finding(
                "not_applied",
                "error",
                f"{s.pinned.path} is the unedited pre-image {s.found}, expected {s.pinned.after}",
                "this ATOM ignores the adapter: MegaMoE would be off whatever the environment says",
                f"megamoe patch apply --atom {root}",
                file=s.pinned.path,
            )
            for s in states
            if s.state == "before"
        ]
    else:
        for s in states:
            findings += _drift(s, edits)
    broken, count = check_contract(root)
    findings += [_finding(b.file, b.what, b.why) for b in broken]
    data = _data(root, []) | {"needs_read": count, "needs_broken": len(broken)}
    return outcome_from(
        findings,
        summary_ok=f"the edits fit and {count} needs of the adapter are met",
        summary_bad=f"{sum(f.severity == 'error' for f in findings)} things do not fit",
        data=data,
    )


def _drift(s: tree.FileState, edits: tuple[Edit, ...]) -> list[Finding]:
    if s.state == "after":
        return []
    found = []
    if s.state == "other":
        found.append(
            Finding(
                "drift",
                "warn",
                f"{s.pinned.path} has git blob id {s.found}, pinned is {s.pinned.before}",
                "this file differs from the ATOM that the edits were proven on",
                "read what changed upstream; then pin the new ids in edits/upstream.toml",
                file=s.pinned.path,
            )
        )
    content, counts = transform(s.pinned.path, s.content, edits, undo=False)
    for edit, count in counts:
        if count != edit.matches:
            found.append(
                Finding(
                    "edit_site",
                    "error",
                    f"edit {edit.name} matches {count} times in {s.pinned.path}, must match {edit.matches}",
                    edit.why,
                    f"find where upstream moved it, and adjust the rule {edit.name}",
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


def diff(root: Path, *, allow_drift: bool) -> Outcome:
    """The edits as a unified diff, on a tree in either state."""
    upstream, edits = load_upstream(), load_edits()
    states = tree.read_tree(root, upstream)
    if not allow_drift:
        tree.refuse_other(states, upstream)
    text = ""
    for s in states:
        if s.state == "after":
            old, new = transform(s.pinned.path, s.content, edits, undo=True)[0], s.content
        else:
            old, new = s.content, transform(s.pinned.path, s.content, edits, undo=False)[0]
        text += "".join(
            difflib.unified_diff(
                old.decode().splitlines(keepends=True),
                new.decode().splitlines(keepends=True),
                f"a/{s.pinned.path}",
                f"b/{s.pinned.path}",
            )
        )
    return Outcome("pass", Exit.PASS, f"{len(states)} files are edited", [], _data(root, []) | {"diff": text}, text)


@app.command("apply")
def apply_command(atom: Atom, json_output: Json = False) -> NoReturn:
    """Make the edits: all or nothing, idempotent, only on the pinned files."""
    run_verb("patch apply", lambda: move(atom, undo=False), json_output=json_output)


@app.command("revert")
def revert_command(atom: Atom, json_output: Json = False) -> NoReturn:
    """Give the files their bytes back."""
    run_verb("patch revert", lambda: move(atom, undo=True), json_output=json_output)


@app.command("check")
def check_command(atom: Atom, allow_drift: Drift = False, json_output: Json = False) -> NoReturn:
    """Check the edited files and every name of ATOM that the adapter leans on."""
    run_verb("patch check", lambda: check(atom, allow_drift=allow_drift), json_output=json_output)


@app.command("diff")
def diff_command(atom: Atom, allow_drift: Drift = False, json_output: Json = False) -> NoReturn:
    """Print the edits as a unified diff."""
    run_verb("patch diff", lambda: diff(atom, allow_drift=allow_drift), json_output=json_output)
