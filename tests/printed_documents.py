"""Which JSON documents a verb prints, read from its source: what it makes, and what the functions it calls make.

It follows names through the modules of the command line; it must not run anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parents[1] / "src"


class _Module(NamedTuple):
    """What the top level of a module has by name, and where its imported names come from."""

    own: dict[str, ast.AST]
    imported: dict[str, tuple[str, str]]


@cache
def _module(name: str) -> _Module:
    path = SRC.joinpath(*name.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")  # a package imports nothing
    own: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            own |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return _Module(own, imported)


def printed_by(verb: str) -> set[str]:
    """The names of the documents that a verb prints."""
    part = verb.rpartition(" ")[2]
    seen: set[tuple[str, str]] = set()
    return set(_made(f"opsq.cli.verbs.{verb.replace(' ', '.')}", "list_" if part == "list" else part, seen))


def _made(module: str, name: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The documents that a function, class or constant of a module makes."""
    found = _module(module)
    if (module, name) in seen or name not in found.own:
        return
    seen.add((module, name))
    for node in ast.walk(found.own[name]):
        if isinstance(node, ast.Call):
            made = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            words = [each.value for each in node.keywords if each.arg == "document"]
            yield from (each.id for each in (made, *words) if isinstance(each, ast.Name) and _is_document(each.id))
            if isinstance(node.func, ast.Attribute) and node.func.attr == "changed":
                yield "ChangedDocument"
        elif isinstance(node, ast.Name):
            place = (module, node.id) if node.id in found.own else found.imported.get(node.id, ("", ""))
            if place[0].startswith("opsq.cli.") and place[0] != "opsq.cli.caller":
                yield from _made(*place, seen)


def _is_document(name: str) -> bool:
    return name.endswith("Document")
