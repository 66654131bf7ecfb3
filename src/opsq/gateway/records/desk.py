"""Puts records into queues and takes them out over one connection: what arrives together is one request to the daemon.

Everything is answered after its commit. This file must not know HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from opsq import traces
from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.new_submission import SubmitOptions, new_request_key, write_content
from opsq.errors import READER_ERRORS, ContentChanged, ContentMissing, NoRoom, NotFound, OpsqError
from opsq.gateway.records.gathering import Gathering
from opsq.gateway.records.queue_defaults import KEY, QueueDefaults, selecting
from opsq.ids import Handle, mask_indexes
from opsq.printable import printable
from opsq.traces import TraceContext
from opsq.wire.messages import (
    Complete,
    Completed,
    Completion,
    Describe,
    Described,
    Extend,
    Fail,
    Failure,
    HeldChunks,
    NewSubmission,
    Release,
    Request,
    Reserve,
    Reserved,
    SubmissionContent,
)

T = TypeVar("T")
R = TypeVar("R")

INLINE_BYTES, INLINE_COUNT = 4096, 1024
"""Payloads that are sent with their submission, as `content.manifest` has it; larger ones become files."""
RECORD_BYTES = INLINE_BYTES + 1024
"""What a record takes at most in a request or an answer, with a submission of its own: payload, queue, trace, options.

What is said of a record takes less.
"""
GATHERED_LIMIT_COUNT = 4096
"""Calls that are made as one, if a frame has room for so many."""
NACK_REASON = "nack"
_KNOWN_LIMIT = 4096
_AGAIN_S = 1.0
"""A daemon that is about to end answers at once; it is asked again after that long."""

Room = Callable[[str, int], Awaitable[int | None]]
"""How many more records a queue may take, asked for so many; None: any number."""


class NewRecord(NamedTuple):
    """A record to be put into a queue."""

    queue: str
    payload: bytes
    delay_s: float
    trace: TraceContext | None = None


class Taken(NamedTuple):
    """A record that a consumer has: `attempt` counts from 0."""

    handle: Handle
    attempt: int


class _Verdict(NamedTuple):
    """What a consumer says of a record; `delay_s` replaces the back-off."""

    handle: Handle
    delay_s: float | None = None


class Desk:
    """The records of everybody who shows the same token.

    Args:
        queue: the connection that has shown it.
        defaults: of a queue, by its name.
        room: tells how many more records a queue may take.
    """

    def __init__(self, queue: AsyncQueue, defaults: Callable[[str], QueueDefaults], room: Room) -> None:
        self._queue = queue
        self._link = queue.link
        self._defaults = defaults
        self._room = room
        self._known: dict[int, SubmissionContent] = {}
        self._posts: Gathering[NewRecord, None] = self._gathering(self._submit)
        self._gets: dict[str, Gathering[None, Taken | None]] = {}
        self._acks: Gathering[_Verdict, bool] = self._gathering(partial(self._say, self._complete))
        self._nacks: Gathering[_Verdict, bool] = self._gathering(partial(self._say, self._fail))
        self._touches: Gathering[_Verdict, bool] = self._gathering(partial(self._say, self._extend))

    @property
    def payload_limit_bytes(self) -> int:
        """The longest payload that the daemon takes."""
        return self._link.welcome.chunk_limit_bytes

    async def post(self, record: NewRecord) -> None:
        """Put a record into its queue; durable on return.

        Raises:
            NoRoom: the queue is full, or the daemon has no room.
            OpsqError: as `AsyncQueue.submit`.
        """
        await self._posts.call(record)

    async def take(self, queue: str) -> Taken | None:
        """Take the next record of a queue; None: nothing is free."""
        gets = self._gets.get(queue)
        if gets is None:
            gets = self._gets[queue] = self._gathering(partial(self._reserve, queue))
        try:
            return await gets.call(None)
        finally:
            if gets.is_idle:
                self._gets.pop(queue, None)

    async def wait(self, queue: str, deadline: float, is_over: asyncio.Future[None]) -> Taken | None:
        """As `take`, waiting for a record until `deadline`, in seconds of `time.monotonic`, or until `is_over` is."""
        while (left_s := deadline - time.monotonic()) > 0 and not is_over.done():
            request = self._request(queue, 1, left_s)
            asking = asyncio.ensure_future(self._link.call(request, Reserved))
            await asyncio.wait((asking, is_over), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self._link.cancel([request.id])
            if taken := self._taken(await asking):
                return taken[0]
            await asyncio.wait((is_over,), timeout=min(_AGAIN_S, max(deadline - time.monotonic(), 0)))
        return None

    async def give_back(self, taken: Taken) -> None:
        """Offer a record again that did not reach its consumer."""
        await self._link.call(Release(self._link.next_id(), [HeldChunks.of(taken.handle)]), Completed)

    async def ack(self, handle: Handle) -> bool:
        """A record is done; False: it is not the consumer's any more."""
        return await self._acks.call(_Verdict(handle))

    async def nack(self, handle: Handle, delay_s: float | None) -> bool:
        """A record is to be offered again, after the back-off or `delay_s`; False as `ack`."""
        return await self._nacks.call(_Verdict(handle, delay_s))

    async def touch(self, handle: Handle) -> bool:
        """A record is in flight for its whole time from now; False as `ack`."""
        return await self._touches.call(_Verdict(handle))

    async def read(self, taken: Taken) -> tuple[bytes, TraceContext | None] | None:
        """The payload of a record, and the trace that it belongs to; None: it cannot be read, and has failed.

        Raises:
            StoreNotVisible, ContentNotPermitted: not by this gateway; it is offered again.
        """
        try:
            return await self._read(taken.handle)
        except NotFound:  # its submission was removed
            return None
        except READER_ERRORS:
            await self.give_back(taken)
            raise
        except (ContentMissing, ContentChanged) as error:
            held = HeldChunks.of(taken.handle)
            failure = Failure(held, printable(error.message), is_final=isinstance(error, ContentChanged))
            await self._link.call(Fail(self._link.next_id(), [failure]), Completed)
            return None

    def _gathering(self, perform: Callable[[list[T]], Awaitable[Sequence[R | Exception]]]) -> Gathering[T, R]:
        return Gathering(perform, self._gathered_count)

    def _gathered_count(self) -> int:
        """How many calls one frame has room for, whatever their records are; so has one with the answers."""
        return min(self._link.welcome.frame_limit_bytes // RECORD_BYTES, GATHERED_LIMIT_COUNT)

    # --- put in -------------------------------------------------------------------------------------------------------

    async def _submit(self, records: list[NewRecord]) -> Sequence[Exception | None]:
        """Submit records, those with the same queue, delay and trace in one submission; all of them in one commit."""
        outcomes: list[Exception | None] = [None] * len(records)
        groups: defaultdict[tuple[str, float, TraceContext | None], list[int]] = defaultdict(list)
        for number, record in enumerate(records):
            groups[record.queue, record.delay_s, record.trace].append(number)
        wanted = Counter(record.queue for record in records)
        left: dict[str, int | None] = {}
        submissions: list[NewSubmission] = []
        for (name, delay_s, trace), numbers in groups.items():
            if name not in left:
                left[name] = await self._room(name, wanted[name])
            room = left[name]
            if room is not None:
                for number in numbers[room:]:
                    outcomes[number] = NoRoom("Could exceed queue max length")
                del numbers[room:]
                left[name] = room - len(numbers)
            options = _options(name, self._defaults(name), delay_s)
            payloads = [records[number].payload for number in numbers]
            with traces.given(trace):
                submissions += [self._inline(part, options) for part in _parts(payloads)]
            large = [number for number in numbers if len(records[number].payload) > INLINE_BYTES]
            if large:
                try:
                    with traces.given(trace):
                        submissions.append(await self._queue.prepare([records[n].payload for n in large], **options))
                except OpsqError as error:
                    for number in large:
                        outcomes[number] = error
        try:
            await self._queue.submit_many(submissions)
        except OpsqError as error:
            return [outcome or error for outcome in outcomes]
        return outcomes

    def _inline(self, payloads: list[bytes], options: SubmitOptions) -> NewSubmission:
        """A submission that carries its records; no file is written."""
        key = new_request_key()
        content = write_content(payloads, key, self._queue.contents, self._link.welcome)
        return self._queue.describe(key, content, **options)

    # --- take out -----------------------------------------------------------------------------------------------------

    async def _reserve(self, queue: str, asked: list[None]) -> list[Taken | None]:
        reply = await self._link.call(self._request(queue, len(asked), 0.0), Reserved)
        taken: list[Taken | None] = [*self._taken(reply)]
        return taken + [None] * (len(asked) - len(taken))

    def _request(self, queue: str, count: int, wait_s: float) -> Reserve:
        defaults = self._defaults(queue)
        strategy = selecting(queue, defaults.strategy)
        return Reserve(self._link.next_id(), count, strategy, wait_s, defaults.lease_s)

    def _taken(self, reply: Reserved) -> list[Taken]:
        self._learn(reply.submissions)
        return [Taken(handle, grant.attempt) for grant, handle in reply.handles()]

    def _learn(self, submissions: Iterable[SubmissionContent]) -> None:
        for described in submissions:
            self._known[described.submission_id] = described
            if len(self._known) > _KNOWN_LIMIT:
                del self._known[next(iter(self._known))]

    async def _read(self, handle: Handle) -> tuple[bytes, TraceContext | None]:
        described = self._known.get(handle.submission_id)
        if described is None:
            reply = await self._link.call(Describe(self._link.next_id(), [handle.submission_id]), Described)
            if not reply.submissions:
                raise NotFound(f"Submission {handle.submission_id} was removed.")
            self._learn(reply.submissions)
            described = reply.submissions[0]
        contents = self._queue.contents
        reader = contents.reader(described)
        trace = traces.carried_by(described.content)
        if reader.content.inline is not None:
            return reader.read(handle.index), trace
        return await asyncio.to_thread(lambda: contents.reader(described).read(handle.index)), trace

    # --- verdicts -----------------------------------------------------------------------------------------------------

    async def _say(self, request_of: Callable[[list[_Verdict]], Request], verdicts: list[_Verdict]) -> list[bool]:
        """Send verdicts as one request; those that name a record differently from another one follow in the next.

        A refusal names the record only.
        """
        answers: dict[_Verdict, bool] = {}
        rest = list(dict.fromkeys(verdicts))
        while rest:
            firsts: dict[tuple[int, int], _Verdict] = {}
            for verdict in rest:
                firsts.setdefault(verdict.handle[:2], verdict)
            reply = await self._link.call(request_of(list(firsts.values())), Completed)
            refused = {
                (refusal.submission_id, index)
                for refusal in reply.refusals
                for index in mask_indexes(refusal.block, refusal.mask)
            }
            answers |= {verdict: chunk not in refused for chunk, verdict in firsts.items()}
            rest = [verdict for verdict in rest if verdict not in answers]
        return [answers[verdict] for verdict in verdicts]

    def _complete(self, verdicts: list[_Verdict]) -> Complete:
        return Complete(self._link.next_id(), [Completion(held) for held in _held(verdicts)])

    def _fail(self, verdicts: list[_Verdict]) -> Fail:
        by_delay: defaultdict[float | None, list[_Verdict]] = defaultdict(list)
        for verdict in verdicts:
            by_delay[verdict.delay_s].append(verdict)
        failures = [
            Failure(held, NACK_REASON, delay_s=delay_s) for delay_s, some in by_delay.items() for held in _held(some)
        ]
        return Fail(self._link.next_id(), failures)

    def _extend(self, verdicts: list[_Verdict]) -> Extend:
        return Extend(self._link.next_id(), _held(verdicts))


def _held(verdicts: Iterable[_Verdict]) -> list[HeldChunks]:
    return HeldChunks.merged(verdict.handle for verdict in verdicts)


def _parts(payloads: Iterable[bytes]) -> list[list[bytes]]:
    """The short ones in runs that fit into a submission without a file."""
    parts: list[list[bytes]] = []
    size_bytes = 0
    for payload in payloads:
        if len(payload) > INLINE_BYTES:
            continue
        size_bytes += len(payload)
        if not parts or size_bytes > INLINE_BYTES or len(parts[-1]) == INLINE_COUNT:
            parts.append([])
            size_bytes = len(payload)
        parts[-1].append(payload)
    return parts


def _options(name: str, defaults: QueueDefaults, delay_s: float) -> SubmitOptions:
    """The options of a submission of records; one dead record does not fail the others."""
    return {
        "metadata": {KEY: name},
        "max_attempts": defaults.max_attempts,
        "max_lost": defaults.max_attempts,
        "backoff": defaults.backoff,
        "on_dead": "keep",
        "delay_s": delay_s or None,
        "expires_s": defaults.expires_s,
    }
