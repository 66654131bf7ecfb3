"""Hands the inputs of a round over, segment by segment, in a thread of its own: files in place, streams as they come.

It must not wait for results, except to keep a bounded distance ahead of them.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable, Iterator

from opsq.cli.run.rounds import Round
from opsq.client.sync.producer import Producer
from opsq.content.content_writer import ContentWriter
from opsq.content.input_file import STDIN, InputFile, is_compressed, open_input
from opsq.content.manifest import Content
from opsq.content.segments import cut_segments
from opsq.content.splitter import Splitting
from opsq.errors import NoRoom

_AHEAD_LEGS = 4
"""A round that cannot be resumed has at most this many segments without delivered
results, if their chunks suffice for all programs."""
_AHEAD_CHUNKS_PER_JOB = 4
_PASSING = frozenset({"backlog", "queue_for_room"})
"""Why there may be no room now, and will be by itself: chunks are completed."""


class Stopped(Exception):
    """The round was stopped."""


class Feeder:
    """Submits the segments of a round.

    Args:
        producer: hands them over; closed, it ends a wait for room.
        on_leg: called with each, once it is submitted.
        warn: gets a remark on a file that changed while it was read, or "", and that there is no room.
        jobs: how many programs are to be kept busy.
        is_bounded: wait when enough is under way; `delivered` ends that of a segment.
    """

    def __init__(
        self,
        round_: Round,
        producer: Producer,
        paths: list[str],
        splitting: Splitting,
        on_leg: Callable[[int], None],
        warn: Callable[[str], object],
        *,
        jobs: int,
        is_bounded: bool,
    ) -> None:
        self._round = round_
        self._producer = producer
        self._paths = paths
        self._splitting = splitting
        self._on_leg = on_leg
        self._warn = warn
        self._ahead_chunks = _AHEAD_CHUNKS_PER_JOB * jobs
        self._is_bounded = is_bounded
        self._under_way: dict[int, int] = {}
        """Chunks by submission, of those whose results are not delivered."""
        self._change = threading.Condition()
        self._has_waited = False
        self._is_stopping = False
        self._wake_read, self._wake_write = os.pipe()
        self.chunks_count = 0
        """Chunks that were submitted."""

    def feed(self) -> None:
        """Submit everything.

        Raises:
            Stopped: `stop` was called.
            OpsqError: an input cannot be read, or what it holds was refused.
        """
        part = 0
        held: Content | None = None
        # Which segment is the last must be known only where the round may be looked for later.
        for content in self._contents():
            if self._is_bounded:
                self._submit(content, part, is_last=False)
                part += 1
                continue
            if held is not None:
                self._submit(held, part, is_last=False)
                part += 1
            held = content
        if held is not None:
            self._submit(held, part, is_last=True)

    def delivered(self, submission_id: int) -> None:
        """The results of a segment are delivered."""
        with self._change:
            self._under_way.pop(submission_id, None)
            self._change.notify_all()

    def stop(self) -> None:
        """Have `feed` end soon."""
        with self._change:
            self._is_stopping = True
            self._change.notify_all()
        os.write(self._wake_write, b"\0")

    def _contents(self) -> Iterator[Content]:
        paths = list(self._paths)
        while paths:
            files: list[str] = []
            while paths and self._is_in_place(paths[0]):
                files.append(paths.pop(0))
            if files:
                yield self._in_place(files)
            elif paths:
                yield from self._streamed(paths.pop(0))

    def _is_in_place(self, path: str) -> bool:
        is_converted = self._splitting.strips_crlf or (self._splitting.decompresses and is_compressed(path))
        return path != STDIN and is_plain(path) and not is_converted

    def _in_place(self, paths: list[str]) -> Content:
        with self._round.open_writer() as writer:
            for path in paths:
                writer.add_in_place(path, self._splitting)
                self._check()
            return writer.finish()

    def _streamed(self, path: str) -> Iterator[Content]:
        splitting = self._splitting
        with open_input(path, is_decompressing=splitting.decompresses, strips_crlf=splitting.strips_crlf) as file:
            yield from cut_segments(
                _Interruptible(file, self._wake_read),
                path,
                self._splitting,
                self._next_writer,
                chunk_limit_bytes=self._round.chunk_limit_bytes,
            )
            self._warn(file.check_unchanged())

    def _next_writer(self) -> ContentWriter:
        self._check()
        return self._round.open_writer()

    def _submit(self, content: Content, part: int, *, is_last: bool) -> None:
        with self._change:
            self._change.wait_for(self._has_room)
        self._check()
        try:
            self._round.check_room(self._producer, content)
        except NoRoom as error:
            if error.cause not in _PASSING:
                raise
            if not self._has_waited:
                self._has_waited = True
                self._warn(f"{error.message} Waiting for it.")
        submission_id = self._round.submit(self._producer, content, part, is_last=is_last)
        self.chunks_count += content.chunks_count
        with self._change:
            self._under_way[submission_id] = content.chunks_count
        self._on_leg(submission_id)

    def _has_room(self) -> bool:
        if self._is_stopping or not self._is_bounded:
            return True
        return len(self._under_way) < _AHEAD_LEGS or sum(self._under_way.values()) < self._ahead_chunks

    def _check(self) -> None:
        if self._is_stopping:
            raise Stopped


class _Interruptible:
    """A stream whose reads end when there is something to read from another descriptor."""

    def __init__(self, file: InputFile, wake_fd: int) -> None:
        self._file = file
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)
        self._poll.register(wake_fd, select.POLLIN)
        self._wake_fd = wake_fd
        self.seekable, self.seek = file.seekable, file.seek

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read what is available, and wait until something is."""
        if any(descriptor == self._wake_fd for descriptor, _ in self._poll.poll()):
            raise Stopped
        return self._file.readinto(buffer)


def is_plain(path: str) -> bool:
    """Whether a path names a file that can be read in place; one without access fails when it is opened."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
