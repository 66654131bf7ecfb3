"""Checks the import arrows of the house: who in src/opsq may import whom; ARROWS below is the only list.

It reads sources with `ast` and must never import opsq, so that it also works while the package is broken.

    python tools/check_arrows.py [ROOT]      exits 1 and names file, line and arrow for each import that runs back
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "opsq"

# Everyone may know these; they know nothing but errors.
BASE = frozenset({"errors", "ids", "units", "version", "wording"})

# Unit → what else it may import, each name with all below it ("wire" includes "wire.messages"). A unit is a module or
# package under opsq; a dotted unit has its own rule, which replaces the one of its package. "" is `opsq/__init__.py`.
ANYTHING = frozenset({"*"})
ARROWS: dict[str, frozenset[str]] = {
    "": frozenset({"client", "serialisation", "strategy"}),
    "__main__": ANYTHING,
    "cli": ANYTHING,
    "spark": frozenset(
        {"", "client", "content", "runner", "strategy.tree", "wire.messages"}
    ),  # words of options and of the protocol
    "runner": frozenset({"client", "clock", "content", "wire.messages"}),
    "client": frozenset({"clock", "content", "serialisation", "settings", "strategy", "wire"}),
    "client.embedded": frozenset({"clock", "content", "queue", "settings", "store", "strategy", "wire"}),
    "daemon": frozenset(
        {"client.core.address", "client.sync.connection", "clock", "content", "queue", "settings", "store", "wire"}
    ),  # it opens the database and commits; start and stop are clients of a running one
    "queue": frozenset({"clock", "store", "strategy", "wire.messages"}),
    "store": frozenset({"clock"}),
    "wire": frozenset(),
    "content": frozenset(),
    "strategy": frozenset(),
    "serialisation": frozenset(),  # a public module of its own, as strategy is: users name its classes
    "settings": frozenset({"setting_kinds"}),
    "setting_kinds": frozenset(),
    "clock": frozenset(),
    "ids": frozenset({"errors"}),
    "units": frozenset({"errors"}),
    "errors": frozenset({"wording"}),
    "wording": frozenset({"units"}),
    "version": frozenset(),
}


def module_name(path: Path, root: Path) -> str:
    """Name the module of a file relative to the package: `store/database.py` → "store.database", `__init__.py` → ""."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, imported module relative to the package) for each import of ours, at any depth of the file."""
    here = module_name(path, root)
    package = here if path.name == "__init__.py" else here.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == PACKAGE or alias.name.startswith(PACKAGE + "."):
                    yield node.lineno, alias.name[len(PACKAGE) + 1 :]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".") if package else []
                above = above[: len(above) - (node.level - 1)]
                base = ".".join([*above, *([base] if base else [])])
            elif base == PACKAGE or base.startswith(PACKAGE + "."):
                base = base[len(PACKAGE) + 1 :]
            else:
                continue
            for alias in node.names:
                yield node.lineno, submodule(base, alias.name, root)


def submodule(base: str, name: str, root: Path) -> str:
    """Tell `from opsq import ids` (a module) from `from opsq import connect` (a name in it)."""
    folder = root.joinpath(*base.split(".")) if base else root
    if (folder / f"{name}.py").exists() or (folder / name).is_dir():
        return f"{base}.{name}" if base else name
    return base


def is_within(module: str, unit: str) -> bool:
    """Whether the module is the unit or lies below it; nothing lies below the public names."""
    return module == unit or (unit != "" and module.startswith(unit + "."))


def rule_for(module: str) -> str | None:
    """Find the longest unit of ARROWS that the module belongs to; None when there is none."""
    return max((unit for unit in ARROWS if is_within(module, unit)), key=len, default=None)


def is_allowed(importer: str, imported: str, allowed: frozenset[str]) -> bool:
    """Whether an arrow goes the right way: inside one package always, else by the importer's rule."""
    first, second = importer.partition(".")[0], imported.partition(".")[0]
    if allowed == ANYTHING or (first == second and first):
        return True
    if importer not in BASE and second in BASE:
        return True
    return any(is_within(imported, unit) for unit in allowed)


def full_name(module: str) -> str:
    """Write a module as Python does: "store.database" → "opsq.store.database"."""
    return f"{PACKAGE}.{module}" if module else PACKAGE


def check(root: Path) -> list[str]:
    """Return one line per arrow that runs back or per module without a rule; empty when all is well."""
    problems = []
    for path in sorted(root.rglob("*.py")):
        importer = module_name(path, root)
        unit = rule_for(importer)
        if unit is None:
            problems.append(f"{path}: {full_name(importer)} has no rule; add it to ARROWS in tools/check_arrows.py")
            continue
        for line, imported in sorted(set(imports_of(path, root))):
            if not is_allowed(importer, imported, ARROWS[unit]):
                problems.append(f"{path}:{line}: {full_name(importer)} must not import {full_name(imported)}")
    return problems


def main(arguments: list[str]) -> int:
    """Print what is wrong on stderr; the exit status is 1 if anything is."""
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent / "src" / PACKAGE
    problems = check(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
