"""Watches from the driver, while a fleet works, what the daemon counts, and whether it is there at all.

This file must not know Spark, nor what tasks say: one that is lost with its executor says nothing, and the daemon has
counted what it did. Progress is shown where a person sees it, on a terminal or in a notebook.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from opsq.client.sync.queue import Queue
from opsq.documents.progress_meter import ProgressMeter
from opsq.errors import NotFound, OpsqError

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
        self._bar = _Bar() if self._shows_progress else None
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

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            try:
                self.latest = self._look()
            except OpsqError:
                continue  # that it is away is said by the dial; the tasks meet anything else too
            if self._bar is not None and self.latest is not None:
                self._bar.show(self.latest, time.monotonic())


class _Bar:
    """Chunks done of all, failures, rate and time left, in a terminal or a notebook."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._meter = ProgressMeter()
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("chunks {task.description}"))
        self._progress = Progress(*columns, console=_console(), auto_refresh=False)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, counts: Counts, now: float) -> None:
        """Draw it anew."""
        meter = self._meter
        meter.note(counts, now)
        dead = f"{counts.dead_count} dead" if counts.dead_count else ""
        delayed = f"{counts.delayed_count} to be retried" if counts.delayed_count else ""
        text = ", ".join(part for part in (meter.rate_text(), meter.left_text(), delayed, dead) if part)
        self._progress.update(self._task, description=text, total=meter.total_count, completed=meter.done_count)
        self._progress.refresh()

    def end(self, counts: Counts | None) -> None:
        """Draw it a last time."""
        if counts is not None:
            self.show(counts, time.monotonic())
        self._progress.stop()


def is_seen() -> bool:
    """Whether a person sees what this process draws: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or _console().is_jupyter


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
