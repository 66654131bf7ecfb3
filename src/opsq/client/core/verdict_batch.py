"""How verdicts are batched: completions, failures and releases wait here for the next frame, and then for their answer.

This file does no I/O and takes no lock, as ledger.py; it says when enough has come together, and its owner sends it.
The completions of a block travel as one mask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from opsq.client.core import arguments
from opsq.client.core.held_block import HeldBlock, Result
from opsq.client.core.ledger import Ledger
from opsq.errors import Conflict, NotFound, OpsqError, StorageFull, UsageError
from opsq.ids import mask_indexes
from opsq.units import counted
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import (
    NO_RESULTS,
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    ErrorReply,
    Fail,
    Failure,
    NewSubmission,
    Refusal,
    Release,
    Reply,
    Request,
    Reserve,
    Started,
)

FLUSH_S = 0.05
"""A verdict waits this long for others to travel with."""

BUFFERED_LIMIT_COUNT = 1024
"""At most this many chunks with a verdict wait for the next frame."""

BUFFERED_LIMIT_BYTES = 1 << 20
"""At most this many bytes of results wait for the next frame, and go into one request."""

UNANSWERED_LIMIT_COUNT = 1024
"""At most this many completions (of a block each) may be without an answer."""

_REASON_LIMIT = 16384
_RESENT_IGNORED = frozenset({"reservation_lost", "already_finished"})
_encode = msgspec.msgpack.Encoder().encode


class FailedRun(NamedTuple):
    """A failed attempt at some chunks, as the protocol describes it."""

    reason: str = ""
    exit_status: int | None = None
    signal: int | None = None
    run_s: float = 0.0
    delay_s: float | None = None
    is_final: bool = False


class _Sent(NamedTuple):
    """A request without an answer, and the chunks that it settles."""

    request: Request
    settles: list[tuple[HeldBlock, int]]
    completions_count: int


class VerdictBatch:
    """The verdicts of one consumer.

    Args:
        ledger: the chunks that it holds.
        next_id: gives an id for the next request.
    """

    def __init__(self, ledger: Ledger, next_id: Callable[[], int]) -> None:
        self.ledger = ledger
        self._next_id = next_id
        self._done: list[HeldBlock] = []
        self._sealed: list[tuple[HeldBlock, int, Completion]] = []
        self._failures: list[tuple[HeldBlock, int, Failure]] = []
        self._releases: list[tuple[HeldBlock, int]] = []
        self._sent: dict[int, _Sent] = {}
        self._again: list[_Sent] = []
        self.buffered_count = 0
        self.buffered_bytes = 0
        self.unanswered_count = 0
        self.errors: deque[OpsqError] = deque()
        """What the owner has to raise at the next call."""

    def complete(
        self,
        block: HeldBlock,
        mask: int,
        results: Sequence[Result] | None = None,
        *,
        run_s: float = 0.0,
        exit_status: int | None = None,
        then: Sequence[NewSubmission] = (),
    ) -> None:
        """Enter that chunks are done.

        Args:
            results: one per chunk of `mask`, ascending; None: all empty.
            run_s: sum of their run times.
            then: follow-ups, of one chunk.

        Raises:
            UsageError: there are not as many results as chunks, or the exit status is none; nothing is entered.
        """
        if exit_status is not None:
            checked(Completion(block.name(mask), exit_status=exit_status))
        if results is not None and len(results) != mask.bit_count():
            raise UsageError(f"Got {counted(len(results), 'result')} for {counted(mask.bit_count(), 'chunk')}.")
        live = mask & block.open
        block.open ^= live
        if not live:
            return
        if then:
            packed = msgspec.Raw(_encode(results)) if results else NO_RESULTS
            completion = Completion(block.name(live), packed, run_s, run_s, exit_status, list(then))
            self._sealed.append((block, live, completion))
            self.buffered_count += 1
            self.buffered_bytes += len(packed) + sum(len(new.content) + len(new.attachment or b"") for new in then)
            return
        if block.done and block.exit_status != exit_status:
            self._seal(block)
        if not block.done:
            self._done.append(block)
            block.exit_status = exit_status
        block.done |= live
        block.run_s += run_s
        block.run_max_s = max(block.run_max_s, run_s)
        self.buffered_count += live.bit_count()
        if results:
            for result in results:
                low = mask & -mask
                mask ^= low
                if result and live & low:
                    block.results[low.bit_length() - 1] = result
                    self.buffered_bytes += len(result)

    def fail(self, block: HeldBlock, mask: int, failed: FailedRun) -> None:
        """Enter that the attempt at these chunks failed; of a long reason the end is kept.

        Raises:
            UsageError: that cannot be said of an attempt; nothing is entered.
        """
        live = mask & block.open
        if live:
            # Half a surrogate pair, as names of files may have, is text that cannot be sent.
            reason = arguments.reason(failed.reason).encode(errors="backslashreplace").decode()[-_REASON_LIMIT:]
            failure = checked(Failure(block.name(live), reason, *failed[1:]))
            block.open ^= live
            self._failures.append((block, live, failure))
            self.buffered_count += live.bit_count()

    def release(self, block: HeldBlock, mask: int) -> None:
        """Enter that these chunks, started or not, are given back."""
        live = self.ledger.withdraw(block, mask)
        if live:
            self._releases.append((block, live))
            self.buffered_count += live.bit_count()

    def release_all(self) -> None:
        """Give back all that has no verdict."""
        for block in self.ledger.blocks():
            self.release(block, block.open | block.ready)

    # --- the wire -----------------------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """What is to be sent now. Each request with an id gets an answer, which goes to `answer`."""
        requests: list[Request] = []
        started = self.ledger.take_started()
        if started:
            requests.append(Started(started))
        for completions, settles in self._take_completions():
            requests.append(self._sending(Complete(self._next_id(), completions), settles, len(completions)))
        if self._failures:
            failures, self._failures = self._failures, []
            fail = Fail(self._next_id(), [failure for _, _, failure in failures])
            requests.append(self._sending(fail, [(block, mask) for block, mask, _ in failures]))
        if self._releases:
            releases, self._releases = self._releases, []
            release = Release(self._next_id(), [block.name(mask) for block, mask in releases])
            requests.append(self._sending(release, releases))
        again, self._again = self._again, []
        requests += [self._sending(sent.request, sent.settles, sent.completions_count) for sent in again]
        self.buffered_count = self.buffered_bytes = 0
        return requests

    def with_reserve(self, requests: list[Request], reserve: Reserve) -> Request:
        """Join a reserve to the last request if that completes chunks, else append it; returns the message for it.

        Not to one with follow-ups, which may be refused for them.
        """
        last = requests[-1] if requests else None
        if not isinstance(last, Complete) or last.completions[-1].then:
            requests.append(reserve)
            return reserve
        sent = self._sent.pop(last.id)
        joined = CompleteAndReserve(
            reserve.id,
            last.completions,
            reserve.count,
            reserve.strategy,
            reserve.wait_s,
            reserve.lease_s,
            reserve.until_empty,
        )
        self._sent[joined.id] = sent._replace(request=joined)
        requests[-1] = joined
        return joined

    def withhold(self, requests: Sequence[Request], lost: Mapping[str, OpsqError]) -> list[Request]:
        """Take out completions with a large result that was lost; their chunks are given back, and the error raised.

        Args:
            requests: which `requests` made, and which are not sent yet.
            lost: the objects in the store that may not be named, and why.
        """
        kept: list[Request] = []
        for request in requests:
            if isinstance(request, Complete | CompleteAndReserve):
                error = next((lost[name] for name in _objects(request.completions) if name in lost), None)
                if error is not None:
                    sent = self._sent.pop(request.id)
                    self.unanswered_count -= sent.completions_count
                    self._releases += sent.settles
                    self.buffered_count += sum(mask.bit_count() for _, mask in sent.settles)
                    self.errors.append(error)
                    if isinstance(request, CompleteAndReserve):
                        kept.append(request.second_half())
                    continue
            kept.append(request)
        return kept

    def answer(self, reply: Reply) -> None:
        """Enter the answer to one of `requests`."""
        sent = self._sent.pop(getattr(reply, "id", 0), None)
        if sent is None:
            return
        self.unanswered_count -= sent.completions_count
        if isinstance(reply, ErrorReply):
            error = reply.error()
            is_joined = isinstance(sent.request, CompleteAndReserve)
            if isinstance(error, StorageFull) or (is_joined and isinstance(error, UsageError)):
                if isinstance(sent.request, CompleteAndReserve):  # the mistake may be in the reserve
                    sent = sent._replace(request=Complete(sent.request.id, sent.request.completions))
                self._again.append(sent)
                return
            if isinstance(error, UsageError | Conflict | NotFound) and _has_follow_ups(sent.request):
                self._fail_refused(sent, error)
                return
            self.errors.append(error)
        if isinstance(reply, Completed):
            is_completion = isinstance(sent.request, Complete | CompleteAndReserve)
            for refusal in reply.refusals:
                if is_completion and self._retry_part(sent, refusal):
                    continue
                if is_completion or refusal.code not in _RESENT_IGNORED:
                    self.ledger.report_lost(refusal, refusal.mask, refusal.code)
        for block, mask in sent.settles:
            self.ledger.forget(block, mask)

    @property
    def is_settled(self) -> bool:
        """Whether every verdict was sent and answered."""
        return not (self.buffered_count or self._sent or self._again)

    @property
    def is_again_due(self) -> bool:
        """Whether there was no room for some of it, so that it is to be sent again after a while."""
        return bool(self._again or self._sealed or self._failures)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _sending(self, request: Request, settles: list[tuple[HeldBlock, int]], completions_count: int = 0) -> Request:
        self._sent[request.id] = _Sent(request, settles, completions_count)  # type: ignore[union-attr]  # each has one
        self.unanswered_count += completions_count
        return request

    def _fail_refused(self, sent: _Sent, error: OpsqError) -> None:
        """Fail a chunk of whose follow-ups no submissions can be made: it would stay reserved otherwise."""
        for block, mask in sent.settles:
            self._failures.append((block, mask, Failure(block.name(mask), f"Its follow-ups are refused: {error}")))
            self.buffered_count += mask.bit_count()

    def _retry_part(self, sent: _Sent, refusal: Refusal) -> bool:
        """Send chunks again alone whose completion was refused only because others of it were finished elsewhere."""
        refused = (refusal.submission_id, refusal.block)
        for at, (block, mask) in enumerate(sent.settles):
            if (block.submission_id, block.number) != refused or mask & refusal.mask != refusal.mask:
                continue
            completion = sent.request.completions[at]  # type: ignore[union-attr]  # only completions are asked for
            results = msgspec.msgpack.decode(completion.results)
            if mask == refusal.mask or refusal.code != "reservation_lost" or results is None:
                return False
            kept = [result for bit, result in zip(_bits(mask), results, strict=True) if refusal.mask >> bit & 1]
            alone = Completion(block.name(refusal.mask), msgspec.Raw(_encode(kept)), 0.0, 0.0, completion.exit_status)
            self._sealed.append((block, refusal.mask, alone))
            self.buffered_count += refusal.mask.bit_count()
            sent.settles[at] = (block, mask & ~refusal.mask)
            return True
        return False

    def _seal(self, block: HeldBlock) -> None:
        """Make a completion of what is done of a block."""
        mask, block.done = block.done, 0
        results = NO_RESULTS
        if block.results:
            kept, block.results = block.results, {}
            results = msgspec.Raw(_encode([kept.get(bit, b"") for bit in _bits(mask)]))
        completion = Completion(block.name(mask), results, block.run_s, block.run_max_s, block.exit_status)
        block.run_s = block.run_max_s = 0.0
        self._sealed.append((block, mask, completion))

    def _take_completions(self) -> Iterator[tuple[list[Completion], list[tuple[HeldBlock, int]]]]:
        """What is done, in portions whose results together stay near `BUFFERED_LIMIT_BYTES`."""
        for block in self._done:
            if block.done:
                self._seal(block)
        self._done.clear()
        sealed, self._sealed = self._sealed, []
        completions: list[Completion] = []
        settles: list[tuple[HeldBlock, int]] = []
        size_bytes = 0
        for block, mask, completion in sealed:
            if completion.then:  # alone: if they are refused, no other chunk is
                yield [completion], [(block, mask)]
                continue
            if completions and size_bytes + len(completion.results) > BUFFERED_LIMIT_BYTES:
                yield completions, settles
                completions, settles, size_bytes = [], [], 0
            completions.append(completion)
            settles.append((block, mask))
            size_bytes += len(completion.results)
        if completions:
            yield completions, settles


def _has_follow_ups(request: Request) -> bool:
    """Whether a request is the completion of one chunk with follow-ups."""
    return isinstance(request, Complete | CompleteAndReserve) and any(one.then for one in request.completions)


def _objects(completions: Sequence[Completion]) -> Iterator[str]:
    """The objects in the store that completions name."""
    for completion in completions:
        for result in msgspec.msgpack.decode(completion.results) or ():
            if not isinstance(result, bytes):
                yield result[0]


def _bits(mask: int) -> Iterator[int]:
    """The positions of the bits of `mask`, ascending."""
    return mask_indexes(0, mask)
