"""What the adapter leans on in ATOM, read with `ast` from a tree: classes, methods, attributes, call keywords.

The contract itself is data (edits/contract.yml). Nothing of the tree is imported or run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megamoe.resources import resource


@dataclass(frozen=True, slots=True)
class Broken:
    """One need that the tree does not meet."""

    file: str
    what: str
    why: str


def load_contract() -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = yaml.safe_load(resource("atom_patch/edits/contract.yml").read_text(encoding="utf-8"))
    return data


def check_contract(root: Path, overrides: dict[str, bytes] | None = None) -> tuple[list[Broken], int]:
    """Every broken need and the number of needs that were read. `overrides` are contents not yet written."""
    broken: list[Broken] = []
    count = 0
    for entry in load_contract():
        file = entry["file"]
        try:
            content = (overrides or {}).get(file) or (root / file).read_bytes()
            module = ast.parse(content)
        except (OSError, SyntaxError, ValueError) as error:
            count += len(entry["needs"])
            broken.append(Broken(file, f"cannot be parsed: {error}", "the adapter leans on names in this file"))
            continue
        for need in entry["needs"]:
            count += 1
            missing = _unmet(module, need)
            if missing:
                broken.append(Broken(file, missing, need["why"]))
    return broken, count


def _unmet(module: ast.Module, need: dict[str, Any]) -> str | None:
    if "name" in need:
        return None if need["name"] in _module_names(module) else f"the module defines no {need['name']}"
    if "class" in need:
        cls = _class(module, need["class"])
        if cls is None:
            return f"class {need['class']} is gone"
        bases = [ast.unparse(b) for b in cls.bases]
        base = need.get("base")
        if base is not None and base not in bases:
            return f"class {cls.name} derives from {bases}, not {base}"
        lost = [f for f in need.get("fields", []) if f not in _fields(cls)]
        return f"class {cls.name} has no {', '.join(lost)}" if lost else None
    where = str(need.get("function") or need["in"])
    node = _function(module, where)
    if node is None:
        return f"{where} is gone"
    if "function" in need:
        a = node.args
        have = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        lost = [p for p in need.get("params", []) if p not in have]
        return f"{where} has no parameter {', '.join(lost)} (has {', '.join(have)})" if lost else None
    if "self_attributes" in need:
        have_set = _self_attributes(node)
        lost = [a for a in need["self_attributes"] if a not in have_set]
        return f"{where} sets no self.{', self.'.join(lost)}" if lost else None
    if "assigns" in need:
        made = {ast.unparse(t) for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets}
        return None if need["assigns"] in made else f"{where} no longer assigns {need['assigns']}"
    calls = [c for c in ast.walk(node) if isinstance(c, ast.Call) and ast.unparse(c.func) == need["call"]]
    if not calls:
        return f"{where} no longer calls {need['call']}"
    firsts = {c.args[0].value for c in calls if c.args and isinstance(c.args[0], ast.Constant)}
    lost = sorted(set(need.get("first", [])) - firsts)
    if lost:
        return f"{where} no longer calls {need['call']} for {', '.join(lost)}"
    wanted = set(need.get("keywords", []))
    best = max(calls, key=lambda c: len(wanted & {k.arg for k in c.keywords}))
    lost = sorted(wanted - {k.arg for k in best.keywords if k.arg})
    if lost:
        return f"{where} calls {need['call']} without {', '.join(lost)}"
    order = need.get("after")
    if order is not None:
        first = min(c.lineno for c in calls)
        earlier = [c for c in ast.walk(node) if isinstance(c, ast.Call) and ast.unparse(c.func) == order]
        if not earlier or min(c.lineno for c in earlier) > first:
            return f"{where} no longer calls {need['call']} after {order}"
    return None


def _module_names(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((a.asname or a.name) for a in node.names)
        elif isinstance(node, ast.Assign):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
    return names


def _class(module: ast.Module, name: str) -> ast.ClassDef | None:
    return next((n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name), None)


def _fields(cls: ast.ClassDef) -> set[str]:
    """Names that the class body gives its objects: fields, class attributes, methods and properties."""
    names = {n.name for n in cls.body if isinstance(n, ast.FunctionDef)}
    names |= {n.target.id for n in cls.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return names | {t.id for n in cls.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}


def _function(module: ast.Module, dotted: str) -> ast.FunctionDef | None:
    owner, _, name = dotted.rpartition(".")
    body = module.body
    if owner:
        cls = _class(module, owner)
        if cls is None:
            return None
        body = cls.body
    return next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _self_attributes(node: ast.AST) -> set[str]:
    names = set()
    for child in ast.walk(node):
        targets = child.targets if isinstance(child, ast.Assign) else []
        if isinstance(child, ast.AnnAssign):
            targets = [child.target]
        for target in targets:
            for t in ast.walk(target):
                if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self":
                    names.add(t.attr)
    return names
