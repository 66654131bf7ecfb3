"""A worker process that awaits a coroutine function for many chunks at once: a lane for each, as the consumer sees it.

This file gives no verdicts, and must not know how a process is watched and ended (child_process.py).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opsq.client.core.outcome import REASON_LIMIT, Outcome
from opsq.client.core.worker_frames import (
    AttachmentIs,
    AttachmentWanted,
    Cancel,
    Enough,
    FromWorker,
    Interrupted,
    Lot,
)
from opsq.client.sync.child_process import END_S, ChildProcess, attachment_for, cut_off, ended, exception_of

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_CANCEL_S = 5.0
"""How long a coroutine that is cancelled may take to end; one that does not give the event loop back never does."""


class _End(NamedTuple):
    """The end of the process.

    Attributes:
        exit_code: negative: the signal.
        excess: what it took too much of, as the reason of a failure; empty: nothing.
        held_count: chunks that it was working on.
        error: what the function has raised that is no failure of a chunk, or what kept us from hearing the process.
    """

    exit_code: int
    excess: str
    held_count: int
    error: BaseException | None


Inbox = queue.SimpleQueue[FromWorker | _End]


class AwaitingProcess(ChildProcess):
    """The process of some lanes; the other arguments are those of `ChildProcess`.

    Args:
        lanes_count: how many chunks it works on at once.
    """

    def __init__(self, *of_process: Any, lanes_count: int) -> None:
        super().__init__(*of_process)
        self.lanes = [Lane(self, number) for number in range(lanes_count)]
        self.max_runtime_s = self._limits.max_runtime_s
        self._open_count = lanes_count
        self._inboxes: dict[int, Inbox] = {}
        self._lock = threading.RLock()
        self._listener: threading.Thread | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether the chunks at hand are to be given back."""
        return self._is_given_up

    def prepare(self) -> None:
        """See `Slot.prepare`: starts a process if there is none."""
        with self._lock:
            if self._pipe is None and not self._is_given_up:
                self._excess = ""
                super().prepare()

    def _start(self) -> None:
        super()._start()
        listener = threading.Thread(target=self._listen, name="opsq-lanes", daemon=True)
        listener.start()
        self._listener = listener

    def begin(self, lane: int, chunk: Chunk) -> Inbox | None:
        """Hand a chunk over; returns where its frames arrive, None: its submission was removed, or time is up."""
        with self._lock:
            self.prepare()
            work = self._work_for(chunk, lane)
            if work is None or self._pipe is None:
                return None
            inbox = self._inboxes[lane] = queue.SimpleQueue()
            self._send(Lot([work]))
            return inbox

    def say(self, frame: AttachmentIs | Cancel) -> None:
        """Send a frame."""
        with self._lock:
            self._send(frame)

    def kill_at(self, lane: int, inbox: Inbox) -> None:
        """Kill the process, if it is still the one that works on what came to this inbox."""
        with self._lock:
            if self._inboxes.get(lane) is inbox:
                self._kill()

    def leave(self) -> None:
        """A lane needs it no more; the last one ends it."""
        with self._lock:
            self._open_count -= 1
            if self._open_count or self._listener is None:
                return
            self._send(Enough())
        self._listener.join(END_S)
        self._kill()
        self._listener.join()

    def _listen(self) -> None:
        """Pass on what comes; in the end its end, whatever has brought it."""
        error: BaseException | None = None
        try:
            error = self._pass_on()
        except Exception as raised:  # noqa: BLE001  # each lane raises it
            error = raised
            self._kill()
        with self._lock:
            if self._excess:
                self._kill()
            exit_code = self._end()
            inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put(_End(exit_code, self._excess, len(inboxes), error))

    def _pass_on(self) -> BaseException | None:
        """Pass on what comes until the end; returns what the function has raised that is no failure of a chunk."""
        while isinstance(frame := self._receive(), Outcome | AttachmentWanted):
            if isinstance(frame, Outcome):
                if frame.aside is not None:
                    self._program.on_aside(frame.aside)
                self._inboxes.pop(frame.lane).put(frame)  # not held any more
            elif frame.lane in self._inboxes:
                self._inboxes[frame.lane].put(frame)
            else:
                self.say(attachment_for(frame, None))
            self._excess = self._memory_excess()
            if self._excess:
                return None
        return exception_of(frame) if isinstance(frame, Interrupted) else None


class Lane:
    """One of the chunks that a process works on at once."""

    is_killable = True
    lot_count = 1

    def __init__(self, process: AwaitingProcess, number: int) -> None:
        self._process = process
        self._number = number
        self.prepare, self.give_up, self.kill, self.close = (
            process.prepare,
            process.give_up,
            process.kill,
            process.leave,
        )

    def work(self, chunks: Sequence[Chunk]) -> Iterator[Outcome | None]:
        """See `Slot.work`. A coroutine that takes too long is cancelled; a process that ends fails all that it held."""
        for chunk in chunks:
            inbox = self._process.begin(self._number, chunk)
            yield None if inbox is None else self._outcome_of(chunk, inbox)

    def _outcome_of(self, chunk: Chunk, inbox: Inbox) -> Outcome | None:
        process, limit_s, told = self._process, self._process.max_runtime_s, ""
        started_at = time.monotonic()
        try:
            frame = self._next(chunk, inbox, limit_s)
        except queue.Empty:
            told = f"The function ran for more than {limit_s:g} s, so it was cancelled."
            process.say(Cancel(self._number))
            try:
                frame = self._next(chunk, inbox, _CANCEL_S)
            except queue.Empty:
                told = f"The function ran for more than {limit_s:g} s and did not end, so its process was killed."
                process.kill_at(self._number, inbox)
                frame = self._next(chunk, inbox, None)
        if isinstance(frame, Outcome):
            if told and frame.result is None:
                frame.reason = f"{told}\n{frame.reason}"[:REASON_LIMIT]
            return frame
        if frame.error is not None:
            raise frame.error
        process.hold(started_at)
        if process.is_given_up:
            return None
        others = f" and {frame.held_count - 1} more" if frame.held_count > 1 else ""
        code = frame.exit_code
        reason = frame.excess or told or f"The worker process {ended(code)} while it worked on the chunk{others}."
        return cut_off(code, reason, started_at)

    def _next(self, chunk: Chunk, inbox: Inbox, timeout_s: float | None) -> Outcome | _End:
        """What has become of the chunk.

        Raises:
            queue.Empty: nothing within `timeout_s` seconds.
        """
        end_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            frame = inbox.get(timeout=None if end_at is None else max(end_at - time.monotonic(), 0.0))
            if isinstance(frame, AttachmentWanted):
                self._process.say(attachment_for(frame, chunk))
            elif isinstance(frame, Outcome | _End):
                return frame
