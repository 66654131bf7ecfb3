"""Checks the import arrows: who in src/opsq may import whom (ARROWS and ROOMS), and that no files form a circle.

Imports under TYPE_CHECKING count like any other. It reads sources with `ast` and must never import opsq, so that it
also works while the package is broken.

    python tools/check_arrows.py [ROOT]      exits 1 and names file, line and arrow for each import that runs back
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "opsq"

# Everyone may know these; they know nothing but errors.
BASE = frozenset(
    {
        *(
            "errors",
            "filesystem",
            "fsync",
            "findings",
            "ids",
            "peer_credentials",
            "printable",
            "private_file",
            "process_one",
            "quick_imports",
            "titles",
            "tls_files",
            "units",
        ),
        *("users", "version", "wording"),
    }
)

# Unit → what else it may import, each name with all below it ("wire" includes "wire.messages"). A unit is a module or
# package under opsq; a dotted unit has its own rule, which replaces the one of its package. "" is `opsq/__init__.py`.
ANYTHING = frozenset({"*"})
ARROWS: dict[str, frozenset[str]] = {
    "": frozenset(
        {"client", "outbox", "queue.policy", "serialisation", "strategy", "testing", "types", "wire.messages"}
    ),  # what is promised
    "types": frozenset({"client", "content", "outbox", "traces", "wire.messages"}),
    "__main__": ANYTHING,
    "cli": ANYTHING,
    "spark": frozenset(
        {
            *("", "client", "content", "documents.progress_meter", "options", "runner", "strategy.tree", "traces"),
            "wire.messages",
        }
    ),  # words of options and of the protocol
    "runner": frozenset({"client", "clock", "content", "wire.messages"}),
    "documents": frozenset({"content", "metrics", "strategy", "traces", "wire.messages"}),
    "options": frozenset({"content", "setting_kinds", "settings", "strategy.tree", "wire.messages"}),
    "gateway": frozenset(
        {
            *("client", "content", "daemon.process_setup", "daemon.sockets", "documents", "metrics", "options"),
            *("strategy.tree", "traces", "wire"),
        }
    ),  # it listens as the daemon does, and takes options of verbs as parameters
    "notify": frozenset(
        {"clock", "documents", "runner.process.process_group", "store.deliveries", "targets", "wire.messages"}
    ),
    "metrics": frozenset({"wire.messages"}),  # what the gateway serves and `opsq metrics` prints
    "client": frozenset(
        {
            *("clock", "content", "paths", "queue.policy", "serialisation", "settings", "strategy", "traces", "wire"),
        }
    ),  # queue.policy: what an embedded queue is opened with
    "outbox": frozenset({"client", "clock", "content", "traces", "wire.messages"}),
    "traces": frozenset({"content.manifest", "ids"}),
    "client.embedded": frozenset(
        {"clock", "content", "queue", "replica.owner_record", "settings", "store", "strategy", "wire"}
    ),
    "testing": frozenset({"client", "clock", "queue.faults", "queue.policy", "wire.messages"}),
    "daemon": frozenset(
        {
            "client.core.address",
            "client.sync.connection",
            "clock",
            "content",
            "paths",
            "queue",
            "replica",
            "settings",
            "store",
            "wire",
        }
    ),  # it opens the database and commits; start and stop are clients of a running one
    "replica": frozenset({"clock", "content", "store"}),
    "queue": frozenset({"clock", "content.manifest", "store", "strategy", "wire.messages"}),
    "store": frozenset({"clock"}),
    "wire": frozenset(),
    "content": frozenset(),
    "strategy": frozenset(),
    "serialisation": frozenset(),  # a public module of its own, as strategy is: users name its classes
    "settings": frozenset({"paths", "setting_kinds", "targets"}),
    "targets": frozenset({"errors"}),
    "paths": frozenset(),
    "setting_kinds": frozenset(),
    "clock": frozenset(),
    "filesystem": frozenset({"units"}),
    "fsync": frozenset(),
    "ids": frozenset({"errors"}),
    "units": frozenset({"errors"}),
    "errors": frozenset({"wording"}),
    "findings": frozenset({"wording"}),
    "users": frozenset(),
    "wording": frozenset({"units"}),
    "peer_credentials": frozenset(),
    "printable": frozenset(),
    "private_file": frozenset({"errors", "users"}),
    "process_one": frozenset(),
    "quick_imports": frozenset(),
    "titles": frozenset({"errors", "printable"}),
    "tls_files": frozenset({"errors"}),
    "version": frozenset(),
}

# Package → its rooms and files in layers, lowest first: each may import what stands in lower layers, and itself.
# "*" is everything that is not named; the `__init__` of the package stands on top.
ROOMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "queue": (
        ("policy", "timers", "peer", "unique_keys", "faults", "chunk_counters"),
        ("lane_set",),
        ("live_submission",),
        ("batch",),
        ("dispatch",),
        ("state",),
        ("batch_writer", "folding", "clock_steps", "full_disk", "rule_changes"),
        ("rule_replacement",),
        ("chunks",),
        ("submissions",),
        ("schedules", "moves"),
        ("views", "commits"),
        ("rooms",),
        ("engine",),
    ),
    "client": (("core",), ("shards",), ("aio", "embedded"), ("sync",)),
    "outbox": (("ddl", "waiting_rows"), ("rows",), ("hand_over", "postgresql", "sqlite"), ("relay",)),
    "runner": (("polled_consumer", "process"), ("feeding",), ("*",)),
    "spark": (
        ("spark_errors",),
        ("formats", "history_export", "session"),
        ("report", "source"),
        ("fleet", "notebook"),
    ),
    "cli": (("*",), ("run", "spark"), ("verbs",)),
}
TOP = 1 << 30


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


def room_of(module: str) -> tuple[str, int] | None:
    """The room of a module and the layer that it is in; None when its package has no rooms, or does not name it."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    if not rest:
        return "", TOP
    layers = ROOMS.get(package, ())
    for name in (room, "*"):
        for number, layer in enumerate(layers):
            if name in layer:
                return name, number
    return None


def is_upward(importer: str, imported: str) -> bool:
    """Whether an arrow inside one package leads to a room that is not below."""
    if importer.partition(".")[0] != imported.partition(".")[0]:
        return False
    here, there = room_of(importer), room_of(imported)
    return here is not None and there is not None and here[0] != there[0] and here[1] <= there[1]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Find circles of modules, the shortest through each module that is in no circle found before.

    Each begins and ends with the same module.
    """
    found: list[list[str]] = []
    for start in sorted(arrows):
        if not any(start in circle for circle in found):
            way = _way_back(arrows, start)
            if way is not None:
                found.append(way)
    return found


def _way_back(arrows: dict[str, set[str]], start: str) -> list[str] | None:
    """The shortest way from a module back to itself; None when there is none."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for module in sorted(arrows.get(way[-1], set())):
            if module == start:
                return [*way, start]
            if module not in seen:
                seen.add(module)
                ways.append([*way, module])
    return None


def full_name(module: str) -> str:
    """Write a module as Python does: "store.database" → "opsq.store.database"."""
    return f"{PACKAGE}.{module}" if module else PACKAGE


def check(root: Path) -> list[str]:
    """Return one line per arrow that runs back, circle of files, or module without a rule; empty when all is well."""
    problems = []
    arrows: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        importer = module_name(path, root)
        unit = rule_for(importer)
        if unit is None:
            problems.append(f"{path}: {full_name(importer)} has no rule; add it to ARROWS in tools/check_arrows.py")
            continue
        if importer.partition(".")[0] in ROOMS and room_of(importer) is None:
            problems.append(f"{path}: {full_name(importer)} has no room; add it to ROOMS in tools/check_arrows.py")
        for line, imported in sorted(set(imports_of(path, root))):
            if not is_allowed(importer, imported, ARROWS[unit]) or is_upward(importer, imported):
                problems.append(f"{path}:{line}: {full_name(importer)} must not import {full_name(imported)}")
            elif imported != importer:
                arrows.setdefault(importer, set()).add(imported)
    for circle in circles(arrows):
        path = root.joinpath(*circle[0].split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        problems.append(f"{file}: files import each other in a circle: {' → '.join(map(full_name, circle))}")
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
