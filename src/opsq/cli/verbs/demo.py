"""The verb demo: the main job end to end, on input that every machine has, with a daemon of its own that leaves nothing behind.

It does what a user would do, in the same ways; it must not take a short cut that a user has not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from opsq.cli.caller import Caller
from opsq.cli.options.submission_template import Template
from opsq.cli.output.json_shapes import DemoDocument
from opsq.cli.upload import RoomWait, hand_over
from opsq.cli.verbs.explain import show_explained
from opsq.cli.verbs.results import ResultStream, write_output
from opsq.cli.verbs.wait import failure_of, wait_for
from opsq.content.splitter import Splitting
from opsq.daemon import lifecycle
from opsq.errors import Bug, WorkFailed
from opsq.ids import SubmissionId
from opsq.settings import load
from opsq.wire.messages import Explain, Explained, Show, Shown

STRATEGY = "OldestFirst"
CHUNK_BYTES = 32 << 10
_END_S = 20.0
_LOOK_S = 0.2
_READ_BYTES = 1 << 20


class Direct(NamedTuple):
    """What is counted without opsq."""

    lines_count: int
    size_bytes: int
    digest: str


def demo(
    caller: Caller,
    consumers: Annotated[
        int, typer.Option("--consumers", min=1, max=64, metavar="N", help="How many consumers work at the same time.")
    ] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder and what is in it, to look at.")] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Show the same with PySpark: DataFrames, and executors as consumers.")
    ] = False,
) -> None:
    """Show it all at work: submit Python's own source files, have consumers turn them into capitals, collect and check the results.

    It takes less than a minute, with a daemon of its own in a temporary folder that is removed at the end.
    """
    if spark:
        from opsq.cli.spark.demo import demo_spark

        demo_spark(caller, tasks=consumers, is_kept=keep)
        return
    say = Speech(caller)
    paths = sources()
    with private_folder(say, is_kept=keep) as folder, private_daemon(caller, say, folder) as private:
        began = time.monotonic()
        rules = Template().rules(os.urandom(16))
        splitting = Splitting("bytes", CHUNK_BYTES)
        content, created = hand_over(
            private, rules, Template(), paths, splitting, is_in_place=False, room=RoomWait.of(None)
        )
        submission_id = SubmissionId(created.submission_id)
        say.step(
            f"Submitted {len(paths)} source files of Python, {content.total_bytes / 1e6:.1f} MB, in {content.chunks_count} chunks."
        )
        command = _program()
        say.step(f"At work: {consumers} × opsq consume --until-empty -s {STRATEGY} -- {' '.join(command)}")
        _work(private, folder, command, consumers, submission_id)
        states = wait_for(private, [submission_id], _END_S)
        if failure := failure_of(states):
            raise failure
        worked_s = time.monotonic() - began
        output = folder / "results.txt"
        with private.connect() as daemon:
            write_output(ResultStream(daemon, submission_id, is_following=False, is_skipping=False), str(output))
            explained = daemon.call(Explain(daemon.next_id(), STRATEGY), Explained)
        elapsed_s = time.monotonic() - began
        say.step(f"All results are here, in input order: {output.stat().st_size / 1e6:.1f} MB.")
        wanted, found = direct_count(map(Path, paths), is_upper=True), direct_count([output], is_upper=False)
        if wanted != found:
            raise WorkFailed(f"The results are wrong: {found} instead of {wanted}.", hint="Please report this.")
        say.step(f"A direct count without opsq agrees: {wanted.lines_count} lines, SHA-256 {wanted.digest[:8]}….")
        rate = content.chunks_count / worked_s
        say.step(
            f"{rate:.0f} chunks/s, {content.total_bytes / worked_s / 1e6:.1f} MB/s, a program started for each chunk."
        )
        say.step("This is how the chunks were chosen, as `opsq explain` tells it:")
        if not caller.is_quiet:
            show_explained(caller, explained)
    caller.document(
        DemoDocument(
            len(paths), content.total_bytes, wanted.lines_count, content.chunks_count, elapsed_s, rate, is_right=True
        )
    )
    say.step(
        f"Done in {time.monotonic() - say.began:.1f} s."
        + ("" if keep else " The daemon has stopped; nothing is left behind.")
    )


class Speech:
    """One line a step, with the time since the beginning."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.began = time.monotonic()

    def step(self, text: str) -> None:
        """Tell what was done."""
        if self._caller.is_quiet or self._caller.is_json:
            return
        mark = f"{time.monotonic() - self.began:5.1f} s  "
        if self._caller.is_rich:
            from rich.text import Text

            self._caller.console.print(Text(mark, style="dim") + Text(text))
        else:
            self._caller.lines([mark + text])
            sys.stdout.flush()


def sources() -> list[str]:
    """The input: the source files of Python's own library, as text sorts them."""
    root = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "dist-packages", "__pycache__"}
    found = [path for path in root.rglob("*.py") if not outside & set(path.relative_to(root).parts) and path.is_file()]
    return sorted(str(path) for path in found if os.access(path, os.R_OK))


def _program() -> list[str]:
    """A program that turns letters into capitals: tr, or where it is missing this Python."""
    if shutil.which("tr"):
        return ["tr", "a-z", "A-Z"]
    return [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]


def direct_count(paths: Iterator[Path] | Sequence[Path], *, is_upper: bool) -> Direct:
    """Count files one after the other; `is_upper`: as if their letters were capitals."""
    lines_count = size_bytes = 0
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                lines_count += piece.count(b"\n")
                size_bytes += len(piece)
                digest.update(piece.upper() if is_upper else piece)
    return Direct(lines_count, size_bytes, digest.hexdigest())


@contextlib.contextmanager
def private_folder(say: Speech, *, is_kept: bool) -> Iterator[Path]:
    """A folder of our own, removed at the end unless it is to be kept."""
    short = "/tmp" if os.path.isdir("/tmp") else None  # noqa: S108  # the path of a socket must be short; mkdtemp makes it safe
    folder = Path(tempfile.mkdtemp(prefix="opsq-demo-", dir=short))
    # A termination unwinds as an interrupt does: nothing is left behind.
    terminated: list[int] = []

    def terminate(number: int, _: object) -> None:
        terminated.append(number)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield folder
        if terminated:  # where nothing can be raised, as while an object is freed, Python goes on
            sys.exit(128 + terminated[0])
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_kept:
            say.step(f"Everything is left in {folder}.")
        else:
            shutil.rmtree(folder)


@contextlib.contextmanager
def private_daemon(caller: Caller, say: Speech, folder: Path) -> Iterator[Caller]:
    """A daemon of our own; gives what reaches it."""
    private = Caller({"quiet": caller.is_quiet, "json": caller.is_json}, frozenset())
    private.settings = load({"state_dir": str(folder / "state")}, {"XDG_CONFIG_HOME": str(folder)})
    result = lifecycle.start(private.settings)
    try:
        say.step(f"A private daemon is ready, process {result.pid}, in {folder}.")
        yield private
    finally:
        lifecycle.stop(private.settings, 0.0)


def _work(caller: Caller, folder: Path, command: list[str], count: int, submission_id: SubmissionId) -> None:
    """Run consumers in processes of their own until each has found that there is nothing more to do; shows progress meanwhile."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    environ |= {"OPSQ_STATE_DIR": str(folder / "state"), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C"}
    words = [sys.executable, "-m", "opsq", "consume", "--until-empty", "-s", STRATEGY, "--", *command]
    with (folder / "consumers.log").open("w+b") as log:
        children: list[subprocess.Popen[bytes]] = []
        try:
            # One by one: those that are started are ended too, whenever the signal comes.
            children.extend(
                subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                for _ in range(count)
            )
            _watch(caller, children, submission_id)
        finally:
            for child in children:
                child.terminate()
            statuses = [child.wait() for child in children]
        if any(statuses):
            log.seek(0)
            raise Bug(f"A consumer ended with {max(statuses)}: {log.read().decode(errors='replace').strip()}")


def _watch(caller: Caller, children: list[subprocess.Popen[bytes]], submission_id: SubmissionId) -> None:
    """Draw what has been done until all `children` have ended."""
    with caller.connect() as daemon, caller.progress() as progress:
        bar = progress.add_task("working", total=None) if progress else None
        while working := [child for child in children if child.poll() is None]:
            state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
            if progress:
                progress.update(bar, total=state.chunks_count, completed=state.completed_count)
            with contextlib.suppress(subprocess.TimeoutExpired):
                working[0].wait(_LOOK_S)
