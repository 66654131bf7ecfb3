"""Which chunks are being worked on, by whom, and for how long: read from the reservations in memory, page by page.

It must not judge what a reservation means; that is for those who end it.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsq.clock import Now
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import Part
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import lanes, submissions
from opsq.wire.messages import Running, RunningChunk, RunningChunks

_Place = tuple[int, int, int, int, int]
"""Since when, reservation, submission, block, chunks: the order of the pages."""


class RunningView:
    """Answers the question what runs."""

    def __init__(self, state: EngineState, reservations: Reservations) -> None:
        self._state = state
        self._reservations = reservations

    def running(self, peer: Peer, request: Running, now: Now) -> None:
        """Answer with a page of chunks, those first that have run longest.

        Raises:
            NotFound: there is no such submission.

        Cost: the reservations, up to the first that is younger than all of the page.
        """
        if request.submission_id is not None:
            self._state.find(request.submission_id)
        page = self._page(request)
        more = page[request.limit :]
        del page[request.limit :]
        rows = [_row(place, part, now) for place, part in page]
        pairs = {
            part.submission.id: {key: value for key, (_, value) in part.submission.lane_of.items()} for _, part in page
        }
        titles = submissions.titles(self._state.reader, pairs)
        self._state.reply(
            peer,
            RunningChunks(
                request.id,
                rows,
                page[-1][0] if more else None,
                {submission_id: metadata for submission_id, metadata in pairs.items() if metadata},
                titles,
            ),
        )

    def _page(self, request: Running) -> list[tuple[_Place, Part]]:
        """The rows of the page and, if there is any, one behind it."""
        wanted = frozenset(lanes.find(self._state.reader, key, value) for key, value in request.metadata.items())
        found: list[tuple[_Place, Part]] = []
        count = request.limit + 1
        latest: int | None = None
        for reservation in self._reservations.all():  # oldest first, and nothing begins before it is reserved
            if latest is not None and reservation.granted_at.mono > latest:
                break
            for part in reservation.parts.values():
                submission = part.submission
                if request.submission_id not in (None, submission.id) or (wanted and not wanted <= submission.lanes):
                    continue
                for since, mask in _begun(part):
                    if latest is not None and since > latest:
                        continue
                    place = (since, reservation.id, submission.id, part.work.index, mask)
                    if request.after is None or place > request.after:
                        found.append((place, part))
            if len(found) >= 2 * count:
                latest = _cut(found, count)
        _cut(found, count)
        return found


def _cut(found: list[tuple[_Place, Part]], count: int) -> int | None:
    """Leave the first rows, in order; since when the last of them runs."""
    found.sort(key=lambda row: row[0])
    del found[count:]
    return found[-1][0][0] if found else None


def _begun(part: Part) -> Iterator[tuple[int, int]]:
    """Since when which chunks of a part are worked on; of a lease nobody says, so since they were reserved.

    What has a verdict that is not committed yet runs no more.
    """
    is_untold = part.reservation.is_lease and not part.reservation.is_for_restart
    left = (part.mask if is_untold else part.started) & ~part.work.settling
    for since, mask in reversed(part.begun):
        if mask & left:
            yield since, mask & left
            left &= ~mask
    if left:
        yield part.reservation.granted_at.mono, left


def _row(place: _Place, part: Part, now: Now) -> RunningChunk:
    reservation, peer = part.reservation, part.reservation.peer
    return RunningChunk(
        part.submission.id,
        part.work.index,
        place[4],
        part.attempt,
        reservation.consumer,
        peer.host if peer is not None else "",
        peer.pid if peer is not None and peer.is_connected else 0,
        max(now.mono - place[0], 0) / 1e9,
        not reservation.granted_at.wall,
        place[0],
        reservation.id,
    )
