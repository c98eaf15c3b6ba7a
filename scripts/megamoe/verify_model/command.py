"""`megamoe verify-model DIR`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome, outcome_from, run_verb

app = typer.Typer(add_completion=False)


def _profiles(incomplete: str) -> list[str]:
    """Profile names for shell completion."""
    from megamoe.deploy.profiles import names

    return [name for name in names() if name.startswith(incomplete)]


@app.command()
def verify_model(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="model directory")],
    mount: Annotated[list[str] | None, typer.Option("--mount", metavar="HOST:CONTAINER",
                                                    help="what the container sees")] = None,
    profile: Annotated[str, typer.Option("--profile", help="check dimensions and experts against this profile",
                                         autocompletion=_profiles)] = "",
    manifest: Annotated[str, typer.Option("--manifest", help="sha256sum file; reads all data")] = "",
    resume: Annotated[str, typer.Option("--resume", help="file that remembers finished checksums")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="print the result envelope")] = False,
) -> None:
    """Check a model directory: index, shards, headers, links, leftovers, configuration. Tensor data is not read."""
    run_verb("verify-model", lambda: _outcome(directory, mount or [], profile, manifest, resume),
             json_output=json_output)


def _outcome(directory: str, mounts: list[str], profile: str, manifest: str, resume: str) -> Outcome:
    from megamoe.deploy.profiles import load_profile
    from megamoe.verify_model import config, experts, files, links, shards
    from megamoe.verify_model import manifest as checksums
    from megamoe.verify_model.links import Mount

    root = Path(directory)
    try:
        if not directory or "\0" in directory or not root.is_dir():
            raise _not_a_directory(directory, root)
        if resume and not manifest:
            raise Problem("usage", what="--resume was given without --manifest", why="only checksums take long enough "
                          "to be resumed, and none would be checked", fix="give the sha256sum file with --manifest")
        seen = [Mount.parse(item) for item in mounts]
        wanted = load_profile(profile) if profile else None
        findings = links.outside(root, seen) if seen else []
        findings += links.links(root, seen)
        shard_findings, tensors, total = shards.shards(root)
        config_findings, said = config.config(root, wanted)
        findings += shard_findings + files.leftovers(root) + config_findings + files.tokenizer(root)
        if wanted is not None:
            findings += files.revision(root, wanted)
            if wanted.weights == "mxfp4" and tensors:
                findings += experts.experts(tensors, wanted)
        elif tensors and (alike := config.likely_profile(said)) is not None and alike.weights == "mxfp4":
            findings += [replace(f, severity="warn") for f in experts.experts(tensors, alike)
                         if f.code == "EXPERT_DTYPE"]
        if manifest:
            findings += checksums.manifest(root, Path(manifest), Path(resume) if resume else None)
    except OSError as error:
        raise Problem("model_unreadable", what=f"{error.filename or directory}: {error.strerror}",
                      why="what cannot be read cannot be checked", fix="check permissions and the file system",
                      exit_code=Exit.UNREACHABLE) from None
    errors = sum(f.severity == "error" for f in findings)
    return outcome_from(findings, summary_ok=f"{root}: complete, {len(tensors)} tensors, {total} bytes of shards",
                        summary_bad=f"{root}: {errors} reason(s) not to load this model", bad_status="refused",
                        bad_exit=Exit.REFUSED, data={"directory": str(root), "tensors": len(tensors),
                                                     "shard_bytes": total, "profile": profile or None,
                                                     "data_read": bool(manifest)})


def _not_a_directory(directory: str, root: Path) -> Problem:
    from megamoe.verify_model.instead import FIRST, instead

    said = "there is no such directory" if directory and "\0" not in directory and not root.exists() else ""
    if not said and directory and "\0" not in directory and root.is_file():
        with root.open("rb") as file:
            said = instead(file.read(FIRST)) or "it is a file"
    return Problem("model_dir", what=f"{directory!r} is not a directory" + (f": {said}" if said else ""),
                   why="a model is checked as a whole", fix="give the directory that holds config.json and the shards",
                   exit_code=Exit.REFUSED)
