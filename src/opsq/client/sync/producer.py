"""A producer: hands over submissions, and looks at them.

This file owns the order content, then frame, and what becomes of content that no submission names; the daemon decides
the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from opsq import traces
from opsq.client.core import new_submission
from opsq.client.core.arguments import converted, count, pairs
from opsq.client.core.content_access import Contents
from opsq.client.core.unused_content import by_withdrawing, delete_unused
from opsq.client.sync.link import Link
from opsq.client.sync.submission import Submission
from opsq.errors import Conflict, OpsqError, Unreachable
from opsq.ids import parse_submission_id
from opsq.wire.messages import (
    Capacity,
    Find,
    Found,
    List,
    Listed,
    NewSubmission,
    SubmissionState,
    Submit,
    Submitted,
    Withdraw,
)

if TYPE_CHECKING:
    from opsq.client.core.new_submission import RoomWait, SubmitOptions
    from opsq.client.core.result_pages import OnClose
    from opsq.client.core.transport import Dial
    from opsq.client.sync.result_stream import ResultStream
    from opsq.serialisation import Serialisation


class Producer:
    """Hands over submissions. Safe for use by many threads.

    Args:
        open_wire: makes a greeted transport.
        reconnect_s: how long to try again when the connection breaks; None: for ever.
    """

    def __init__(self, open_wire: Dial, *, reconnect_s: float | None = 30.0) -> None:
        self.link = Link(open_wire, reconnect_s=reconnect_s)
        self.contents = Contents(self.link.welcome)

    def submit(
        self,
        chunks: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        wait_for_room: RoomWait = False,
        **options: Unpack[SubmitOptions],
    ) -> Submission:
        """Hand over one submission; durable when this returns.

        Args:
            chunks: the chunks, in order, or operations if there is a serialisation; read once, in constant memory.
                Without any, the submission completes at once.
            serialisation: cut operations into chunks in this format; None: the chunks are bytes already.
            operations_per_chunk: how many operations go into a chunk; the last one may have fewer.
            metadata: strategic metadata, that strategies see.
            attachment: bytes for the consumer.
            priority: for `CustomPriority`; higher comes first.
            max_attempts: failures after which a chunk is dead. None here and below: the daemon's default.
            max_lost: losses (of a consumer that had started on it) after which a chunk is dead.
            backoff: how long a failed chunk waits: base in seconds, factor, longest in seconds.
            on_dead: a dead chunk fails the submission at once ("fail"), or the rest goes on ("keep").
            delay_s: offered not before this many seconds from now.
            not_before_at: offered not before this moment: an aware datetime, or milliseconds since 1970 UTC.
            after: what it waits for: submissions, or their ids, that must be completed, `(id, "ended")` for one that
                may end in any way, `{key: value}` for the end of all that have this pair.
            on_failed_dependency: if one that must be completed ends otherwise: be cancelled, run nevertheless ("run"),
                or wait until it is requeued and completed ("keep").
            expires_s: expires if unfinished in this many seconds from now.
            expires_at: expires if unfinished at this moment.
            unique_key: while an unfinished submission has this key, it is returned instead of making a new one.
            unique_until: it has the key until it is final ("done"), or until a chunk of it is handed out ("start").
            reservation_s: how long a reservation of its chunks lasts without a heartbeat.
            weights: key → the weight in `Fair` of the value that this submission has of it, from now on.
            idempotency_key: makes one submission for as long as that is known, also after its end; repeated calls
                return it.
            idempotency_keep_s: a submission with the key that ended longer ago than this no longer has it.
            title: a line for people, of at most 256 bytes, which `list` and `show` show; no key depends on it.
            ack: return when it is committed ("committed"), or once the daemon's replica has it, too ("replicated").
            wait_for_room: wait until there is room: True without limit, a number for at most that many seconds. A list
                or tuple of chunks waits before any content is written.

        Returns:
            The submission; `is_new` is False if it existed under `unique_key` or `idempotency_key`.

        Raises:
            UsageError: a value is out of its range, or an operation cannot be written in that format.
            NotFound: there is no such submission to wait for.
            Conflict: it would wait for itself, by way of a pair that it has.
            ChunkTooLarge: a chunk is above the daemon's chunk limit.
            NoRoom: too much is unfinished, or too little of the disk is free; nothing is left of it.
            StorageFull: the disk is full; nothing is left of it.
        """
        began = time.monotonic()
        with traces.sending() as sending:
            prepared = self.prepare(
                chunks,
                serialisation=serialisation,
                operations_per_chunk=operations_per_chunk,
                wait_for_room=wait_for_room,
                **options,
            )
            [submission] = self._hand_over([prepared], new_submission.wait_s_of(wait_for_room, began))
            sending.note(submission.id, prepared.chunks_count)
        return submission

    def run(
        self,
        items: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        result_serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        skip_dead: bool = False,
        on_close: OnClose = "leave",
        wait_for_room: RoomWait = False,
        **options: Unpack[SubmitOptions],
    ) -> ResultStream:
        """Hand over `items` as one submission, and iterate over the results, in order as they come.

        The work is done by consumers: other processes, or a thread of this one. With a serialisation, items and results
        are operations (see `Consumer.run_each_operation`), else chunks and the results of chunks.

        Args:
            items: chunks, or operations if there is a serialisation; read once, to its end, before this returns, in
                constant memory.
            serialisation: cut the items into chunks of operations in this format.
            result_serialisation: of the results; None: the same.
            operations_per_chunk: how many operations go into a chunk; the last one may have fewer.
            skip_dead: pass over chunks that died (with all their operations) instead of raising.
            on_close: what becomes of the submission when the stream is closed, interrupted or fails before its end:
                "leave" it be, so that an interrupt throws no work away (with a `unique_key`, the same call takes it up
                again), or "cancel" it.
            options: those of `submit`. With `skip_dead`, `on_dead` is "keep" unless it is given.

        Returns:
            The stream of results; its `submission` has the id.

        Raises:
            UsageError: an operation cannot be written in that format, or as `submit`; nothing is left of it.
            WorkFailed: (while iterating) a chunk has no result, at its place in the order; chunks that died are named.
            InputUnreadable: (while iterating) a result is not of the format.
        """
        from opsq.client.core.operations import formats
        from opsq.client.core.result_pages import check_on_close
        from opsq.client.sync.result_stream import ResultStream

        check_on_close(on_close)
        if skip_dead:
            options.setdefault("on_dead", "keep")
        encoding, decode = formats(serialisation, result_serialisation)
        submission = self.submit(
            items,
            serialisation=encoding,
            operations_per_chunk=operations_per_chunk,
            wait_for_room=wait_for_room,
            **options,
        )
        return ResultStream(submission, decode, skip_dead=skip_dead, on_close=on_close)

    def prepare(
        self,
        chunks: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        wait_for_room: RoomWait = False,
        **options: Unpack[SubmitOptions],
    ) -> NewSubmission:
        """Write the content of a submission for `submit_many`; for arguments and errors see `submit`."""
        operations_per_chunk = count("operations_per_chunk", operations_per_chunk)
        if serialisation is not None:
            from opsq.client.core.operation_chunks import chunks_of

            chunks = chunks_of(chunks, serialisation, operations_per_chunk)
        key = new_submission.new_request_key()
        new_submission.new_submission(key, b"", 0, **options)  # complains before content is written
        request = new_submission.capacity_request(self.link.next_id(), chunks, wait_for_room, options)
        if request is not None:
            self.link.call(request, Capacity)
        content = new_submission.write_content(chunks, key, self.contents, self.link.welcome)
        return self.describe(key, content, **options)

    def describe(self, request_key: bytes, content: Any, **options: Unpack[SubmitOptions]) -> NewSubmission:
        """What to hand over for content that is written already (a `Content` made by a `ContentWriter`)."""
        from opsq.content.manifest import encode

        return new_submission.new_submission(
            request_key, encode(traces.carrying(content)), content.chunks_count, **options
        )

    def submit_many(self, submissions: Sequence[NewSubmission], *, wait_for_room: RoomWait = False) -> list[Submission]:
        """Hand over prepared submissions in one transaction: all of them are durable when this returns, or none.

        Over several shards that holds for those of each shard; `Conflict` tells if only some are stored.

        Args:
            submissions: at most 10 000, made by `prepare`; together below the frame limit (16 MiB by default).
            wait_for_room: wait until there is room for all of them; see `submit`.

        Raises:
            NoRoom: there is none.

        Effects: content is deleted of those that existed under their unique key; of all, if the daemon refuses. What
            has lost its content is withdrawn: prepare it again.
        """
        return self._hand_over(submissions, new_submission.wait_s_of(wait_for_room))

    def _hand_over(self, submissions: Sequence[NewSubmission], wait_s: float | None) -> list[Submission]:
        if not submissions:
            return []
        new_submission.check_count(submissions)
        try:
            reply = self.link.call(Submit(self.link.next_id(), list(submissions), wait_s), Submitted)
        except (Unreachable, Conflict):
            raise  # nobody answers, or the same may be handed over again
        except OpsqError:
            delete_unused(submissions, self.contents, by_withdrawing(self.link))
            raise
        made_before = new_submission.made_before(submissions, reply.created)
        delete_unused(made_before, self.contents, by_withdrawing(self.link))
        return [Submission(self.link, self.contents, made.submission_id, is_new=made.is_new) for made in reply.created]

    def find(self, idempotency_key: str) -> Submission | None:
        """The submission that this idempotency key has made; None if there is none (any more).

        Raises:
            UsageError: no submission can have this key.
        """
        return self._found(Find(self.link.next_id(), None, idempotency_key))

    def find_request(self, request_key: bytes) -> Submission | None:
        """The submission that a hand-over under this request key has made; None if there is none (any more).

        Raises:
            UsageError: the key does not have 16 bytes.
        """
        return self._found(Find(self.link.next_id(), request_key))

    def withdraw(self, request_key: bytes) -> Submission | None:
        """Take back a hand-over of which it is not known whether it arrived.

        Returns:
            The submission that it has made, which goes on; None: it has made none, and never will.

        Raises:
            UsageError: the key does not have 16 bytes.
        """
        return self._found(Withdraw(self.link.next_id(), request_key))

    def _found(self, request: Find | Withdraw) -> Submission | None:
        found = self.link.call(request, Found)
        return None if found.submission_id is None else self.submission(found.submission_id)

    def submission(self, submission_id: int | str) -> Submission:
        """The handle of a submission by its id; nothing is asked yet.

        Raises:
            NotFound: the text cannot be an id.
        """
        number = submission_id if isinstance(submission_id, int) else parse_submission_id(submission_id)
        return Submission(self.link, self.contents, number)

    def submissions(
        self, *, states: Iterable[str] = (), metadata: Mapping[str, int | str] | None = None
    ) -> Iterator[SubmissionState]:
        """All submissions for which all conditions hold, newest first, asked for page by page.

        Raises:
            UsageError: there is no such state, or a pair cannot be one.
        """
        before: int | None = None
        wanted, which = converted("states", states, list, "names of states"), pairs("metadata", metadata or {})
        while True:
            request = List(self.link.next_id(), wanted, which, before)
            page = self.link.call(request, Listed)
            yield from page.submissions
            if page.next_before is None:
                return
            before = page.next_before

    def close(self) -> None:
        """End the connection."""
        self.link.close()
        self.contents.close()
