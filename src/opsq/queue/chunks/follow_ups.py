"""Follow-ups: submissions that come with the completion of a chunk, and are made in its commit or not at all.

A chunk is completed once, however often it was worked on and reported, so its follow-ups are made once, too. They come
in whether there is room or not: a completion that waited for room would keep what makes room from being completed.
Must not know what a completion is accepted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opsq.clock import Now
from opsq.errors import UsageError
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire.messages import Completion, Created, NewSubmission


class FollowUps:
    """Makes follow-ups.

    Args:
        check: makes sure that a submission can be made.
        submit: makes one with the batch.
    """

    def __init__(
        self,
        state: EngineState,
        check: Callable[[NewSubmission, Now], None],
        submit: Callable[[Peer, NewSubmission, Now], Created],
    ) -> None:
        self._state = state
        self._check = check
        self._submit = submit

    def check(self, completions: Iterable[Completion], now: Now) -> None:
        """Make sure that all follow-ups of these completions can be made.

        Raises:
            UsageError: one cannot be, or a completion that has some is of several chunks.
            Conflict: one was withdrawn, or its request key has made another.
            NotFound: one is to wait for what is not there.
            StorageFull: nothing comes in now.
        """
        for completion in completions:
            if not completion.then:
                continue
            held = completion.held
            if held.mask.bit_count() != 1:
                raise UsageError(
                    cause="follow_ups_of_many",
                    submission_id=held.submission_id,
                    block=held.block,
                    chunks=held.mask.bit_count(),
                )
            if self._state.is_full:
                raise self._state.no_room()
            for new in completion.then:
                self._check(new, now)

    def make(self, peer: Peer, completion: Completion, now: Now) -> list[Created]:
        """Make the follow-ups of a completion that was accepted."""
        return [self._submit(peer, new, now) for new in completion.then]
