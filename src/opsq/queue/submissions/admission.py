"""Admission of submissions: how many chunks may be unfinished, how much of the disk must stay free, and who waits.

Must not delay anything but submissions; it is notified of each batch that was committed.

First come, first served: while a submission waits, no other is admitted, even if it would fit. Otherwise a large one
would wait for as long as small ones come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from opsq.clock import MonoNs, Now, after
from opsq.errors import NoRoom, QueueDraining, Refused
from opsq.filesystem import space
from opsq.ids import SubmissionId
from opsq.queue.batch import Batch, acting
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.timers import Timers
from opsq.store import history, lanes, removals
from opsq.wire.messages import Capacity, CheckCapacity, ErrorReply, Submit


class _Waiting:
    """A request that waits for room."""

    __slots__ = ("admit", "content_bytes", "due", "needed", "peer", "request")

    def __init__(
        self,
        peer: Peer,
        request: Submit | CheckCapacity,
        needed: Callable[[], int | None],
        admit: Callable[[Now], None],
        due: MonoNs | None,
    ) -> None:
        self.peer = peer
        self.request = request
        self.needed = needed
        self.admit = admit
        self.due = due
        self.content_bytes = _content_bytes(request)


class Admission:
    """Lets submissions in.

    Args:
        folders: whose file systems must keep `min_free_bytes` free: first that of the database, then that of the
            content if it is local.
    """

    def __init__(self, state: EngineState, folders: Sequence[Path]) -> None:
        self._state = state
        self._folders = tuple(map(str, folders))  # each submission asks for their space
        self._line: dict[tuple[Peer, int], _Waiting] = {}
        self._places: dict[Peer, dict[int, None]] = {}
        """The requests of a connection that are in the line."""
        self._deadlines: Timers[tuple[Peer, int]] = Timers()
        self._backlog_count = 0
        self._accepted_count = 0
        """Chunks of submissions that are being committed."""

    def restore(self) -> None:
        """Count what is unfinished, of what was folded and of what was not when the last process ended.

        A submission is final when its removal begins; but what was not folded by then never reaches the counters of its
        lanes.
        """
        state = self._state
        for _, lane in lanes.counts(state.reader, ""):
            self._backlog_count = (
                lane.total - lane.completed - lane.dead - lane.skipped - sum(state.unfolded_completed.values())
            )
        self._backlog_count -= removals.unfinished_count(state.reader)

    def __len__(self) -> int:
        return len(self._line)

    def has_waiting(self, request_key: bytes) -> bool:
        """Whether a request waits for room. Cost: a look at each that waits."""
        return any(
            new.request_key == request_key
            for waiting in self._line.values()
            if isinstance(waiting.request, Submit)
            for new in waiting.request.submissions
        )

    @property
    def limit(self) -> int | None:
        """How many chunks may be unfinished; None: any number."""
        return self._state.policy.max_backlog_chunks or None

    def disk_free_bytes(self) -> int | None:
        """What is left on the fullest of the file systems; None if unknown."""
        return min((found.free_bytes for found in map(space, self._folders) if found is not None), default=None)

    # --- requests ---

    def found(
        self, peer: Peer, request: CheckCapacity, known: SubmissionId | None, moved_to: int | None = None
    ) -> None:
        """Answer a producer that there is room, or that a submission with its key is known, or has moved."""
        limit = self.limit
        left_count = None if limit is None else max(limit - self._backlog_count - self._accepted_count, 0)
        self._state.reply(peer, Capacity(request.id, left_count, known, moved_to, sorted(self._state.makers)))

    def enter(
        self,
        peer: Peer,
        request: Submit | CheckCapacity,
        most: int,
        needed: Callable[[], int | None],
        admit: Callable[[Now], None],
        now: Now,
    ) -> None:
        """Admit a request: now, or, if it wants to wait, as soon as there is room for it and for those before it.

        Args:
            most: for how many more chunks it needs room at most.
            needed: for how many it does, which takes some look-ups to know; None: it brings nothing new.

        Raises:
            NoRoom: there is none; also if there can never be any.
            QueueDraining: it brings something new, and the daemon takes nothing new.
        """
        if not self._state.takes_new and needed() is not None:
            raise _drained()
        is_next = not self._line
        lack = self._lack(most, _content_bytes(request))
        if is_next and lack is None:
            admit(now)
            return
        count = needed()
        if count is not None and count < most:
            lack = self._lack(count, _content_bytes(request))
        if count is None or (is_next and lack is None):
            admit(now)
            return
        limit = self.limit
        if limit is not None and count > limit:
            raise NoRoom(cause="over_backlog", chunks=count, limit=limit)
        if request.wait_s == 0:
            raise lack or self._others()
        peer.check_parked(request.id)
        peer.parked_ids.add(request.id)
        due = after(now.mono, request.wait_s) if request.wait_s is not None else None
        self._line[peer, request.id] = _Waiting(peer, request, needed, admit, due)
        self._places.setdefault(peer, {})[request.id] = None
        if due is not None:
            self._deadlines.add(due, (peer, request.id))

    def cancel_wait(self, peer: Peer, request_id: int) -> None:
        """The producer does not want to wait any longer."""
        if (peer, request_id) in self._line:
            self._refuse(peer, request_id)

    def disconnect(self, peer: Peer) -> None:
        """Forget what a connection waited for."""
        for request_id in list(self._places.get(peer, ())):
            self._leave(peer, request_id)

    def check_room(self, chunks_count: int) -> None:
        """`NoRoom` or `StorageFull` unless so many chunks may come in now, whoever waits for room."""
        lack = self._lack(chunks_count, 0)
        if lack is not None:
            raise lack

    # --- news ---

    def accept(self, batch: Batch, chunks_count: int) -> None:
        """A submission is part of a batch from now on: its chunks count."""
        batch.accepted_count += chunks_count
        self._accepted_count += chunks_count

    def ended(self, batch: Batch, *, is_committed: bool) -> None:
        """A batch was committed, or is gone. Cost: the rows of its history, if there is a limit."""
        self._accepted_count -= batch.accepted_count
        if is_committed and self.limit is not None:
            _, total, _, dead, skipped = batch.lane_counts.get(lanes.ALL, (0, 0, 0, 0, 0))
            self._backlog_count += total - dead - skipped - batch.hidden_count
            self._backlog_count -= sum(row.mask.bit_count() for row in batch.history if row.event == history.COMPLETED)

    def serve(self, now: Now) -> None:
        """Admit those for whom there is room now, the longest waiting first."""
        while self._line and not self._state.is_full:
            place, waiting = next(iter(self._line.items()))
            count = waiting.needed()
            if count is not None and not self._state.takes_new:
                self._leave(*place)
                self._state.reply(waiting.peer, ErrorReply.of(waiting.request.id, _drained()))
                continue
            if count is not None and self._lack(count, waiting.content_bytes) is not None:
                return
            self._leave(*place)
            batch = self._state.batch
            answers_count = batch.answers_count
            self._state.attempt(waiting.peer, waiting.request.id, partial(waiting.admit, now))
            if batch.answers_count > answers_count:
                batch.again.append((acting(waiting.admit), waiting.peer, waiting.request))

    def tick(self, now: Now) -> None:
        """Refuse those whose time is over, and check whether the disk has room again: no event reports that."""
        self.serve(now)
        for peer, request_id in self._deadlines.take(now.mono):
            waiting = self._line.get((peer, request_id))
            if waiting is not None and waiting.due is not None and waiting.due <= now.mono:
                self._refuse(peer, request_id)

    def next_due(self) -> MonoNs | None:
        """When `tick` has somebody to refuse."""
        return self._deadlines.next_due()

    # --- inside ---

    def _leave(self, peer: Peer, request_id: int) -> _Waiting:
        waiting = self._line.pop((peer, request_id))
        peer.parked_ids.remove(request_id)
        places = self._places[peer]
        del places[request_id]
        if not places:
            del self._places[peer]
        if waiting.due is not None:
            self._deadlines.discard(waiting.due, (peer, request_id))
        return waiting

    def _refuse(self, peer: Peer, request_id: int) -> None:
        waiting = self._leave(peer, request_id)
        error = self._lack(waiting.needed() or 0, waiting.content_bytes) or self._others()
        self._state.reply(peer, ErrorReply.of(request_id, error))

    def _lack(self, chunks_count: int, content_bytes: int) -> Refused | None:
        """Why there is no room for so much; None: there is."""
        if self._state.is_full:
            return self._state.no_room()
        limit = self.limit
        there = self._backlog_count + self._accepted_count
        if limit is not None and chunks_count and there + chunks_count > limit:
            return NoRoom(cause="backlog", chunks=chunks_count, unfinished=there, limit=limit)
        policy = self._state.policy
        for number, folder in enumerate(self._folders) if policy.min_free_bytes != 0 else ():
            wanted_bytes = content_bytes if number == len(self._folders) - 1 and number else 0
            found = space(folder)
            if found is not None and found.free_bytes - wanted_bytes < policy.floor_bytes(found.total_bytes):
                lack = NoRoom(
                    cause="disk_for_content" if wanted_bytes else "disk",
                    folder=folder,
                    free_bytes=found.free_bytes,
                    wanted_bytes=wanted_bytes,
                    floor_bytes=policy.floor_bytes(found.total_bytes),
                )
                return self._state.with_removable(lack)
        return None

    def _others(self) -> NoRoom:
        return NoRoom(cause="queue_for_room", waiting=len(self._line))


def _drained() -> QueueDraining:
    return QueueDraining(cause="drained")


def _content_bytes(request: Submit | CheckCapacity) -> int:
    return request.content_bytes if isinstance(request, CheckCapacity) else 0
