"""The contract holds every name of ATOM that the adapter reads, by the adapter's own source; no checkout is needed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import megamoe_atom
from megamoe.patch.contract import load_contract
from megamoe_atom.method import _WEIGHTS

# Module and function of the adapter -> the variables that are ATOM's objects there.
ATOMS = {
    ("support", "of_layer"): {"layer", "method", "parallel"},
    ("startup", "_of_config"): {"config"},
    ("startup", "make_runtime"): {"config"},
    ("factory", "geometry"): {"layer", "method", "parallel"},
    ("method", "__init__"): {"self"},
    ("method", "process_weights_after_loading"): {"layer", "self"},
    ("method", "init_prepare_finalize"): {"layer", "self"},
    ("warmup", "warmup_token_ids"): {"runner"},
}
OURS = {"_runtime", "_converted", "_geometry", "_layer", "process_weights_after_loading"}


def names_in_contract() -> set[str]:
    names: set[str] = set()
    for entry in load_contract():
        for need in entry["needs"]:
            for kind in ("self_attributes", "fields", "params", "first"):
                names.update(need.get(kind, []))
            names.update(str(need[k]).rpartition(".")[2] for k in ("function", "assigns") if k in need)
    return names


def read(node: ast.AST, variables: set[str]) -> set[str]:
    """Attributes read or set of these variables, also by getattr with a constant."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id in variables:
            found.add(child.attr)
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "getattr":
            of, name = child.args[0], child.args[1]
            if isinstance(of, ast.Name) and of.id in variables and isinstance(name, ast.Constant):
                found.add(str(name.value))
    return found


def functions(module: str) -> dict[str, Any]:
    tree = ast.parse((Path(megamoe_atom.__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    # Of two functions of one name the last counts: in method.py that is ATOM's subclass.
    return {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_every_name_of_atom_that_the_adapter_reads_is_in_the_contract() -> None:
    found: set[str] = set()
    for (module, function), variables in ATOMS.items():
        here = read(functions(module)[function], variables)
        assert here, f"{module}.{function} reads nothing of ATOM any more"
        found |= here
    assert len(found) > 25
    assert (found | set(_WEIGHTS)) - OURS - names_in_contract() == set()


def test_no_other_function_of_the_adapter_takes_atoms_objects() -> None:
    """A new function with such an argument must be listed above, or only pass it on."""
    suspects = {"layer", "method", "config", "runner"}
    for module in ("support", "startup", "factory", "method", "warmup"):
        for name, node in functions(module).items():
            taken = suspects & {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            if (module, name) not in ATOMS and taken:
                assert read(node, taken) - names_in_contract() == set(), name
