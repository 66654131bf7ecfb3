"""One slot of a server: the chunks that it was asked and those that wait, as the stream that its stdin reads.

This file must not start or end processes, and never waits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from opsq.clock import MonoNs
from opsq.errors import OpsqError
from opsq.runner.feeding.server_protocol import AnswerReader, Question
from opsq.runner.process.child import Child, Said, Token
from opsq.runner.process.pipes import Feed, Output, Range

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_WRITE_BYTES = 1 << 16
_READ_BYTES = 1 << 18


class ServerChunk(Token):
    """A chunk that a server works on, or will; what `Programs.start` gives for it."""

    def __init__(self, slot: ServerSlot, chunk: Chunk, question: Question, said: Said | None) -> None:
        super().__init__()
        self.slot = slot
        self.submission_id = chunk.submission_id
        self.question = question
        self.said = said
        self.is_told = False
        """It was asked to end."""
        self.error: OpsqError | None = None
        """Why it could not be written."""


class ServerSlot:
    """The chunks of one server, and the state of its pipe.

    Args:
        is_answered: called with each chunk that has its answer, and the status.
        is_deaf: called when the server has closed its stdin.
    """

    is_long = True

    def __init__(self, is_answered: Callable[[ServerChunk, int], None], is_deaf: Callable[[ServerSlot], None]) -> None:
        self.server: Child | None = None
        self.waiting: deque[ServerChunk] = deque()
        """Not written yet."""
        self.asked: deque[ServerChunk] = deque()
        """Written or being written, and not answered."""
        self.is_ending = False
        """Nothing follows; the server is to end."""
        self.is_proven = False
        """The server has answered something since it was started."""
        self.pause_s = 0.0
        self.due_at: float | None = None
        """When something is to be done: the server to be started, or a deaf one to be killed."""
        self.free_at = MonoNs(0)
        """When the last answer came."""
        self._is_answered = is_answered
        self._is_deaf = is_deaf
        self._head = memoryview(b"")
        self._file: tuple[Feed, ServerChunk] | None = None

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return len(self.asked) + len(self.waiting)

    def said(self, piece: bytes) -> None:
        """What a server writes on stderr is taken to belong to the chunk that it works on."""
        fed = self.asked or self.waiting
        if fed and (said := fed[0].said) is not None:
            said(piece)

    # --- as `Asked` ---------------------------------------------------------------------------------------------------

    def first(self) -> Question | None:
        return self.asked[0].question if self.asked else None

    def answered(self, status: int) -> None:
        self.is_proven = True
        self._is_answered(self.asked.popleft(), status)

    # --- as `Source` --------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not (self._head or self._file or self.waiting)

    def send(self, pipe_fd: int) -> bool:
        try:
            while True:
                while self._head:
                    self._head = self._head[os.write(pipe_fd, self._head) :]
                if self._file is not None and not self._send_file(pipe_fd, *self._file):
                    return False
                if not self.waiting:
                    return self.is_ending
                self._take_next()
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self._is_deaf(self)
            return True

    def _send_file(self, pipe_fd: int, feed: Feed, fed: ServerChunk) -> bool:
        try:
            is_done = feed.send(pipe_fd)
        except OpsqError as error:
            fed.error = error
            raise
        if is_done and not feed.is_empty:
            raise BrokenPipeError
        if is_done:
            self._file = None
            if fed not in self.asked:  # it was answered before it was read to its end
                close_source(fed)
        return is_done

    def _take_next(self) -> None:
        """Take a file, or as many chunks in memory as make one write."""
        pieces: list[bytes] = []
        size_bytes = 0
        while self.waiting and size_bytes < _WRITE_BYTES:
            source = self.waiting[0].question.source
            if isinstance(source, Range):
                if not pieces:
                    fed = self.waiting.popleft()
                    self._file = (Feed(source), fed)
                    self.asked.append(fed)
                break
            pieces.append(source)
            size_bytes += len(source)
            self.asked.append(self.waiting.popleft())
        self._head = memoryview(b"".join(pieces))

    def keep_file(self) -> None:
        """See `Source.keep_file`; each chunk holds its file itself."""

    def close(self) -> None:
        """See `Source.close`; `take_back` does it."""

    # ------------------------------------------------------------------------------------------------------------------

    def finish(self, fed: ServerChunk) -> None:
        """Let go of a chunk that is not among ours any more."""
        if self._file is None or self._file[1] is not fed:
            close_source(fed)

    def take_back(self) -> list[ServerChunk]:
        """What was asked and not answered, in order: the server is gone."""
        asked = list(self.asked)
        self.asked.clear()
        self._head = memoryview(b"")
        if self._file is not None and self._file[1] not in asked:
            close_source(self._file[1])
        self._file = None
        return asked


class AnswerSink:
    """What takes a server's stdout: a `Sink` that keeps nothing itself."""

    def __init__(self, language: AnswerReader) -> None:
        self.length = 0
        self._language = language

    def take(self, pipe_fd: int) -> bool:
        try:
            piece = os.read(pipe_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.length += len(piece)
        self._language.hear(piece)
        return not piece

    def output(self) -> Output:
        return Output(b"")


def close_source(fed: ServerChunk) -> None:
    """Close the file of a chunk, if it is one."""
    source = fed.question.source
    if isinstance(source, Range):
        os.close(source.fd)
        fed.question.source = b""
