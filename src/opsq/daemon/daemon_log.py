"""The daemon's log: a rotating file, and stderr in the foreground, written by a thread of their own.

A blocked reader of stderr or a slow disk must never delay a reply or the exit of the process: records wait in a bounded
queue, excess records are counted and dropped, and stderr gets only what can be written without blocking.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import queue
import select
import threading
import time
from io import TextIOWrapper
from typing import Any

from opsq.printable import printable
from opsq.settings import Settings
from opsq.units import counted
from opsq.users import open_file

_QUEUE_RECORDS = 10_000
_STOP_S = 1.0


class DaemonLog:
    """The running log; created once per process.

    Args:
        has_stderr: also write to stderr.

    Effects: a log that may not be opened, because somebody else made it, is moved aside; if there can be none, the
    daemon runs without one, and says so on stderr if it has that.
    """

    def __init__(self, settings: Settings, *, has_stderr: bool) -> None:
        logging.raiseExceptions = False  # a log that cannot be written must not stop the daemon
        formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self._outputs: list[logging.Handler] = []
        failure: OSError | None = None
        try:
            self._outputs.append(_open_log(settings))
        except OSError as error:
            failure = error
        if has_stderr:
            self._outputs.append(_Stderr())
        for output in self._outputs:
            output.setFormatter(formatter)
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(_QUEUE_RECORDS)
        self._handler = _Handler(self._records)
        self._handler.setFormatter(_Printable())
        self._listener = _Listener(self._records, *self._outputs)
        self._listener.start()
        root = logging.getLogger("opsq")
        root.setLevel(settings.log_level.upper())
        root.propagate = False
        root.addHandler(self._handler)
        if failure is not None:
            root.warning("the log %s cannot be written: %s", settings.log_path, failure.strerror)

    def stop(self) -> None:
        """Write queued records, for at most a second, and close the file."""
        logging.getLogger("opsq").removeHandler(self._handler)
        stopper = threading.Thread(target=self._listener.stop, daemon=True)
        stopper.start()
        stopper.join(_STOP_S)
        if not stopper.is_alive():
            for output in self._outputs:
                with contextlib.suppress(OSError):  # there may be no room for the last lines
                    output.close()


class _Printable(logging.Formatter):
    """Escapes what does not print, from any source: a record is one line, and those of its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # of logging
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return printable(super().formatException(ei), keep="\n")


def _open_log(settings: Settings) -> _LogFile:
    def opened() -> _LogFile:
        return _LogFile(
            settings.log_path,
            maxBytes=settings.log_bytes,
            backupCount=settings.log_count,
            encoding="utf-8",
            errors="backslashreplace",
        )

    try:
        return opened()
    except PermissionError:
        os.replace(settings.log_path, f"{settings.log_path}.unreadable")
        return opened()


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log that belongs to the owner of its folder, whatever user runs the daemon."""

    def _open(self) -> TextIOWrapper:
        descriptor = open_file(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return open(descriptor, self.mode, encoding=self.encoding, errors=self.errors)  # type: ignore[return-value]


class _Stderr(logging.Handler):
    """Writes to stderr without blocking: a blocked write would hold locks that the interpreter needs at exit."""

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._poll.register(2, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        text = (self.format(record) + "\n").encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            for start in range(0, len(text), select.PIPE_BUF):
                if not self._poll.poll(0):  # writable means that PIPE_BUF bytes fit
                    return
                os.write(2, text[start : start + select.PIPE_BUF])


class _Listener(logging.handlers.QueueListener):
    """Stops when all queued records are written, even if the queue is full."""

    def __init__(self, records: queue.Queue[logging.LogRecord | None], *outputs: logging.Handler) -> None:
        super().__init__(records, *outputs)
        self._records = records

    def enqueue_sentinel(self) -> None:
        self._records.put(None)


class _Handler(logging.handlers.QueueHandler):
    """Puts records into the queue, or counts those that do not fit."""

    def __init__(self, records: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__(records)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                text = f"the log lacks {counted(self._dropped, 'record')}, because it could not be written fast enough"
                self.queue.put_nowait(logging.LogRecord("opsq", logging.WARNING, "", 0, text, None, None))
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1
