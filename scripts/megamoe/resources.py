"""Finds the facts that live outside the packages (pins, profiles, edits), in a checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from megamoe_atom.problem import Exit, Problem

_HERE = Path(__file__).resolve()
_PACKAGED = _HERE.parent / "_resources"


def checkout_root() -> Path | None:
    """The repository this package runs from, or None when it was installed as a wheel."""
    root = _HERE.parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "scripts" / "megamoe").is_dir() else None


def resource(relative: str) -> Path:
    """Path of a repository file or folder such as "docker/pins.toml".

    Raises:
        Problem: neither the checkout nor the installed package has it (exit 70: the packaging is broken).
    """
    for base in (checkout_root(), _PACKAGED):
        if base is not None and (base / relative).exists():
            return base / relative
    raise Problem(
        "resource_missing",
        what=f"{relative} is neither in a checkout nor in the installed package",
        why="pins, profiles and edits are read from that one place",
        exit_code=Exit.OUR_BUG,
        fix="reinstall with `pip install .` from a complete checkout",
    )
