"""Requests about chunks that are held: complete, fail, release, extend, reclaim; each is answered after the commit.

And what has started. Must not judge them: completions, failures, reservations and leases do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from opsq.clock import Now
from opsq.errors import UsageError
from opsq.queue.batch import acting
from opsq.queue.chunks.complete import Completions
from opsq.queue.chunks.fail import Failures
from opsq.queue.chunks.follow_ups import FollowUps
from opsq.queue.chunks.leases import Leases
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire import messages as m
from opsq.wire.messages import NO_RESULTS

_decode: Callable[[msgspec.Raw], list[Any]] = msgspec.msgpack.Decoder(m.ResultEntries).decode
_decode_inline: Callable[[msgspec.Raw], list[bytes]] = msgspec.msgpack.Decoder(m.InlineEntries).decode


class ChunkRequests:
    """Answers requests about chunks that are held."""

    def __init__(
        self,
        state: EngineState,
        completions: Completions,
        failures: Failures,
        reservations: Reservations,
        leases: Leases,
        reserve_calls: ReserveCalls,
        follow_ups: FollowUps,
    ) -> None:
        self._state = state
        self._completions = completions
        self._failures = failures
        self._reservations = reservations
        self._leases = leases
        self._reserve_calls = reserve_calls
        self._follow_ups = follow_ups
        self._begun: dict[tuple[Peer, int], list[m.ChunkMask]] = {}
        """What a connection says to have started while its reclaim waits, by that request: it may be what it gets."""

    def complete(self, peer: Peer, request: m.Complete, now: Now) -> None:
        """Complete chunks; answered after the commit.

        Raises:
            UsageError: results are not what can be read again, or a follow-up cannot be made; nothing is completed.
            Conflict: a follow-up was withdrawn; likewise.
            StorageFull: there is no room for follow-ups; likewise.
        """
        _check_results(request.completions)
        self._complete(peer, request, request.completions, [], [], now)

    def _complete(
        self,
        peer: Peer,
        request: m.Complete | m.CompleteAndReserve,
        completions: list[m.Completion],
        refusals: list[m.Refusal],
        created: list[m.Created],
        now: Now,
    ) -> None:
        self._follow_ups.check(completions, now)  # again, if something else had to be committed first
        undecided = self._completions.complete(peer, completions, refusals, created, now)
        if undecided:
            self._postpone(
                peer, request, lambda now: self._complete(peer, request, undecided, [*refusals], [*created], now)
            )
            return
        batch = self._state.batch
        batch.replies.append((peer, m.Completed(request.id, refusals, [], created)))
        if isinstance(request, m.CompleteAndReserve):
            batch.following.append((peer, request))

    def _postpone(
        self,
        peer: Peer,
        request: m.Complete | m.CompleteAndReserve | m.Extend | m.Fail | m.Reclaim,
        action: Callable[[Now], None],
    ) -> None:
        """Go on with a request when all that is being committed now has been."""
        batch = self._state.batch

        def go_on(now: Now) -> None:
            self._state.batch.again.append((acting(action), peer, request))
            self._state.attempt(peer, request.id, lambda: action(now))

        batch.after.append(go_on)
        batch.on_failed.append(lambda error: self._state.reply(peer, m.ErrorReply.of(request.id, error)))

    def complete_and_reserve(self, peer: Peer, request: m.CompleteAndReserve, now: Now) -> None:
        """Complete chunks and, once that is committed, reserve."""
        self._reserve_calls.plan(request.strategy)
        _check_results(request.completions)
        self._complete(peer, request, request.completions, [], [], now)

    def fail(self, peer: Peer, request: m.Fail, now: Now) -> None:
        """Count failed attempts; answered after the commit, the last if there are more than one batch has room for."""
        self._fail(peer, request, request.failures, [], [], now)

    def _fail(
        self,
        peer: Peer,
        request: m.Fail,
        failures: list[m.Failure],
        refusals: list[m.Refusal],
        counted: list[m.AfterFailure],
        now: Now,
    ) -> None:
        rest = self._failures.fail(failures, refusals, counted, now)
        if rest:
            self._postpone(peer, request, lambda now: self._fail(peer, request, rest, [*refusals], [*counted], now))
            return
        self._state.batch.replies.append((peer, m.Completed(request.id, refusals, counted)))

    def release(self, peer: Peer, request: m.Release, now: Now) -> None:
        """Give chunks back."""
        refusals = self._reservations.release(request.held, now)
        self._state.batch.replies.append((peer, m.Completed(request.id, refusals)))

    def release_consumer(self, peer: Peer, request: m.ReleaseConsumer, now: Now) -> None:
        """Give back what another consumer holds."""
        count = self._reservations.release_consumer(request.consumer, now)
        self._state.batch.replies.append((peer, m.Changed(request.id, count)))

    def extend(self, peer: Peer, request: m.Extend, now: Now) -> None:
        """Move deadlines: of what is still held once all that is being committed now has been."""
        if self._reservations.is_settling(request.held):
            self._postpone(peer, request, lambda now: self.extend(peer, request, now))
            return
        refusals = self._reservations.extend(request.held, request.lease_s, now)
        self._state.batch.replies.append((peer, m.Completed(request.id, refusals)))

    def reclaim(self, peer: Peer, request: m.Reclaim, now: Now) -> None:
        """Reclaim what was held before a reconnect."""
        key = peer, request.id
        begun = self._begun.pop(key, [])
        if self._reservations.is_settling(request.held):
            self._begun[key] = begun
            self._postpone(peer, request, lambda now: self.reclaim(peer, request, now))
            self._state.batch.on_failed.append(lambda _: self._begun.clear())
            return
        refusals = self._leases.reclaim(peer, request.held, request.lease_s, now)
        self._reservations.start(peer, begun, now)
        self._state.batch.replies.append((peer, m.Completed(request.id, refusals)))

    def start(self, peer: Peer, request: m.Started, now: Now) -> None:
        """Note that work has started: also, while a reclaim of the connection waits, on what that will get."""
        self._reservations.start(peer, request.chunks, now)
        for (claimant, _), begun in self._begun.items():
            if claimant is peer:
                begun.extend(request.chunks)


def _check_results(completions: list[m.Completion]) -> None:
    """Refuse results that nobody could read: they are stored as they came."""
    for completion in completions:
        results = completion.results
        if results == NO_RESULTS:
            continue
        try:
            found = _decode_inline(results)
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors too
            found = _decode_mixed(completion)
        count = completion.held.mask.bit_count()
        if len(found) != count:
            raise _bad_results(completion, f"Expected {count} entries, got {len(found)}")


def _decode_mixed(completion: m.Completion) -> list[Any]:
    """Results of which some are large, and in the store."""
    try:
        found = _decode(completion.results)
    except (ValueError, RecursionError) as error:
        raise _bad_results(completion, str(error)) from error
    if any(type(entry) is bytes and len(entry) > m.RESULT_INLINE_BYTES for entry in found):
        raise _bad_results(completion, f"Expected at most {m.RESULT_INLINE_BYTES} bytes; more go into the store")
    return found


def _bad_results(completion: m.Completion, complaint: str) -> UsageError:
    held = completion.held
    return UsageError(cause="bad_results", submission_id=held.submission_id, block=held.block, complaint=complaint)
