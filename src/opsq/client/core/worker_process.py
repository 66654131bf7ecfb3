"""A worker process: calls one function for each chunk that it is given, until its pipe closes.

This file runs in a process of its own and holds no connection to the daemon; it reads chunks from the store by itself.
Its frames are all that it and the consumer say to each other; nothing of them is pickled.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import msgspec

from opsq import traces
from opsq.client.core.chunk_view import ChunkView
from opsq.client.core.content_access import Contents
from opsq.client.core.outcome import Outcome, outcome_of, reason_of
from opsq.errors import OpsqError
from opsq.ids import parse_handle
from opsq.wire.messages import NewSubmission, SubmissionContent, Welcome

if TYPE_CHECKING:
    from types import FrameType

    from opsq.client.core.follow_ups import Follower

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They come to the whole group from a terminal or a service manager, and the consumer decides what they mean."""
_ORPHAN_S = 2.0
"""How long a function has to clean up once its consumer is gone."""


class Work(msgspec.Struct, array_like=True):
    """A chunk. `described` is left out if it is that of the chunk before."""

    handle: str
    described: SubmissionContent | None


class Lot(msgspec.Struct, array_like=True, tag=True):
    """To a worker: chunks to work on, one after the other."""

    chunks: list[Work]


class AttachmentIs(msgspec.Struct, array_like=True, tag=True):
    """To a worker: the attachment that it asked for."""

    attachment: bytes | None


class Ready(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function is there."""


class Broken(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function cannot be loaded; its last word."""

    reason: str


class AttachmentWanted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the attachment of the submission of its chunk, please."""


class Interrupted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function raised what is no failure of the chunk; its last word.

    `kind` is the name of an exception, `code` that of an OpsqError, or what SystemExit carries.
    """

    kind: str
    code: int | str | None
    message: str = ""
    hint: str = ""


FromWorker = Ready | Broken | AttachmentWanted | Interrupted | Outcome

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(Lot | AttachmentIs).decode
decode_of_worker = msgspec.msgpack.Decoder(FromWorker).decode


def main(connection: Connection, program: bytes, welcome: bytes) -> None:
    """Be a worker; `program` is the function as `program_of` packed it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the terminal belongs to the consumer
    os.close(nothing)
    worker = Worker(connection, msgspec.msgpack.decode(welcome, type=Welcome))
    try:
        f = ForkingPickler.loads(program)
    except Exception as error:  # noqa: BLE001  # whatever importing the user's module raises
        connection.send_bytes(encode(Broken(reason_of(error))))
        return
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
        self._is_orphan = False
        self._is_busy = False
        self._described: SubmissionContent | None = None
        self._attachment: tuple[int, bytes | None] | None = None
        for number in GROUP_SIGNALS:
            signal.signal(number, self._heard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        threading.Thread(target=self._read, name="opsq-worker", daemon=True).start()

    def serve(self, f: Any) -> None:
        """Work until the pipe closes. What `f.aside()` gives after a call, if `f` has it, goes with the outcome."""
        self._connection.send_bytes(encode(Ready()))
        aside: Callable[[], bytes | None] | None = getattr(f, "aside", None)
        while (work := self._inbox.get()) is not None:
            chunk = self._view(work)
            try:
                self._is_busy = True
                outcome = outcome_of(f, chunk)
                self._is_busy = False
            except BaseException as error:
                self._is_busy = False
                if self._is_orphan:
                    return
                self._connection.send_bytes(encode(_interrupted(error)))
                if isinstance(error, KeyboardInterrupt | OpsqError):
                    return  # raised again by the consumer
                raise
            if aside is not None:
                outcome.aside = aside()
            self._connection.send_bytes(encode(outcome))

    def _view(self, work: Work) -> ChunkView:
        described = self._described = work.described or self._described
        if described is None:
            raise RuntimeError("The first chunk came without a description of its submission.")
        handle = parse_handle(work.handle)
        return ChunkView(
            described, handle, lambda: self._contents.reader(described), self._read_attachment, self._prepare
        )

    def _prepare(self, then: Iterable[Follower]) -> list[NewSubmission]:
        from opsq.client.core.follow_ups import prepared

        context = None if self._described is None else traces.carried_by(self._described.content)
        return prepared(then, self._contents, self._welcome, context)

    def _read_attachment(self) -> bytes | None:
        described = self._described
        if described is None or not described.has_attachment:
            return None
        if self._attachment is None or self._attachment[0] != described.submission_id:
            self._connection.send_bytes(encode(AttachmentWanted()))
            answer = self._attachments.get()
            if answer is None:
                raise KeyboardInterrupt
            self._attachment = (described.submission_id, answer.attachment)
        return self._attachment[1]

    def _read(self) -> None:
        """Read what comes; when the pipe closes, end this process, whatever the function does."""
        try:
            while True:
                frame = decode_to_worker(self._connection.recv_bytes())
                if isinstance(frame, Lot):
                    for work in frame.chunks:
                        self._inbox.put(work)
                else:
                    self._attachments.put(frame)
        except (EOFError, OSError):
            self._is_orphan = True
            self._inbox.put(None)
            self._attachments.put(None)
        if self._is_busy:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(_ORPHAN_S)
        os._exit(1)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._is_orphan and self._is_busy:
            raise KeyboardInterrupt


def _interrupted(error: BaseException) -> Interrupted:
    if isinstance(error, OpsqError):
        return Interrupted("OpsqError", error.code, error.message, error.hint)
    return Interrupted(type(error).__name__, None, str(error))
