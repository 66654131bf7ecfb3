"""The loads that rows share: work through chunks with calls in flight, one cycle after the other, or fail them all.

Every load checks that the daemon refused nothing and handed out what was asked for.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence

import msgspec

from opsq.wire.messages import (
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    Fail,
    Failure,
    Grant,
    HeldChunks,
    Reply,
    Request,
    Reserve,
    Reserved,
)
from ours.client import Client

_EMPTY_RESULTS = msgspec.Raw(b"\xc0")


def held(reservation_id: int, grant: Grant) -> HeldChunks:
    """The whole of a grant, as completions name it."""
    return HeldChunks(
        grant.submission_id, grant.block, grant.mask, reservation_id, grant.attempt, grant.mask, grant.mac
    )


def chunks_of(reserved: Reserved) -> int:
    """How many chunks were handed out."""
    return sum(grant.mask.bit_count() for grant in reserved.grants)


class Results:
    """Results of `size_bytes` each for any count of chunks, encoded once a count; 0: empty results."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._encoded: dict[int, msgspec.Raw] = {}

    def of(self, chunks_count: int) -> msgspec.Raw:
        """The results of `chunks_count` chunks as a completion carries them."""
        if not self._size_bytes:
            return _EMPTY_RESULTS
        if chunks_count not in self._encoded:
            encoded = msgspec.msgpack.encode([b"r" * self._size_bytes] * chunks_count)
            self._encoded[chunks_count] = msgspec.Raw(encoded)
        return self._encoded[chunks_count]


def complete(
    client: Client,
    chunks_count: int,
    *,
    strategy: str,
    per_call: int,
    in_flight: int,
    result_bytes: int = 0,
    on_reply: Callable[[], None] | None = None,
) -> float:
    """Reserve and complete exactly `chunks_count` chunks; returns the seconds until the last was acknowledged.

    Args:
        chunks_count: must be free when it starts; a multiple of `per_call`.
        per_call: chunks that one call completes and one reserves.
        in_flight: calls under way at any time.
        result_bytes: the size of each chunk's result.
        on_reply: called each time something came back.
    """
    work = _Work(chunks_count, strategy, per_call, result_bytes)
    started = time.perf_counter()
    client.send(work.first_calls(client, in_flight))
    while not work.is_over:
        answers = work.answers(client, client.replies())
        if on_reply is not None:
            on_reply()
        if answers:
            client.send(answers)
    return time.perf_counter() - started


def complete_on_all(clients: Sequence[Client], chunks_count: int, *, strategy: str) -> float:
    """As `complete`, one chunk a call, with one call in flight on each of these connections."""
    work = _Work(chunks_count, strategy, 1, 0)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        started = time.perf_counter()
        for client in clients:
            client.send(work.first_calls(client, 1))
        while not work.is_over:
            for key, _ in selector.select():
                answers = work.answers(key.data, key.data.replies())
                if answers:
                    key.data.send(answers)
        return time.perf_counter() - started


class _Work:
    """What is still to be asked for and what is not answered yet, over one connection or more."""

    def __init__(self, chunks_count: int, strategy: str, per_call: int, result_bytes: int) -> None:
        self._left = self._unasked = chunks_count
        self._strategy = strategy
        self._per_call = per_call
        self._results = Results(result_bytes)
        self._unanswered: dict[int, dict[int, int]] = {}

    @property
    def is_over(self) -> bool:
        """Every chunk is completed."""
        return self._left <= 0

    def first_calls(self, client: Client, calls_count: int) -> list[Request]:
        """So many reserves, or as many as there are chunks for."""
        calls_count = min(calls_count, self._unasked // self._per_call)
        self._unasked -= calls_count * self._per_call
        return [Reserve(client.next_id(), self._per_call, self._strategy) for _ in range(calls_count)]

    def answers(self, client: Client, replies: Sequence[Reply]) -> list[Request]:
        """What follows from what came on a connection."""
        unanswered = self._unanswered.setdefault(client.fileno(), {})
        answers: list[Request] = []
        for reply in replies:
            if isinstance(reply, Completed):
                self._left -= _accepted(reply, unanswered)
            elif isinstance(reply, Reserved):
                got = chunks_of(reply)
                if got != self._per_call:
                    raise RuntimeError(f"{got} chunks were handed out where {self._per_call} were free and asked for")
                completions = [
                    Completion(held(reply.reservation_id, grant), self._results.of(grant.mask.bit_count()))
                    for grant in reply.grants
                ]
                request_id = client.next_id()
                unanswered[request_id] = got
                if self._unasked:
                    self._unasked -= self._per_call
                    answers.append(CompleteAndReserve(request_id, completions, self._per_call, self._strategy))
                else:
                    answers.append(Complete(request_id, completions))
        return answers


def complete_singly(client: Client, chunks_count: int) -> None:
    """Reserve chunks and complete them in one call, with an entry for each, so that each gets a row of history.

    What comes bit by bit is folded as fast as it comes; only one large batch leaves a long tail behind.
    """
    done = 0
    while done < chunks_count:
        reserved = client.call(Reserve(client.next_id(), chunks_count - done, "OldestFirst"), Reserved)
        completions = [
            # Completions of one block that agree in their exit status would be one row.
            Completion(msgspec.structs.replace(held(reserved.reservation_id, grant), mask=1 << bit), exit_status=bit)
            for grant in reserved.grants
            for bit in range(grant.mask.bit_length())
            if grant.mask >> bit & 1
        ]
        if not completions:
            raise RuntimeError(f"nothing is free any more after {done} of {chunks_count} chunks")
        reply = client.call(Complete(client.next_id(), completions), Completed)
        done += _accepted(reply, {reply.id: len(completions)})


def cycles(client: Client, cycles_count: int, *, strategy: str) -> list[float]:
    """Complete one chunk and reserve the next, one after the other, and return the seconds of each cycle.

    `cycles_count + 1` chunks must be free; the last one is completed at the end.
    """
    taken = []
    reserved = client.call(Reserve(client.next_id(), 1, strategy), Reserved)
    for _ in range(cycles_count):
        started = time.perf_counter()
        completion = Completion(held(reserved.reservation_id, reserved.grants[0]))
        client.send([CompleteAndReserve(client.next_id(), [completion], 1, strategy)])
        replies: list[Reply] = []
        while len(replies) < 2:
            replies += client.replies()
        taken.append(time.perf_counter() - started)
        done, reserved = _done_and_reserved(replies)
        _accepted(done, {done.id: 1})
    completion = Completion(held(reserved.reservation_id, reserved.grants[0]))
    client.call(Complete(client.next_id(), [completion]), Completed)
    return taken


def fail(client: Client, chunks_count: int, *, per_call: int, delay_s: float) -> None:
    """Reserve every one of `chunks_count` free chunks and fail it once, so that each waits `delay_s` for its retry."""
    failed = 0
    while failed < chunks_count:
        reserved = client.call(Reserve(client.next_id(), min(per_call, chunks_count - failed), "OldestFirst"), Reserved)
        got = chunks_of(reserved)
        if not got:
            raise RuntimeError(f"nothing is free any more after {failed} of {chunks_count} chunks")
        failures = [
            Failure(held(reserved.reservation_id, grant), reason="benchmark", exit_status=1, delay_s=delay_s)
            for grant in reserved.grants
        ]
        done = client.call(Fail(client.next_id(), failures), Completed)
        failed += _accepted(done, {done.id: got})


def _accepted(reply: Completed, unanswered: dict[int, int]) -> int:
    if reply.refusals:
        raise RuntimeError(f"the daemon refused a completion: {reply.refusals[0]}")
    return unanswered.pop(reply.id)


def _done_and_reserved(replies: list[Reply]) -> tuple[Completed, Reserved]:
    done = next(reply for reply in replies if isinstance(reply, Completed))
    reserved = next(reply for reply in replies if isinstance(reply, Reserved))
    if chunks_of(reserved) != 1:
        raise RuntimeError("no chunk was free for the next cycle")
    return done, reserved
