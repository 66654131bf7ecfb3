"""What a consumer holds and what it owes the daemon: grants, verdicts that wait to be sent, answers that are due.

This file does no I/O, starts no thread and takes no lock: blocking and asyncio consumers drive the same ledger, one call
at a time. Everything is counted in blocks and masks; a chunk has no object of its own here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from opsq.client.core.held_block import Lost, Lot, Result
from opsq.errors import OpsqError, StorageFull, UsageError
from opsq.ids import SubmissionId, mask_indexes
from opsq.wire.messages import (
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    ErrorReply,
    Fail,
    Failure,
    HeldChunks,
    Refusal,
    Release,
    Reply,
    Request,
    Reserve,
    Reserved,
    Revoked,
    Started,
    SubmissionContent,
)

BUFFERED_LIMIT_COUNT = 1024
"""So many chunks with a verdict wait for the next frame, at most."""

BUFFERED_LIMIT_BYTES = 1 << 20
"""So many bytes of results wait for the next frame, and go into one request."""

UNANSWERED_LIMIT_COUNT = 1024
"""So many completions (of a block each) may be without an answer."""

_REASON_LIMIT = 16384
_KNOWN_LIMIT = 20_000
_RESENT_IGNORED = frozenset({"reservation_lost", "already_finished"})
_encode = msgspec.msgpack.Encoder().encode
_NO_RESULTS = msgspec.Raw(b"\xc0")


class _Sent(NamedTuple):
    """A request without an answer, and the chunks that it settles."""

    request: Request
    settles: list[tuple[Lot, int]]
    completions_count: int


class Ledger:
    """Grants and verdicts of one consumer.

    Args:
        next_id: gives an id for the next request.
    """

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self._lots: dict[tuple[int, int], list[Lot]] = {}
        self._ready: deque[Lot] = deque()
        self._done: list[Lot] = []
        self._sealed: list[tuple[Lot, int, Completion]] = []
        self._failures: list[tuple[Lot, int, Failure]] = []
        self._releases: list[tuple[Lot, int]] = []
        self._unreported: list[Lot] = []
        self._sent: dict[int, _Sent] = {}
        self._again: list[_Sent] = []
        self._known: dict[int, SubmissionContent] = {}
        self.ready_count = 0
        self.buffered_count = 0
        self.buffered_bytes = 0
        self.unanswered_count = 0
        self.lost: deque[Lost] = deque()
        """What the owner has not told the caller yet."""
        self.errors: deque[OpsqError] = deque()
        """What the owner has to raise at the next call."""

    # --- grants -----------------------------------------------------------------------------------------------------

    def add(self, reply: Reserved) -> list[Lot]:
        """Enter what was reserved; returns a lot per grant, none of them `take`n yet."""
        for described in reply.submissions:
            self.learn(described)
        lots = [Lot(grant, reply.reservation_id) for grant in reply.grants]
        for lot in lots:
            self._lots.setdefault((lot.submission_id, lot.block), []).append(lot)
        return lots

    def offer(self, lots: Sequence[Lot]) -> None:
        """Have `take` hand out the chunks of these lots, one by one."""
        for lot in lots:
            lot.is_offered = True
            self.ready_count += lot.ready.bit_count()
        self._ready.extend(lots)

    def take(self) -> tuple[Lot, int] | None:
        """The next chunk, as its lot and bit, and begin work on it; None if none is ready."""
        ready = self._ready
        while ready:
            lot = ready[0]
            mask = lot.ready
            if not mask:
                ready.popleft()
                continue
            low = mask & -mask
            lot.ready = mask ^ low
            lot.open |= low
            self.ready_count -= 1
            if not lot.is_reported:
                self._unreported.append(lot)
                lot.is_reported = True
            return lot, low.bit_length() - 1
        return None

    def upcoming(self, limit_count: int) -> list[tuple[int, int]]:
        """Submission and index of up to so many chunks that `take` hands out next, in that order."""
        found: list[tuple[int, int]] = []
        for lot in self._ready:
            found.extend((lot.submission_id, index) for index in mask_indexes(lot.block, lot.ready))
            if len(found) >= limit_count:
                break
        return found[:limit_count]

    def open_all(self, lots: Sequence[Lot]) -> None:
        """Begin work on all chunks of these lots."""
        for lot in lots:
            lot.open |= lot.ready
            lot.ready = 0
            lot.is_reported = True
        self._unreported.extend(lots)

    def learn(self, described: SubmissionContent) -> None:
        """Remember what a submission is."""
        self._known[described.submission_id] = described
        if len(self._known) > _KNOWN_LIMIT:
            del self._known[next(iter(self._known))]

    def known(self, submission_id: int) -> SubmissionContent | None:
        """What is remembered of a submission."""
        return self._known.get(submission_id)

    @property
    def open_count(self) -> int:
        """Chunks that are being worked on."""
        return sum(lot.open.bit_count() for lots in self._lots.values() for lot in lots)

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def complete(
        self,
        lot: Lot,
        mask: int,
        results: Sequence[Result] | None = None,
        *,
        run_s: float = 0.0,
        run_max_s: float | None = None,
        exit_status: int | None = None,
    ) -> None:
        """Enter that chunks are done.

        Args:
            results: one per chunk of `mask`, ascending; None: all empty.
            run_s: sum of their run times.
            run_max_s: the longest; None: `run_s`.

        Raises:
            UsageError: there are not as many results as chunks.
        """
        if results is not None and len(results) != mask.bit_count():
            raise UsageError(f"{len(results)} results were given for {mask.bit_count()} chunks.")
        live = mask & lot.open
        lot.open ^= live
        if not live:
            return
        if lot.done and lot.exit_status != exit_status:
            self._seal(lot)
        if not lot.done:
            self._done.append(lot)
            lot.exit_status = exit_status
        lot.done |= live
        lot.run_s += run_s
        lot.run_max_s = max(lot.run_max_s, run_s if run_max_s is None else run_max_s)
        self.buffered_count += live.bit_count()
        if results:
            for result in results:
                low = mask & -mask
                mask ^= low
                if result and live & low:
                    lot.results[low.bit_length() - 1] = result
                    self.buffered_bytes += len(result)

    def fail(
        self,
        lot: Lot,
        mask: int,
        reason: str = "",
        *,
        exit_status: int | None = None,
        signal: int | None = None,
        run_s: float = 0.0,
        delay_s: float | None = None,
        is_final: bool = False,
    ) -> None:
        """Enter that the attempt at these chunks failed; of a long reason the end is kept."""
        live = mask & lot.open
        lot.open ^= live
        if live:
            # Half a surrogate pair, as names of files may have, is text that cannot be sent.
            reason = reason.encode(errors="backslashreplace").decode()[-_REASON_LIMIT:]
            failure = Failure(lot.name(live), reason, exit_status, signal, run_s, delay_s, is_final)
            self._failures.append((lot, live, failure))
            self.buffered_count += live.bit_count()

    def release(self, lot: Lot, mask: int) -> None:
        """Enter that these chunks, begun or not, are given back."""
        live = mask & (lot.open | lot.ready)
        if live:
            self._unready(lot, live)
            lot.open &= ~live
            self._releases.append((lot, live))
            self.buffered_count += live.bit_count()

    def release_all(self) -> None:
        """Give back all that has no verdict."""
        for lots in self._lots.values():
            for lot in lots:
                self.release(lot, lot.open | lot.ready)

    # --- the wire -----------------------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """What is to be sent now. Each request with an id gets an answer, which goes to `answer`."""
        requests: list[Request] = []
        if self._unreported:
            begun = [ChunkMask(lot.submission_id, lot.block, lot.open) for lot in self._unreported if lot.open]
            for lot in self._unreported:
                lot.is_reported = False
            self._unreported.clear()
            if begun:
                requests.append(Started(begun))
        for completions, settles in self._take_completions():
            requests.append(self._sending(Complete(self._next_id(), completions), settles, len(completions)))
        if self._failures:
            failures, self._failures = self._failures, []
            fail = Fail(self._next_id(), [failure for _, _, failure in failures])
            requests.append(self._sending(fail, [(lot, mask) for lot, mask, _ in failures]))
        if self._releases:
            releases, self._releases = self._releases, []
            release = Release(self._next_id(), [lot.name(mask) for lot, mask in releases])
            requests.append(self._sending(release, releases))
        again, self._again = self._again, []
        requests += [self._sending(sent.request, sent.settles, sent.completions_count) for sent in again]
        self.buffered_count = self.buffered_bytes = 0
        return requests

    def with_reserve(self, requests: list[Request], reserve: Reserve) -> Request:
        """Join a reserve to the last of `requests` if that completes chunks, else append it; returns the message that stands for it."""
        last = requests[-1] if requests else None
        if not isinstance(last, Complete):
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

    def answer(self, reply: Reply) -> None:
        """Enter the answer to one of `requests`."""
        sent = self._sent.pop(getattr(reply, "id", 0), None)
        if sent is None:
            return
        self.unanswered_count -= sent.completions_count
        if isinstance(reply, ErrorReply):
            error = reply.error()
            if isinstance(error, StorageFull):
                if isinstance(sent.request, CompleteAndReserve):
                    sent = sent._replace(request=Complete(sent.request.id, sent.request.completions))
                self._again.append(sent)
                return
            self.errors.append(error)
        if isinstance(reply, Completed):
            is_completion = isinstance(sent.request, Complete | CompleteAndReserve)
            for refusal in reply.refusals:
                if is_completion and self._retry_part(sent, refusal):
                    continue
                if is_completion or refusal.code not in _RESENT_IGNORED:
                    self._tell(refusal.submission_id, refusal.block, refusal.mask, refusal.code, refusal.message)
        for lot, mask in sent.settles:
            self._forget(lot, mask)

    @property
    def is_settled(self) -> bool:
        """Whether every verdict was sent and answered."""
        return not (self.buffered_count or self._sent or self._again)

    @property
    def is_again_due(self) -> bool:
        """Whether there was no room for some of it, so that it is to be sent again after a while."""
        return bool(self._again or self._sealed)

    def holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        """What is to be taken up again on a new connection, and on what of it work has begun."""
        lots = [lot for lots in self._lots.values() for lot in lots]
        held = [lot.name(mask) for lot in lots if (mask := lot.held & ~lot.revoked)]
        return held, [ChunkMask(lot.submission_id, lot.block, lot.open) for lot in lots if lot.open]

    def reasserted(self, reply: Reply) -> None:
        """Enter the answer to taking up again: what was refused is lost."""
        if isinstance(reply, Completed):
            for refusal in reply.refusals:
                self._revoke(refusal.submission_id, refusal.block, refusal.mask, refusal.code, refusal.message)

    def revoked(self, push: Revoked) -> None:
        """Enter that chunks were taken away."""
        for chunks in push.chunks:
            self._revoke(chunks.submission_id, chunks.block, chunks.mask, push.code, "")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _revoke(self, submission_id: int, block: int, mask: int, code: str, message: str) -> None:
        """Forget what is not begun; what is begun may still be completed unless the chunk is finished or cancelled."""
        for lot in list(self._lots.get((submission_id, block), ())):
            ready = lot.ready & mask
            self._unready(lot, ready)
            begun = lot.open & mask & ~lot.revoked
            lot.revoked |= begun
            gone = ready
            if code != "reservation_lost":
                lot.open &= ~begun
                gone |= begun
            if begun:
                self._tell(submission_id, block, begun, code, message)
            self._forget(lot, gone)

    def _unready(self, lot: Lot, mask: int) -> None:
        ready = lot.ready & mask
        lot.ready ^= ready
        if lot.is_offered:
            self.ready_count -= ready.bit_count()

    def _tell(self, submission_id: int, block: int, mask: int, code: str, message: str) -> None:
        message = message or f"The chunk was taken away ({code})."
        for index in mask_indexes(block, mask):
            self.lost.append(Lost(SubmissionId(submission_id), index, code, message))

    def _forget(self, lot: Lot, mask: int) -> None:
        lot.held &= ~mask
        if not lot.held:
            key = (lot.submission_id, lot.block)
            lots = self._lots.get(key)
            if lots is not None and lot in lots:
                lots.remove(lot)
                if not lots:
                    del self._lots[key]

    def _sending(self, request: Request, settles: list[tuple[Lot, int]], completions_count: int = 0) -> Request:
        self._sent[request.id] = _Sent(request, settles, completions_count)  # type: ignore[union-attr]  # each has one
        self.unanswered_count += completions_count
        return request

    def _retry_part(self, sent: _Sent, refusal: Refusal) -> bool:
        """Send chunks again alone whose completion was refused only because others of it were finished elsewhere."""
        for at, (lot, mask) in enumerate(sent.settles):
            if (lot.submission_id, lot.block) != (
                refusal.submission_id,
                refusal.block,
            ) or mask & refusal.mask != refusal.mask:
                continue
            completion = sent.request.completions[at]  # type: ignore[union-attr]  # only completions are asked for
            results = msgspec.msgpack.decode(completion.results)
            if mask == refusal.mask or refusal.code != "reservation_lost" or results is None:
                return False
            kept = [result for bit, result in zip(_bits(mask), results, strict=True) if refusal.mask >> bit & 1]
            alone = Completion(lot.name(refusal.mask), msgspec.Raw(_encode(kept)), 0.0, 0.0, completion.exit_status)
            self._sealed.append((lot, refusal.mask, alone))
            self.buffered_count += refusal.mask.bit_count()
            sent.settles[at] = (lot, mask & ~refusal.mask)
            return True
        return False

    def _seal(self, lot: Lot) -> None:
        """Make a completion of what is done of a lot."""
        mask, lot.done = lot.done, 0
        results = _NO_RESULTS
        if lot.results:
            kept, lot.results = lot.results, {}
            results = msgspec.Raw(_encode([kept.get(bit, b"") for bit in _bits(mask)]))
        completion = Completion(lot.name(mask), results, lot.run_s, lot.run_max_s, lot.exit_status)
        lot.run_s = lot.run_max_s = 0.0
        self._sealed.append((lot, mask, completion))

    def _take_completions(self) -> Iterator[tuple[list[Completion], list[tuple[Lot, int]]]]:
        """What is done, in portions whose results together stay near `BUFFERED_LIMIT_BYTES`."""
        for lot in self._done:
            if lot.done:
                self._seal(lot)
        self._done.clear()
        sealed, self._sealed = self._sealed, []
        completions: list[Completion] = []
        settles: list[tuple[Lot, int]] = []
        size_bytes = 0
        for lot, mask, completion in sealed:
            if completions and size_bytes + len(completion.results) > BUFFERED_LIMIT_BYTES:
                yield completions, settles
                completions, settles, size_bytes = [], [], 0
            completions.append(completion)
            settles.append((lot, mask))
            size_bytes += len(completion.results)
        if completions:
            yield completions, settles


def _bits(mask: int) -> Iterator[int]:
    """The positions of the bits of `mask`, ascending."""
    return mask_indexes(0, mask)
