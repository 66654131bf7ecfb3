"""A round: what one line of `opsq run` does, as submissions with its key, by which the same line finds them again.

A round is one submission, or several in a row where a stream was cut into segments. This file talks to the daemon only;
it must not run programs or write results.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType

from opsq.client.sync.producer import Producer
from opsq.content.content_writer import ContentWriter
from opsq.content.manifest import Content, InputRange
from opsq.errors import Conflict, NotFound
from opsq.units import format_instant
from opsq.wire.messages import (
    Cancel,
    Capacity,
    Changed,
    CheckCapacity,
    DeadChunk,
    History,
    HistoryFilter,
    HistoryRows,
    SubmissionState,
)

KEY, PART, PARTS = "run", "run_part", "run_parts"
"""Metadata: the key of the round, which of its segments this is, and (only with the last) how many there are."""
LINE, WRITTEN = "run_line", "run_written"
"""With an idempotency key: digests of what the line is; and (only of the receipt) of where the results were written."""
ROUND_KEYS = frozenset({KEY, PART, PARTS, LINE, WRITTEN})

_VERSION = 1
_KEY_BYTES = 15
_DIGEST_BYTES = 6


def key_of(what: Sequence[object]) -> bytes:
    """The key of a round: equal for an equal `what`."""
    return blake2b(msgspec.msgpack.encode([_VERSION, *what]), digest_size=_KEY_BYTES).digest()


def new_key() -> bytes:
    """The key of a round that nothing will ever find again."""
    return os.urandom(_KEY_BYTES)


class Once(NamedTuple):
    """What makes a round one that is done once.

    Args:
        key: the idempotency key.
        keep_s: how long after its end the round is not done again; None: for as long as it is known.
        line: what else must be the same under this key, by name.
    """

    key: str
    keep_s: float | None
    line: Mapping[str, object]

    @property
    def digests(self) -> str:
        """Of each part of the line."""
        return "-".join(map(_digest, self.line.values()))

    def differences(self, digests: str) -> list[str]:
        """The parts in which the line with these digests differs."""
        own = zip(self.line, self.digests.split("-"), strict=True)
        return [name for (name, digest), other in zip(own, digests.split("-"), strict=True) if digest != other]


class Round:
    """One round on the daemon.

    Args:
        producer: reconnects by itself, for ever.
        key: of this round.
        options: those of `Producer.submit` that hold for every segment.
        is_resumable: it can be found again, so its content must survive what happens to this machine.
        once: with an idempotency key.
    """

    def __init__(
        self,
        producer: Producer,
        key: bytes,
        options: Mapping[str, Any],
        *,
        is_resumable: bool,
        once: Once | None = None,
    ) -> None:
        self._producer = producer
        self._options = dict(options)
        self._name = "r" + key.hex()  # a letter first, so that it is never an integer
        self._is_resumable = is_resumable
        self._once = once
        self._lock = threading.Lock()
        self._submissions: list[int] = []
        self._in_doubt: bytes | None = None
        """The request key of a segment that was handed over and not acknowledged: it may still arrive."""
        self.receipt: SubmissionState | None = None
        """A submission without chunks, made once all results were written."""
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

    def find_receipt(self) -> None:
        """Find out whether an earlier run with the same idempotency key has written all results.

        Raises:
            Conflict: the key belongs to something else.

        Effects: what ended too long ago is removed.
        """
        if (once := self._once) is None:
            return
        found = self._all()
        receipt = next((each for each in found if WRITTEN in each.metadata), None)
        if receipt is not None and once.keep_s is not None and _age_s(receipt) > once.keep_s:
            self.forget_all()
            return
        for each in found:
            if differences := once.differences(str(each.metadata[LINE])):
                raise Conflict(
                    f"The idempotency key {once.key} belongs to another run (submission {each.submission_id}); "
                    f"this one differs in: {', '.join(differences)}. Nothing was run.",
                    hint="Use another key, or discard that run with --fresh.",
                )
        if receipt is not None:
            self.receipt = receipt
            self._submissions = [each.submission_id for each in found if each is not receipt]

    @property
    def finished_at(self) -> str | UnsetType:
        """When an earlier run had written all results; unset if none has."""
        at = None if self.receipt is None else self.receipt.finished_at
        return msgspec.UNSET if at is None else format_instant(at)

    def is_written_to(self, output: str | None) -> bool:
        """Whether an earlier run has written the results to this file, and it is there."""
        receipt = self.receipt
        return (
            receipt is not None
            and output is not None
            and receipt.metadata[WRITTEN] == _place_of(output)
            and os.path.isfile(output)
        )

    def end(self, output: str | None) -> None:
        """All results are written: remove the round, or with an idempotency key leave a receipt."""
        if self._once is None:
            self.forget_all()
        elif self.receipt is None:
            metadata: dict[str, int | str] = {KEY: self._name, LINE: self._once.digests}
            metadata |= {PARTS: len(self.submissions), WRITTEN: _place_of(output)}
            self._producer.submit([], metadata=metadata, title=self._options.get("title"))

    def find(self) -> list[SubmissionState]:
        """What exists of it from an earlier run, in order.

        Returns:
            All its segments; nothing if it is not whole, or has ended in a way from which it cannot go on.

        Raises:
            NotFound: there is a receipt, but the results are not there any more.

        Effects: what cannot be continued is removed; dead chunks are requeued.
        """
        found = [each for each in self._all() if WRITTEN not in each.metadata]
        if self.receipt is not None and len(found) != self.receipt.metadata[PARTS]:
            raise NotFound(
                "This run is done, but its results are not there any more, so they cannot be written again.",
                hint="Run it with --fresh to do the work again.",
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
        """Remove what there is of it, and what may still arrive."""
        if self._in_doubt is not None:
            self._producer.withdraw(self._in_doubt)
            self._in_doubt = None
        for state in self._all():
            self.forget(state.submission_id)

    def _all(self) -> list[SubmissionState]:
        """What there is of it, in order, with the receipt."""
        return list(self._producer.submissions(metadata={KEY: self._name}))[::-1]

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

    def check_room(self, producer: Producer, content: Content) -> None:
        """Raise `NoRoom` if the queue has none for a segment now."""
        producer.link.call(CheckCapacity(producer.link.next_id(), content.chunks_count), Capacity)

    def submit(self, producer: Producer, content: Content, part: int, *, is_last: bool) -> int:
        """Hand over a segment, once there is room for it; returns its id."""
        metadata = {
            **self._options.get("metadata", {}),
            KEY: self._name,
            PART: part,
            **({PARTS: part + 1} if is_last else {}),
        }
        options = {**self._options, "metadata": metadata}
        if (once := self._once) is not None:
            metadata[LINE] = once.digests
            if part == 0:
                options |= {"idempotency_key": once.key, "idempotency_keep_s": once.keep_s}
        new = self._producer.describe(bytes.fromhex(content.folder), content, **options)
        self._in_doubt = new.request_key
        made = producer.submit_many([new], wait_for_room=True)[0]
        self._in_doubt = None
        submission_id = made.id
        if not made.is_new and once is not None and made.state().metadata.get(KEY) != self._name:
            raise Conflict(
                f"The idempotency key {once.key} belongs to submission {submission_id}, which no opsq run has made. "
                "Nothing was run.",
                hint=f"Use another key, or `opsq rm {submission_id}` once it has ended.",
            )
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

    def dead(self, submission_id: int, count: int) -> list[tuple[DeadChunk, InputRange | None]]:
        """The first dead chunks of a segment, with their inputs."""
        return self._producer.submission(submission_id).first_dead(count)


def _digest(what: object) -> str:
    return key_of([what])[:_DIGEST_BYTES].hex()


def _place_of(output: str | None) -> str:
    """Where results are written, as the receipt has it."""
    return "stdout" if output is None else _digest(os.fsencode(os.path.realpath(output)))


def _age_s(state: SubmissionState) -> float:
    """How long ago it ended."""
    return time.time() - (state.finished_at or 0) / 1000
