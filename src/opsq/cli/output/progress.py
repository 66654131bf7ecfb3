"""Shows running programs to a person or a script: progress, failures, output of programs, a JSON line per chunk.

It must not wait for readers of its output (the output thread does), nor know how chunks are run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.output.folding import folded
from opsq.cli.output.output_thread import OutputThread
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.readable import clean
from opsq.documents.submission_text import pairs_text
from opsq.documents.submissions import ChunkEndShape, input_fields
from opsq.runner.progress import ChunkEnd, PoolProgress, ProgressViewer
from opsq.units import counted, signal_name

if TYPE_CHECKING:
    from rich.progress import Progress

DRAW_S = 1.0
LINE_S = 30.0
HURRY_S = 0.5
_SENTENCE_CHARACTERS = 300
_LINE_BYTES = 8192
"""Longer lines of programs are split."""
_PARTIAL_LIMIT_COUNT = 10_000
"""How many chunks may have an unfinished line."""
_BAR_CHARACTERS = 20
_ECHO_CHARACTERS = 4
_NAMED_COUNT = 2
"""How many submissions are named."""


class WorkViewer(ProgressViewer):
    """Shows the work of one consumer to its caller. Enter it around the work.

    Args:
        caller: the person or script behind the command line.
        is_reporting: off a terminal, write a line about the state now and then.
        is_drawing: on a terminal, show a bar.
    """

    tells_stderr = True

    def __init__(self, caller: Caller, *, is_reporting: bool = False, is_drawing: bool = True) -> None:
        self._caller = caller
        self._is_quiet = caller.is_quiet
        self._output = OutputThread()
        self._is_drawing = is_drawing and sys.stderr.isatty() and not caller.is_quiet and not caller.is_json
        self._is_reporting = is_reporting and not (self._is_drawing or caller.is_quiet)
        self.look_s = DRAW_S if self._is_drawing else LINE_S if self._is_reporting else None
        self._meter = ProgressMeter()
        self._close_s: float | None = None
        self._partial: dict[str, bytes] = {}
        self._progress: Progress | None = None
        self._bar: Any = None

    def __enter__(self) -> WorkViewer:
        if self._is_drawing:
            self._progress = new_progress()
            self._bar = self._progress.add_task("", total=None, rate="", left="")
            self._output.call(self._progress.start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._output.call(self._progress.stop)
        self._output.close(self._close_s)

    def suspended(self) -> None:
        """Take the bar away, and show the cursor."""
        if self._progress is not None:
            is_done = threading.Event()
            self._output.call(self._progress.stop)
            self._output.call(is_done.set)
            is_done.wait(HURRY_S)

    def resumed(self) -> None:
        """Draw the bar again."""
        if self._progress is not None:
            self._output.call(self._progress.start)

    def hurry(self) -> None:
        """The consumer must end soon: wait for readers of its output only briefly."""
        self._close_s = HURRY_S

    @property
    def is_congested(self) -> bool:
        """Whether the output is not being read."""
        return self._output.is_congested

    @property
    def stdout_error(self) -> OSError | None:
        """Why JSON lines could not be written, such as a closed pipe."""
        return self._output.stdout_error

    def say(self, text: str) -> None:
        """A sentence on stderr."""
        text = text if len(text) <= _SENTENCE_CHARACTERS else text[:_SENTENCE_CHARACTERS] + "…"
        # Output of a program may have control sequences, and a line end would make it two sentences.
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        line = f"{folded(f'opsq: {text}', sys.stderr)}\n".encode(errors="backslashreplace")
        if self._progress is None:
            self._output.err(line)
        else:
            self._output.call(lambda: self._print(line))

    def remark(self, text: str) -> None:
        """A sentence on stderr, off a terminal too; none with --quiet."""
        if not self._is_quiet:
            self.say(self._caller.reworded(text))

    def said(self, chunk_name: str, piece: bytes) -> None:
        """Whole lines on stderr, each with the chunk in front, so that those of several programs do not mix."""
        kept = self._partial.pop(chunk_name, b"")
        if not (kept or piece):
            return
        if not piece:
            lines, rest = ([kept] if kept else []), b""
        else:
            *lines, rest = (kept + piece).split(b"\n")
        while len(rest) > _LINE_BYTES:
            lines.append(rest[:_LINE_BYTES])
            rest = rest[_LINE_BYTES:]
        if rest:
            self._partial[chunk_name] = rest
            if len(self._partial) > _PARTIAL_LIMIT_COUNT:  # servers may say something after their chunk has ended
                self.said(next(iter(self._partial)), b"")
        if lines:
            texts = (clean(line.decode("utf-8", "backslashreplace")) for line in lines)
            content = "".join(f"{chunk_name}: {text}\n" for text in texts).encode()
            self._output.err_lines(content, None if self._progress is None else self._print)

    def ended(self, end: ChunkEnd) -> None:
        """A JSON line, if JSON was asked for."""
        if self._caller.is_json:
            signal = None if end.signal is None else signal_name(end.signal)
            shape = ChunkEndShape(
                str(end.submission_id),
                end.index,
                end.attempt,
                end.outcome,
                end.exit_status,
                signal,
                round(end.run_s, 6),
                end.reason,
                **input_fields(end.input),
            )
            self._output.out(msgspec.json.encode(shape) + b"\n")

    def look(self, view: PoolProgress) -> None:
        """Draw the state, or write a line about it."""
        meter = self._meter
        meter.note(view.counts, time.monotonic())
        if self._progress is not None:
            text, rate, left = described(view), meter.rate_text(), meter.left_text()
            done_count, total_count = (
                (meter.done_count, meter.total_count) if view.counts else (view.completed_count, None)
            )
            progress, bar = self._progress, self._bar
            self._output.call(
                lambda: progress.update(
                    bar, description=text, completed=done_count, total=total_count, rate=rate, left=left
                )
            )
        elif self._is_reporting:
            done = (
                f"{meter.done_count} of {counted(meter.total_count, 'chunk')} done"
                if view.counts
                else f"{view.completed_count} done here"
            )
            parts = [done, meter.rate_text(), meter.left_text(), described(view)]
            self._output.err(f"opsq: {', '.join(part for part in parts if part)}\n".encode(errors="backslashreplace"))

    def _print(self, content: bytes) -> None:
        if self._progress is not None:
            print_above(self._progress, content.decode()[:-1])


def described(view: PoolProgress) -> str:
    """What is running, done and failed, in a few words."""
    words = [f"{view.running_count} running"]
    if view.operations_count:
        words.append(counted(view.operations_count, "operation"))
    if view.failed_count:
        words.append(f"{view.failed_count} failed")
    named = [_named(*one) for one in view.submissions[:_NAMED_COUNT]]
    if len(view.submissions) > _NAMED_COUNT:
        named.append(f"{len(view.submissions) - _NAMED_COUNT} more")
    return ", ".join(words) + (f"; on {' and '.join(named)}" if named else "")


def _named(submission_id: int, metadata: Mapping[str, int | str]) -> str:
    return f"{submission_id} ({pairs_text(dict(metadata))})" if metadata else str(submission_id)


def print_above(progress: Progress, text: str) -> None:
    """Print lines above the bars."""
    progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def new_progress() -> Progress:
    """Bars on stderr with counts, the fields `rate` and `left` of each task, and the time since its start."""
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column, Table
    from rich.text import Text

    from opsq.cli.output.console import SafeConsole

    class Narrowed:
        """Bars that leave room in their line for the ^C that a terminal shows: a wrapped line is not erased whole."""

        def __init__(self, bars: Table) -> None:
            self._bars = bars

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield from console.render(self._bars, options.update(width=max(options.max_width - _ECHO_CHARACTERS, 1)))

    class Bars(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield Narrowed(self.make_tasks_table(self.tasks))

    class Cut(TextColumn):
        """Text that gives way to the other columns where the terminal is narrow."""

        def render(self, task: Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    columns = (
        Cut("", table_column=Column()),
        BarColumn(_BAR_CHARACTERS, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[left]}"),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
    )
    return Bars(
        *columns, console=SafeConsole(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
