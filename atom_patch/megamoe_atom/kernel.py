"""Loads FlyDSL's MegaMoE class from one given checkout, and proves that it is that checkout.

FlyDSL's `kernels` is a top-level package that its wheel does not ship; a package of the same name on PyPI is used by
transformers. So the path goes first on sys.path while it is imported, and what was imported must lie below it. It does
not stay there: the checkout's `tests`, `scripts` and `tools` would win over those of any other project. The files must
also be the pinned commit's, by git blob id: a checkout of another commit imports just as well and computes something
else.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem, Reason


def blob_id(content: bytes) -> str:
    """What `git hash-object` prints for these bytes (sha1 over "blob <size>" NUL content); needs no git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def pinned_files() -> tuple[str, dict[str, list[str]]]:
    """The pinned FlyDSL commit, and per kernel file the git blob ids that may run: the commit's, then our edits'."""
    pinned = kernel_edits.pinned()
    return pinned.commit, {path: list(images.values()) for path, images in pinned.files.items()}


def _found(root: Path) -> dict[str, str]:
    found = {}
    for name in pinned_files()[1]:
        try:
            found[name] = blob_id((root / name).read_bytes())
        except FileNotFoundError:
            found[name] = "missing"
        except OSError as error:
            found[name] = f"unreadable ({error.strerror})"
    return found


def differing_files(root: Path) -> list[tuple[str, Reason]]:
    """Path and reason per kernel file that is neither the pinned commit's nor an edit of ours."""
    commit, files = pinned_files()
    found = _found(root)
    return [
        (
            name,
            Reason(
                "flydsl_commit",
                f"{name} has git blob id {found[name]}, expected {' or '.join(ids)}",
                "a kernel of another commit loads just as well and computes something else",
                f"check out FlyDSL {commit} there, or use the image",
            ),
        )
        for name, ids in files.items()
        if found[name] not in ids
    ]


def verify_files(root: Path) -> dict[str, str]:
    """Checks every kernel file of a FlyDSL checkout against its pinned blob ids (about 40 small files).

    Returns:
        path -> blob id found, for the evidence and for kernel_edits.present.
    Raises:
        Problem: flydsl_path (no such checkout), flydsl_commit (a reason per missing or differing file).
    """
    if not (root / "kernels" / "mega_moe").is_dir():
        raise Problem(
            "flydsl_path",
            what=f"{root} holds no kernels/mega_moe",
            why="ATOM_FLYDSL_KERNELS_PATH must name the FlyDSL checkout whose kernels replace the MoE step",
            fix="set it to the folder that holds kernels/; in our image it is already set",
            exit_code=Exit.PRECONDITION,
        )
    reasons = [reason for _, reason in differing_files(root)]
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.REFUSED)
    return _found(root)


def require_edits(carried: frozenset[str], wanted: frozenset[str]) -> None:
    """Refuses kernels that do not carry exactly the wanted edits.

    Args:
        carried: kernel_edits.present of the tree. wanted: Settings.kernel_edits.
    Raises:
        Problem: kernel_edits, a reason for what is missing and one for what is too much.
    """
    reasons = [
        Reason(
            "kernel_edits",
            f"the kernels {verb} {', '.join(sorted(names))}; MEGAMOE_WITHOUT_EDITS, MEGAMOE_ASYNC_COPY ask otherwise",
            why,
            "run `megamoe patch apply --flydsl DIR` in the same environment and empty FlyDSL's cache, or change these "
            "settings",
        )
        for names, verb, why in (
            (wanted - carried, "lack the edits", "each closes a fault of the pinned kernels that shows as no error"),
            (carried - wanted, "carry the edits", "what runs must be what was asked for"),
        )
        if names
    ]
    if reasons:
        raise Problem.of(reasons, exit_code=Exit.PRECONDITION)


def load_megamoe(path: str | Path) -> type[Any]:
    """The class MegaMoE of the FlyDSL checkout at `path`.

    Raises:
        Problem: flydsl_path, flydsl_commit, kernels_shadowed (another `kernels` was imported), flydsl_import.
    """
    root = Path(path).resolve()
    verify_files(root)
    _refuse_shadow(root)
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module("kernels.mega_moe")
        megamoe: type[Any] = module.MegaMoE
    except ImportError as error:
        _refuse_shadow(root)
        raise Problem(
            "flydsl_import",
            what=f"kernels.mega_moe of {root} cannot be imported: {error}",
            why="MegaMoE v1 needs mori and a flydsl wheel of 0.2.2, 0.2.3 or 0.2.4; 0.3.0 moved what it imports",
            fix="install flydsl 0.2.4 and the pinned mori wheel, or use the image",
            exit_code=Exit.PRECONDITION,
        ) from error
    finally:
        sys.path.remove(str(root))  # later imports of `kernels` go by its own path
    _refuse_shadow(root)
    return megamoe


def _refuse_shadow(root: Path) -> None:
    module = sys.modules.get("kernels")
    if module is None:
        return
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", []))
    if not any(Path(p).resolve().is_relative_to(root) for p in places if p):
        raise Problem(
            "kernels_shadowed",
            what=f"`kernels` was imported from {places or 'an unknown place'}, not from {root}",
            why="another package of that name (PyPI's `kernels`, used by transformers) wins, and would be called",
            fix="uninstall the package `kernels`, or remove the other folder from PYTHONPATH",
            exit_code=Exit.PRECONDITION,
        )


def accepts_swiglu_limit(megamoe: type[Any]) -> bool:
    """Whether the constructor takes swiglu_limit: v1 at the pinned commit does not, our edited kernels do."""
    return "swiglu_limit" in inspect.signature(megamoe.__init__).parameters
