"""A worker process: calls one function for each chunk that it is given, until its pipe closes.

This file runs in a process of its own and holds no connection to the daemon; it reads chunks from the store by itself.
What it and the consumer say to each other is in worker_frames.py.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import msgspec

from opsq import traces
from opsq.client.core.chunk_view import ChunkView
from opsq.client.core.content_access import Contents
from opsq.client.core.outcome import is_awaited, outcome_of, reason_of
from opsq.client.core.worker_frames import (
    AttachmentIs,
    AttachmentWanted,
    Broken,
    Cancel,
    Enough,
    FromWorker,
    Interrupted,
    Lot,
    Ready,
    Work,
    decode_to_worker,
    encode,
)
from opsq.errors import OpsqError, UsageError
from opsq.ids import parse_handle
from opsq.wire.messages import NewSubmission, SubmissionContent, Welcome

if TYPE_CHECKING:
    from types import FrameType

    from opsq.client.core.follow_ups import Follower

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They come to the whole group from a terminal or a service manager, and the consumer decides what they mean."""
_ORPHAN_S = 2.0
"""How long a function has to clean up once its consumer is gone."""


def main(connection: Connection, program: bytes, welcome: bytes) -> None:
    """Be a worker; `program` is the function as `program_of` packed it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the terminal belongs to the consumer
    os.close(nothing)
    worker = Worker(connection, msgspec.msgpack.decode(welcome, type=Welcome))
    try:
        f = ForkingPickler.loads(program)
    except Exception as error:  # noqa: BLE001  # whatever importing the user's module raises
        worker.send(Broken(reason_of(error)))
        return
    if is_awaited(f):
        from opsq.client.core.awaiting_worker import serve

        serve(worker, f)
    else:
        worker.serve(f)


class Worker:
    """Serves one consumer over a pipe. Its main thread calls the function, another one reads, and hears the pipe close.

    Args:
        connection: the pipe.
        welcome: names the store.
    """

    def __init__(self, connection: Connection, welcome: Welcome) -> None:
        self._connection = connection
        self._welcome = welcome
        self._contents = Contents(welcome)
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._attachments: queue.SimpleQueue[AttachmentIs | None] = queue.SimpleQueue()
        self.is_orphan = False
        self.is_busy = False
        self.on_frame: Callable[[Lot | Cancel | Enough | None], object] = self._enter
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._described: SubmissionContent | None = None
        self._attachment: tuple[int, bytes | None] | None = None
        for number in GROUP_SIGNALS:
            signal.signal(number, self._heard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        threading.Thread(target=self._read, name="opsq-worker", daemon=True).start()

    def serve(self, f: Any) -> None:
        """Work until the pipe closes. What `f.aside()` gives after a call, if `f` has it, goes with the outcome."""
        self.send(Ready())
        aside: Callable[[], bytes | None] | None = getattr(f, "aside", None)
        while (work := self._inbox.get()) is not None:
            chunk = self.view(work)
            try:
                self.is_busy = True
                outcome = outcome_of(f, chunk)
                self.is_busy = False
            except BaseException as error:
                self.is_busy = False
                if self.is_orphan:
                    return
                self.send(Interrupted.of(error))
                if isinstance(error, KeyboardInterrupt | OpsqError):
                    return  # raised again by the consumer
                raise
            if aside is not None:
                outcome.aside = aside()
            self.send(outcome)

    def send(self, frame: FromWorker) -> None:
        """Send a frame, from any thread; nobody hears it if the pipe has closed, which then ends this process."""
        with self._sending, suppress(OSError):
            self._connection.send_bytes(encode(frame))

    def view(self, work: Work) -> ChunkView:
        """A chunk, as the function sees it; chunks are asked for in the order in which they came."""
        described = self._described = work.described or self._described
        if described is None:
            raise RuntimeError("The first chunk came without a description of its submission.")
        handle = parse_handle(work.handle)
        return ChunkView(
            described,
            handle,
            lambda: self._contents.reader(described),
            lambda: self._read_attachment(described, work.lane),
            lambda then: self._prepare(described, then),
        )

    def _prepare(self, described: SubmissionContent, then: Iterable[Follower]) -> list[NewSubmission]:
        from opsq.client.core.follow_ups import prepared

        return prepared(then, self._contents, self._welcome, traces.carried_by(described.content))

    def _read_attachment(self, described: SubmissionContent, lane: int) -> bytes | None:
        if not described.has_attachment:
            return None
        with self._asking:
            if self._attachment is None or self._attachment[0] != described.submission_id:
                self.send(AttachmentWanted(described.submission_id, lane))
                answer = self._attachments.get()
                if answer is None:
                    raise KeyboardInterrupt
                if answer.is_late:
                    raise UsageError("An attachment was asked for after the end of its chunk.")
                self._attachment = (described.submission_id, answer.attachment)
            return self._attachment[1]

    def _read(self) -> None:
        """Read what comes; when the pipe closes, end this process, whatever the function does."""
        try:
            while True:
                frame = decode_to_worker(self._connection.recv_bytes())
                if isinstance(frame, AttachmentIs):
                    self._attachments.put(frame)
                else:
                    self.on_frame(frame)
        except (EOFError, OSError):
            self.is_orphan = True
            self.on_frame(None)
            self._attachments.put(None)
        if self.is_busy:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(_ORPHAN_S)
        os._exit(1)

    def _enter(self, frame: Lot | Cancel | Enough | None) -> None:
        """Put into the inbox what a plain function is called for; None: nothing more."""
        for work in frame.chunks if isinstance(frame, Lot) else (None,):
            self._inbox.put(work)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.is_orphan and self.is_busy:
            raise KeyboardInterrupt
