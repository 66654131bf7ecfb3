"""A round: what one line of `opsq run` does, as submissions with its key, by which the same line finds them again.

A round is one submission, or several in a row where a stream was cut into segments. This file talks to the daemon only;
it must not run programs or write results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from opsq.client.sync.producer import Producer
from opsq.content.content_writer import ContentWriter
from opsq.content.manifest import Content, InputRange
from opsq.errors import Conflict, NotFound, OpsqError
from opsq.wire.messages import Cancel, Changed, DeadChunk, History, HistoryFilter, HistoryRows, SubmissionState

KEY, PART, PARTS = "run", "run_part", "run_parts"
"""Metadata: the key of the round, which of its segments this is, and (only with the last) how many there are."""

_VERSION = 1
_KEY_BYTES = 15


def key_of(what: Sequence[object]) -> bytes:
    """The key of a round: equal for an equal `what`."""
    return blake2b(msgspec.msgpack.encode([_VERSION, *what]), digest_size=_KEY_BYTES).digest()


def new_key() -> bytes:
    """The key of a round that nothing will ever find again."""
    return os.urandom(_KEY_BYTES)


class Round:
    """One round on the daemon.

    Args:
        producer: reconnects by itself, for ever.
        key: of this round.
        options: those of `Producer.submit` that hold for every segment.
        is_resumable: it can be found again, so its content must survive what happens to this machine.
    """

    def __init__(self, producer: Producer, key: bytes, options: Mapping[str, Any], *, is_resumable: bool) -> None:
        self._producer = producer
        self._options = dict(options)
        self._name = "r" + key.hex()  # a letter first, so that it is never an integer
        self._is_resumable = is_resumable
        self._lock = threading.Lock()
        self._submissions: list[int] = []
        self.is_continued = False
        """An earlier run began it."""

    @property
    def strategy(self) -> str:
        """What serves this round alone, from its beginning on."""
        return f"SelectOnly({KEY}={self._name}, OldestFirst)"

    @property
    def pair(self) -> tuple[str, str]:
        """The metadata of its submissions, and of no others."""
        return KEY, self._name

    @property
    def consumer_stem(self) -> str:
        """How the names of its own consumers begin, whichever line they belong to."""
        return f"opsq-{self._name[:13]}-"

    @property
    def chunk_limit_bytes(self) -> int:
        """The size of the largest chunk that the daemon allows."""
        return self._producer.link.welcome.chunk_limit_bytes

    @property
    def submissions(self) -> list[int]:
        """What there is of it, in order."""
        with self._lock:
            return list(self._submissions)

    def find(self) -> list[SubmissionState]:
        """What exists of it from an earlier run, in order.

        Returns:
            All its segments; nothing if it is not whole, or has ended in a way from which it cannot go on.

        Effects: what cannot be continued is removed; dead chunks are requeued.
        """
        found = sorted(
            self._producer.submissions(metadata={KEY: self._name}), key=lambda segment: segment.submission_id
        )
        if not found:
            return []
        is_whole = [segment.metadata.get(PART) for segment in found] == list(range(len(found))) and found[
            -1
        ].metadata.get(PARTS) == len(found)
        if not is_whole or any(segment.state in {"cancelled", "expired"} for segment in found):
            for segment in found:
                self.forget(segment.submission_id)
            return []
        for segment in found:
            if segment.dead_count:
                self._producer.submission(segment.submission_id).requeue()
        with self._lock:
            self._submissions = [segment.submission_id for segment in found]
        self.is_continued = True
        return found

    def forget_all(self) -> None:
        """Remove what there is of it."""
        for state in list(self._producer.submissions(metadata={KEY: self._name})):
            self.forget(state.submission_id)

    def forget(self, submission_id: int) -> None:
        """Remove a segment with its results, whatever its state is."""
        link = self._producer.link
        submission = self._producer.submission(submission_id)
        try:
            submission.remove()
        except NotFound:  # another client did
            return
        except Conflict:
            link.call(Cancel(link.next_id(), submission_id, "The round of opsq run is over."), Changed)
            submission.remove()
        with self._lock:
            if submission_id in self._submissions:
                self._submissions.remove(submission_id)

    def open_writer(self) -> ContentWriter:
        """A writer for the content of the next segment."""
        welcome = self._producer.link.welcome
        return ContentWriter(
            self._producer.contents.store,
            os.urandom(16).hex(),
            chunk_limit_bytes=welcome.chunk_limit_bytes,
            is_durable=welcome.is_durable and self._is_resumable,
        )

    def submit(self, content: Content, part: int, *, is_last: bool) -> int:
        """Hand over a segment; returns its id."""
        metadata = {
            **self._options.get("metadata", {}),
            KEY: self._name,
            PART: part,
            **({PARTS: part + 1} if is_last else {}),
        }
        new = self._producer.describe(bytes.fromhex(content.folder), content, **{**self._options, "metadata": metadata})
        submission_id = self._producer.submit_many([new])[0].id
        with self._lock:
            self._submissions.append(submission_id)
        return submission_id

    def states(self) -> list[SubmissionState]:
        """The states of its segments, except removed ones."""
        found = []
        for submission_id in self.submissions:
            try:
                found.append(self._producer.submission(submission_id).state())
            except NotFound:
                continue
        return found

    def check_own(self, submission_id: int) -> None:
        """Check that all results of a segment so far are of the round's own program. Cost: its history, found by index.

        Raises:
            Conflict: another consumer, which took whatever there was, has completed chunks of it.
        """
        link = self._producer.link
        where = HistoryFilter(submission_id=submission_id, events=["completed"])
        after: int | None = None
        while True:
            page = link.call(History(link.next_id(), where, after, 10_000), HistoryRows)
            for event in page.rows:
                if not event.consumer.startswith(self.consumer_stem):
                    raise Conflict(
                        f"Chunks of this run, in submission {submission_id}, were completed by {event.consumer}, "
                        "which does not belong to it: their results may be those of another program.",
                        hint="--fresh starts over; with its own --state-dir a run shares chunks with no other "
                        "consumer.",
                    )
            if page.next_after is None:
                return
            after = page.next_after

    def has_dead(self, submission_id: int) -> bool:
        """Whether a segment has dead chunks."""
        return bool(self._producer.submission(submission_id).state().dead_count)

    def input_of(self, submission_id: int, index: int) -> InputRange | None:
        """The input of a chunk, if it can be told."""
        try:
            return self._producer.submission(submission_id).input(index)
        except OpsqError:
            return None

    def dead(self, submission_id: int, count: int) -> list[DeadChunk]:
        """The first dead chunks of a segment."""
        found: list[DeadChunk] = []
        for chunk in self._producer.submission(submission_id).dead():
            found.append(chunk)
            if len(found) == count:
                break
        return found
