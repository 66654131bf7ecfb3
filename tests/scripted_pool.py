"""A daemon of a few lines for tests of the pool, and a viewer that keeps what it sees.

It must not decide what is right; each test says that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opsq.content.manifest import Content, encode
from opsq.errors import NameTaken
from opsq.runner import pool
from opsq.runner.pool import Outcome
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.progress import ChunkEnd, PoolProgress, ProgressViewer
from opsq.wire.messages import (
    Claim,
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    Counts,
    DaemonState,
    Dead,
    DeadChunk,
    DeadChunks,
    ErrorReply,
    Fail,
    Grant,
    Release,
    Reply,
    Request,
    Reserve,
    Reserved,
    Status,
    SubmissionContent,
)
from scripted import ScriptedWire

SUBMISSION = 7
COUNTS = Counts(None, 1, 2, 3, 4, 5, 6, 7)


class Wire(ScriptedWire):
    """A scripted connection that can be watched; usable as a context as the pool's own questions do."""

    def __init__(self, script: Callable[[Request], Sequence[Reply]]) -> None:
        self._news_r, self._news_w = os.pipe()
        super().__init__(script)

    def push(self, *replies: Reply) -> None:
        super().push(*replies)
        if replies:
            os.write(self._news_w, b"!")

    def cut(self) -> None:
        """Break, as the other side would see it."""
        self._is_cut = True
        os.write(self._news_w, b"!")

    def receive(self, timeout_s: float | None) -> list[Reply]:
        replies = super().receive(timeout_s)
        if replies:
            os.read(self._news_r, 4096)
        return replies

    def fileno(self) -> int:
        return self._news_r

    def close(self) -> None:
        super().close()
        if self._news_r >= 0:
            os.close(self._news_r)
            os.close(self._news_w)
            self._news_r = -1

    def next_id(self) -> int:
        return 1

    def call(self, request: Request, kind: type) -> Any:
        self.sent.append(request)
        (reply,) = self._script(request)
        return reply

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Witness(ProgressViewer):
    """Keeps what a person would be told."""

    tells_stderr = False

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.stderr: list[tuple[str, bytes]] = []
        self.ends: list[ChunkEnd] = []
        self.views: list[PoolProgress] = []

    def say(self, text: str) -> None:
        self.sentences.append(text)

    def said(self, chunk_name: str, piece: bytes) -> None:
        self.stderr.append((chunk_name, piece))

    def ended(self, end: ChunkEnd) -> None:
        self.ends.append(end)

    def look(self, view: PoolProgress) -> None:
        self.views.append(view)


class Daemon:
    """Grants chunks 0, 1, … of one submission, one block, and remembers what came; `answer` may be replaced."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.next = 0
        self.sent: list[Request] = []
        self.wire: Wire | None = None
        self.dead: list[DeadChunk] = []
        self.refusals: list[ErrorReply] = []
        self.names: set[str] = set()
        self.content = Content("f", len(chunks), 0, inline=chunks)
        self.witness = Witness()
        self.claims: list[Claim | None] = []
        self.taken_after: int | None = None
        self.has_attachment = False

    def connect(self, *, name: str, claim: Claim | None = None) -> Any:
        self.names.add(name)
        self.claims.append(claim)
        if self.taken_after is not None and len(self.claims) > self.taken_after:
            raise NameTaken
        self.wire = Wire(self.answer)
        return self.wire

    def answer(self, request: Request) -> list[Reply]:
        self.sent.append(request)
        if isinstance(request, Reserve | CompleteAndReserve):
            done: list[Reply] = [Completed(request.id)] if isinstance(request, CompleteAndReserve) else []
            if self.refusals:
                return [*done, replace_id(self.refusals.pop(0), request.id)]
            return [*done, self.grant(request.id, request.count)]
        if isinstance(request, Complete | Fail | Release):
            return [Completed(request.id)]
        if isinstance(request, Status):
            return [DaemonState(request.id, "0", 1, "running", 0.0, COUNTS, [], {}, [], 0, 0, 0.0, 0, 0, 0, 0, {})]
        if isinstance(request, Dead):
            return [DeadChunks(request.id, self.dead, None)]
        return []

    def grant(self, request_id: int, count: int) -> Reserved:
        first, self.next = self.next, min(self.next + count, len(self.chunks))
        mask = (1 << self.next) - (1 << first)
        content = encode(self.content)
        described = SubmissionContent(SUBMISSION, len(self.chunks), content, {}, self.has_attachment, os.geteuid())
        grants = [Grant(SUBMISSION, 0, mask, 0, 99)] if mask else []
        return Reserved(request_id, request_id, 600.0, grants, [described] if grants else [], not grants)

    def consume(self, *command: str, jobs: int = 1, **options: Any) -> Outcome:
        asked = ConsumeOptions(jobs=jobs, until="empty")._replace(**options)
        return pool.consume(self.connect, command, asked, viewer=self.witness)

    def completions(self) -> list[Completion]:
        return [
            one
            for request in self.sent
            if isinstance(request, Complete | CompleteAndReserve)
            for one in request.completions
        ]

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.sent if isinstance(request, kind)]


def replace_id(reply: ErrorReply, request_id: int) -> ErrorReply:
    return msgspec.structs.replace(reply, id=request_id)


def mask_of(parts: Sequence[Any]) -> int:
    """All chunks that some completions, failures or releases name."""
    mask = 0
    for part in parts:
        held = getattr(part, "held", part)
        assert not mask & held.mask, "named twice"
        mask |= held.mask
    return mask


def failures_of(daemon: Daemon) -> list[Any]:
    return [failure for request in daemon.of(Fail) for failure in request.failures]


def reserved_counts(daemon: Daemon) -> list[int]:
    """For how many chunks the daemon was asked, call by call."""
    return [request.count for request in daemon.sent if isinstance(request, Reserve | CompleteAndReserve)]
