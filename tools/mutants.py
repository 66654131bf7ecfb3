"""Changes one line of the source at a time and names the changes that no test notices.

    python tools/mutants.py map [PYTEST ARGS]         learn which test reaches which line (coverage.py; half an hour)
    python tools/mutants.py run [--seed 1] [--count 100] [--promises] [ROOM ...]

A room is a folder of src/opsq, or a file in it. `--promises` takes the lines that a promise of durability, ownership or
access rests on (see PROMISES) in place of lines drawn at random. Each change is tried against the tests that reach its
line, the nearest first, in a copy of the source of its own; docs/testing.md says how to judge those that survive.

`map` gives each test its own name as a context, and so does what it starts: an environment variable that pytest keeps
is the context of every other process. Everything is kept in .mutants, one line of results.jsonl for each change. A
source that has changed since then needs no new map: lines are found where they were.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import Match, SequenceMatcher
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any, ClassVar, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "opsq"
WORK = ROOT / ".mutants"
COVERAGE = WORK / "coverage"
MAPPED = WORK / "mapped"
"""The source as it was when `map` ran."""
ROOMS = ["queue", "store", "content", "daemon", "client", "runner"]

PROMISES = re.compile(
    r"fsync|fdatasync|\bsync\w*\(|_flush\(|flock|lockf|[lL]ock\b|owner|token|compare_digest|uid|mode\b|chmod|0o\d"
    r"|os\.replace|os\.link|\braise\b|\bexcept\b|rollback|commit\(|COMMIT|settle|cancel\("
)
"""Lines with one of these words are what a promise rests on."""

FOLDERS = ["tests/unit", "tests/integration", "tests/acceptance", "tests/faults", "tests/compat"]
"""Of tests, the quickest first."""
PARTS = [(0, 8), (8, 60), (60, 600)]
"""Tests of a stage that try a change, part by part; those that reach fewest lines are nearest and come first."""
TEST_TIMEOUT_S = 60
TIMEOUT_S = 600
"""Of the tests of a stage. A change that makes them take longer has been noticed, unless the machine is busy."""

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Change(NamedTuple):
    """One change of one file."""

    file: str
    """Relative to src/opsq."""
    line: int
    last_line: int
    start: int
    """In bytes of the file; likewise `end`."""
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the changed source; it has as many lines as before."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def told(self, source: bytes) -> str:
        """Say what is changed, on one line."""
        old = " ".join(source[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}  {old[:90]}  ->  {self.new[:60]}"


# --- changes ----------------------------------------------------------------------------------------------------------


def changes_of(path: Path) -> Iterator[Change]:
    """Yield every change of a file: a statement left out, a condition turned round, a number one off."""
    source = path.read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    name = str(path.relative_to(SOURCE))

    def at(node: ast.AST, new: str) -> Change:
        start = begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return Change(name, node.lineno, node.end_lineno, start, end, new)  # type: ignore[attr-defined]

    def text(node: ast.AST) -> str:
        return f"({ast.get_source_segment(source.decode(), node)})"

    for node in _walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
                yield at(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield at(node, "pass")
            case ast.Continue():
                yield at(node, "pass")
            case ast.Return(value=ast.Constant(value=bool())) as found:
                yield at(found.value, str(not found.value.value))  # type: ignore[union-attr, arg-type]
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield at(test, f"(not {text(test)})")
            case ast.With(items=[ast.withitem(context_expr=context, optional_vars=None)]):
                yield at(context, "__import__('contextlib').nullcontext()")
            case ast.ExceptHandler(type=ast.expr() as caught):
                yield at(caught, "()")
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield at(node, f"{text(left)} {COMPARED[type(operator)]} {text(right)}")
            case ast.BoolOp(op=operator, values=values):
                word = " or " if isinstance(operator, ast.And) else " and "
                yield at(node, "(" + word.join(map(text, values)) + ")")
            case ast.BinOp(left=left, op=operator, right=right) if (
                type(operator) in COMPUTED and text(right) != "(None)"
            ):
                yield at(node, f"({text(left)} {COMPUTED[type(operator)]} {text(right)})")
            case ast.Call(func=ast.Name(id=word) as called) if word in SWAPPED:
                yield at(called, SWAPPED[word])
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                yield at(node, str(number + 1))


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that nothing happens in: annotations, texts, code for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.arg | ast.JoinedStr):
            continue
        yield node
        match node:
            case ast.AnnAssign(value=value):
                yield from () if value is None else _walk(ast.Expression(value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _walk(ast.Module([*node.args.defaults, *node.body], []))  # type: ignore[list-item]
            case _:
                yield from _walk(node)


def chosen(rooms: list[str], seed: int, count: int, *, are_promises: bool) -> list[Change]:
    """Draw `count` changes of these rooms; each line at most once."""
    found: dict[tuple[str, int], list[Change]] = defaultdict(list)
    for room in rooms:
        path = SOURCE / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            lines = file.read_text(encoding="utf-8").splitlines()
            for change in changes_of(file):
                text = " ".join(lines[change.line - 1 : change.last_line])
                if are_promises == bool(PROMISES.search(text)):
                    found[change.file, change.line].append(change)
    draw = random.Random(seed)
    places = draw.sample(sorted(found), min(count, len(found)))
    return [draw.choice(found[place]) for place in places]


# --- which tests ------------------------------------------------------------------------------------------------------


class Reached:
    """Which tests reach which line, as `map` has found."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self._known = _tests()

        self._data = CoverageData(str(COVERAGE))
        self._data.read()
        self._moved: dict[str, list[Match]] = {}
        self._lines_of: dict[str, int] = defaultdict(int)
        for file in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(file).values():
                for context in contexts:
                    self._lines_of[context] += 1

    def tests(self, change: Change) -> list[list[str]]:
        """Return the tests that reach a change, some lists for each stage, the nearest first."""
        by_line = self._data.contexts_by_lineno(str(SOURCE / change.file))
        lines = {self._line_then(change.file, line) for line in range(change.line, change.last_line + 1)}
        contexts = {context for line in lines for context in by_line.get(line, [])}
        named = {_test_of(context): self._lines_of[context] for context in contexts if context}
        nearest = sorted(self._known & named.keys(), key=named.__getitem__)
        stages = [[test for test in nearest if test.startswith(f"{folder}/")] for folder in FOLDERS]
        return [stage[first:end] for stage in stages for first, end in PARTS if stage[first:]]

    def _line_then(self, file: str, line: int) -> int:
        """Return where a line was when `map` ran; for one that was not there, the nearest above it that was."""
        if not (MAPPED / file).exists():
            return line
        if file not in self._moved:
            then, now = ((folder / file).read_text(encoding="utf-8").splitlines() for folder in (MAPPED, SOURCE))
            self._moved[file] = SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
        block = max((block for block in self._moved[file] if block.b < line), key=lambda block: block.b, default=None)
        return line if block is None else block.a + min(line - block.b, max(block.size, 1))


def _tests() -> set[str]:
    """Return all tests: the map may know some that have another name now, and pytest refuses to run those."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


def _test_of(context: str) -> str:
    """Return the test of a context: `PYTEST_CURRENT_TEST` of another process, or what `pytest_runtest_setup` set."""
    return re.sub(r" \((setup|call|teardown)\)$", "", context.rsplit("|", maxsplit=1)[-1])


def pytest_runtest_setup(item: Any) -> None:
    """Name the context of what this process runs from now on; this file is a plugin of pytest while it maps."""
    import coverage

    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)


def make_map(arguments: list[str]) -> int:
    """Run the tests with coverage.py and keep which reaches what."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    shutil.copytree(SOURCE, MAPPED, ignore=shutil.ignore_patterns("__pycache__"))
    settings = WORK / "settings.ini"
    settings.write_text(
        f"[run]\nsource = {SOURCE}\ndata_file = {COVERAGE}\nparallel = true\npatch = _exit\n"
        "context = ${PYTEST_CURRENT_TEST-}\ndisable_warnings = no-data-collected\n",
        encoding="utf-8",
    )
    paths = os.pathsep.join(filter(None, [f"{ROOT}/tools", os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants", "-n", "auto", *(arguments or FOLDERS)]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    subprocess.run(
        [sys.executable, "-m", "coverage", "combine", "--quiet", f"--rcfile={settings}"], cwd=ROOT, check=True
    )
    return status


# --- trying -----------------------------------------------------------------------------------------------------------


class Bench:
    """A copy of the source to try changes in, with a Python of its own: some tests give programs no PYTHONPATH."""

    passes: ClassVar[dict[str, bool]] = {}
    """Whether a test that has failed passes without the change; if not, it notices nothing."""

    def __init__(self, index: int) -> None:
        folder = WORK / f"bench{index}"
        shutil.rmtree(folder, ignore_errors=True)
        self._source = folder / "src"
        shutil.copytree(ROOT / "src", self._source, ignore=shutil.ignore_patterns("__pycache__"))
        # By its hash: a change need be neither longer nor a second younger than the one before it.
        compile_dir(self._source, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        venv.create(folder, symlinks=True)
        self._python = folder / "bin" / "python"
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "opsq.pth").write_text(f"{self._source}\n{sysconfig.get_path('purelib')}\n")
        copied = Path(shutil.copy(Path(sys.executable).with_name("opsq"), folder / "bin"))
        copied.write_text(copied.read_text().replace(sys.executable, str(self._python), 1))
        self._temporary = folder / "t"

    def verdict(self, change: Change, stages: Iterable[list[str]]) -> tuple[str, str]:
        """Try a change: `caught` by a stage, `survived` all, `timed out` or `unreached`; and which test caught it."""
        stages = list(stages)
        if not stages:
            return "unreached", ""
        for stage in stages:
            while tests := [test for test in stage if self.passes.get(test, True)]:
                word, failed = self._try(change, tests)
                if word == "passed":
                    break
                if failed and failed not in self.passes:
                    self.passes[failed] = self._run([failed])[0] == "passed"
                if self.passes.get(failed, True):
                    return (word if word == "timed out" else f"caught by {tests[0].split('/')[1]}"), failed
        return "survived", ""

    def _try(self, change: Change, tests: list[str]) -> tuple[str, str]:
        target = self._source / "opsq" / change.file
        whole = target.read_bytes()
        target.write_bytes(change.apply(whole))
        try:
            return self._run(tests)
        finally:
            target.write_bytes(whole)

    def _run(self, tests: list[str]) -> tuple[str, str]:
        """Run tests until one fails: `passed`, `failed` or `timed out`, and which failed."""
        unneeded = [f"-pno:{plugin}" for plugin in ("cacheprovider", "schemathesis", "xdist", "xdist.looponfail")]
        settings = [*unneeded, f"--timeout={TEST_TIMEOUT_S}", f"--basetemp={self._temporary}"]
        command = [str(self._python), "-m", "pytest", "-x", "-q", *settings]
        environment = dict(os.environ)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling takes longer than most tests
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            streams: Any = {"stdout": output, "stderr": subprocess.DEVNULL, "start_new_session": True}
            process = subprocess.Popen([*command, *tests], cwd=ROOT, env=environment, **streams)
            try:
                status = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return "timed out", ""
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with whatever a test left behind
                process.wait()
            output.seek(0)
            names = "|".join(map(re.escape, sorted(tests, key=len, reverse=True)))
            failed = re.search(rf"^(?:FAILED|ERROR) ({names})", output.read(), re.MULTILINE)
        return ("failed" if status else "passed"), (failed[1] if failed else "")


def run(rooms: list[str], seed: int, count: int, jobs: int, *, are_promises: bool) -> int:
    """Try changes; print each that survives, then how many there were. Returns how many survived."""
    changes = chosen(rooms, seed, count, are_promises=are_promises)
    told = {change: change.told((SOURCE / change.file).read_bytes()) for change in changes}
    reached = Reached()
    benches: SimpleQueue[Bench] = SimpleQueue()
    for index in range(jobs):
        benches.put(Bench(index))

    def tried(change: Change) -> tuple[Change, str, str]:
        bench = benches.get()
        try:
            return change, *bench.verdict(change, reached.tests(change))
        finally:
            benches.put(bench)

    counts: dict[str, int] = defaultdict(int)
    with ThreadPoolExecutor(jobs) as pool, (WORK / "results.jsonl").open("a", encoding="utf-8") as results:
        for change, word, test in pool.map(tried, changes):
            counts[word] += 1
            found = {"seed": seed, "promises": are_promises, "verdict": word, "test": test, "change": told[change]}
            results.write(json.dumps(found) + "\n")
            results.flush()
            if not word.startswith("caught"):
                print(f"{word}: {told[change]}", flush=True)
    for test in sorted(test for test, does_pass in Bench.passes.items() if not does_pass):
        print(f"fails without a change: {test}")
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return counts["survived"] + counts["unreached"]


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("map", help="learn which test reaches which line").add_argument("rest", nargs="*")
    runs = verbs.add_parser("run", help="try changes")
    runs.add_argument("rooms", nargs="*", default=ROOMS)
    runs.add_argument("--seed", type=int, default=1)
    runs.add_argument("--count", type=int, default=100)
    runs.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    runs.add_argument("--promises", action="store_true")
    options, rest = parser.parse_known_args()
    if options.verb == "map":
        return make_map([*options.rest, *rest])
    if not COVERAGE.exists():
        parser.error("No map of the tests yet: run `python tools/mutants.py map` first.")
    return int(run(options.rooms, options.seed, options.count, options.jobs, are_promises=options.promises) > 0)


if __name__ == "__main__":
    sys.exit(main())
