"""Watches from the driver, while a fleet works, what the daemon counts, and whether it is there at all.

This file must not know Spark, nor what tasks say: one that is lost with its executor says nothing, and the daemon has
counted what it did. Progress is shown where a person sees it, on a terminal or in a notebook.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from opsq.client.sync.queue import Queue
from opsq.documents.progress_meter import ProgressMeter
from opsq.errors import NotFound, OpsqError
from opsq.spark.source.result_fetch import find_source

if TYPE_CHECKING:
    from opsq.spark.source.daemon_address import Daemon
    from opsq.wire.messages import Counts

_LOOK_S = 0.5
_LAST_LOOK_S = 5.0
"""How long the daemon may be away (being restarted) when the last counts are taken."""


class FleetWatch:
    """While entered, a thread of it asks the daemon for counts.

    Args:
        daemon: is asked.
        submission_id: whose chunks are counted; None: all.
        shows_progress: draw a bar; a bar needs a terminal or a notebook.
    """

    def __init__(self, daemon: Daemon, submission_id: int | None, *, shows_progress: bool = False) -> None:
        self._dial = daemon.dial("spark-driver")
        self._submission_id = submission_id
        self._shows_progress = shows_progress
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="opsq-fleet-watch", daemon=True)
        self._queue: Queue | None = None
        self._bar: _Bar | None = None
        self.latest: Counts | None = None
        """What it has counted last, also while it is away; None: nothing yet, or the submission is gone."""
        self.before: Counts | None = None
        """What the daemon counted before the fleet."""
        self.after: Counts | None = None
        """And after it; None: it did not answer, or the fleet failed."""

    def __enter__(self) -> Self:
        self.before = self.latest = self._count(0.0)
        self._bar = _Bar(self._rows_count()) if self._shows_progress else None
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()
        try:
            if exc[0] is None:
                self.after = self._count(_LAST_LOOK_S)
        finally:
            if self._bar is not None:
                self._bar.end(self.after)
            if self._queue is not None:
                self._queue.close()

    def _count(self, patience_s: float) -> Counts | None:
        """What the daemon counts now; None if it does not answer for `patience_s` seconds."""
        end_at = time.monotonic() + patience_s
        while True:
            try:
                return self._look()
            except OpsqError:
                if time.monotonic() >= end_at:
                    return None
                time.sleep(0.1)

    def _look(self) -> Counts | None:
        """What the daemon counts now; None: the submission is gone.

        Raises:
            OpsqError: it does not answer.
        """
        if self._queue is None:
            self._queue = Queue(self._dial, reconnect_s=0.0)
        try:
            if self._submission_id is None:
                return self._queue.status().total
            return self._queue.submission(self._submission_id).state().counts
        except NotFound:
            return None
        except OpsqError:
            queue, self._queue = self._queue, None
            queue.close()
            raise

    def _rows_count(self) -> int | None:
        """The rows of the submission; None: it was not made from a DataFrame, or its store cannot be seen from here."""
        if self._queue is None or self._submission_id is None:
            return None
        with contextlib.suppress(OpsqError):
            chunk_format = find_source(self._queue, str(self._submission_id)).chunk_format
            return None if chunk_format is None else chunk_format.rows_count
        return None

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            try:
                self.latest = self._look()
            except OpsqError:
                continue  # that it is away is said by the dial; the tasks meet anything else too
            if self._bar is not None and self.latest is not None:
                self._bar.show(self.latest, time.monotonic())


class _Bar:
    """Chunks done of all, rows, rate, time left and failures, in a terminal or a notebook.

    Args:
        rows_count: of all chunks. The daemon counts chunks, so rows that are done are an estimate until the end.
    """

    def __init__(self, rows_count: int | None) -> None:
        self._meter = ProgressMeter()
        self._rows_count = rows_count
        self._drawing = _Cell() if _console().is_jupyter else _Line()

    def show(self, counts: Counts, now: float) -> None:
        """Draw it anew."""
        meter = self._meter
        meter.note(counts, now)
        dead = f"{counts.dead_count} dead" if counts.dead_count else ""
        delayed = f"{counts.delayed_count} to be retried" if counts.delayed_count else ""
        texts = (self._rows_text(), meter.rate_text(), meter.left_text(), delayed, dead)
        self._drawing.draw(meter.done_count, meter.total_count, ", ".join(["chunks", *filter(None, texts)]))

    def end(self, counts: Counts | None) -> None:
        """Draw it a last time."""
        if counts is not None:
            self.show(counts, time.monotonic())
        self._drawing.end()

    def _rows_text(self) -> str:
        done_count, total_count, rows_count = self._meter.done_count, self._meter.total_count, self._rows_count
        if rows_count is None or not total_count:
            return ""
        mark = "" if done_count in (0, total_count) else "≈ "
        return f"{mark}{rows_count * done_count // total_count:,} of {rows_count:,} rows"


class _Line:
    """A line of a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=_console(), auto_refresh=False)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def draw(self, done_count: int, total_count: int, text: str) -> None:
        self._progress.update(self._task, description=text, total=total_count, completed=done_count)
        self._progress.refresh()

    def end(self) -> None:
        self._progress.stop()


class _Cell:
    """An output of a notebook's cell, which needs no widgets; made by the thread that runs the cell."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def draw(self, done_count: int, total_count: int, text: str) -> None:
        line = f"{done_count}/{total_count} {text}"
        bar = f'<progress value="{done_count}" max="{total_count or 1}"></progress> {line}'
        self._handle.update({"text/plain": line, "text/html": bar}, raw=True)

    def end(self) -> None:
        """Leave it as it is."""


def is_seen() -> bool:
    """Whether a person sees what this process draws: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or _console().is_jupyter


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
