"""Lists over shards, page by page: of submissions, dead chunks, schedules and events, and of what runs.

It must not put pages together: `pages` does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from opsq.client.shards.merging.cursors import Cursors, Places
from opsq.client.shards.merging.gathering import Gathering, Members, Q, R
from opsq.client.shards.merging.pages import MergedPage, Piece, merged_page, next_places, rising, share
from opsq.ids import SHARD_MAX
from opsq.wire import messages as m

V = TypeVar("V")


class Submissions(Gathering[m.List, m.Listed]):
    """Submissions, newest first: by id."""

    def ask(self, shards: Sequence[int]) -> dict[int, m.Request]:
        """Each for its part of the page."""
        return dict.fromkeys(shards, replace(self.request, limit=share(self.request.limit, len(shards))))

    def answer(self, answers: dict[int, m.Listed]) -> m.Listed:
        """Their newest."""
        pieces = {
            shard: Piece(
                [((-row.submission_id,), row) for row in listed.submissions],
                None if listed.next_before is None else (-listed.next_before,),
            )
            for shard, listed in answers.items()
        }
        page = merged_page(pieces, self.request.limit)
        return m.Listed(self.request.id, [row for _, row in page.rows], None if page.upto is None else -page.upto[0])


class DeadChunks(Gathering[m.Dead, m.DeadChunks]):
    """Dead chunks, by submission and index."""

    def ask(self, shards: Sequence[int]) -> dict[int, m.Request]:
        """Each for its part of the page."""
        return dict.fromkeys(shards, replace(self.request, limit=share(self.request.limit, len(shards))))

    def answer(self, answers: dict[int, m.DeadChunks]) -> m.DeadChunks:
        """Their first."""
        pieces = {
            shard: Piece([((row.submission_id, row.index), row) for row in found.chunks], found.next_after)
            for shard, found in answers.items()
        }
        page = merged_page(pieces, self.request.limit)
        upto = None if page.upto is None else (page.upto[0], page.upto[1])
        return m.DeadChunks(self.request.id, [row for _, row in page.rows], upto)


class Schedules(Gathering[m.ShowSchedules, m.Schedules]):
    """Schedules by name; of one name that several shards have, all."""

    def answer(self, answers: dict[int, m.Schedules]) -> m.Schedules:
        """Their first."""
        if self.request.name is not None:
            return m.Schedules(self.request.id, [row for found in answers.values() for row in found.schedules])
        pieces = {
            shard: Piece(rows, rows[-1][0] if found.has_more else None)
            for shard, found in answers.items()
            for rows in ([((row.schedule.name,), row) for row in found.schedules],)
        }
        page = merged_page(pieces, self.request.limit)
        return m.Schedules(self.request.id, [row for _, row in page.rows], page.upto is not None)


class _OwnPlaces(Gathering[Q, R]):
    """A list in which each shard goes on at a place of its own.

    A shard that did not answer for one page is not asked for the next ones: what it has would come too late.

    Raises:
        UsageError: the request goes on where nothing is known to.
    """

    def __init__(self, request: Q, members: Members, cursors: Cursors, after: int | None) -> None:
        super().__init__(request, members)
        self._cursors = cursors
        self._starts: Places | None = None if after is None else cursors.places(type(request), after)

    def ask(self, shards: Sequence[int]) -> dict[int, m.Request]:
        """Those that have more."""
        starts = self._starts = (
            dict.fromkeys(shards)
            if self._starts is None
            else {shard: place for shard, place in self._starts.items() if shard in shards}
        )
        limit = self._limit(len(starts))
        return {shard: replace(self.request, after=place, limit=limit) for shard, place in starts.items()}

    @abstractmethod
    def _limit(self, shards_count: int) -> int:
        """How many rows each is asked for."""

    def _number(
        self, page: MergedPage[V], pieces: dict[int, Piece[V]], answers: dict[int, Any], place_of: Any
    ) -> int | None:
        """Of the page behind this one."""
        ends = {shard: answer.next_after for shard, answer in answers.items()}
        places = next_places(page, pieces, self._starts or {}, ends, place_of)
        return self._cursors.number(type(self.request), places)


class Events(_OwnPlaces[m.History, m.HistoryRows]):
    """The history: by instant; of one instant by shard, then in the order of the shard.

    `seq` of a row is that of its shard, with the number of the shard in it, so that no other row has it.
    """

    def __init__(self, request: m.History, members: Members, cursors: Cursors) -> None:
        super().__init__(request, members, cursors, request.after)
        self._sign = -1 if request.newest_first else 1

    def _limit(self, shards_count: int) -> int:
        return share(self.request.limit, shards_count)

    def answer(self, answers: dict[int, m.HistoryRows]) -> m.HistoryRows:
        """What happened first, or last."""
        pieces = {shard: self._piece(shard, found) for shard, found in answers.items()}
        page = merged_page(pieces, self.request.limit)
        rows = [replace(row, seq=row.seq * (SHARD_MAX + 1) + shard) for shard, row in page.rows]
        number = self._number(page, pieces, answers, attrgetter("seq"))
        reached_at = self._sign * page.upto[0] if page.upto else None
        return m.HistoryRows(self.request.id, rows, number, *_about(rows, answers), reached_at)

    def _piece(self, shard: int, found: m.HistoryRows) -> Piece[m.HistoryEvent]:
        sign = self._sign
        instants = rising([sign * row.at for row in found.rows])
        rows = [((at, sign * shard, sign * row.seq), row) for at, row in zip(instants, found.rows, strict=True)]
        if found.next_after is None:
            return Piece(rows, None)
        reached = [sign * found.reached_at] if found.reached_at is not None else []
        if not reached and not instants:
            return Piece(rows, ())
        return Piece(rows, (max(reached + instants), sign * shard, sign * found.next_after))


class RunningChunks(_OwnPlaces[m.Running, m.RunningChunks]):
    """What runs, those first that have run longest; as many as a page may have, since most ask for one page only."""

    def __init__(self, request: m.Running, members: Members, cursors: Cursors) -> None:
        super().__init__(request, members, cursors, None if request.after is None else request.after[0])

    def _limit(self, shards_count: int) -> int:
        return self.request.limit

    def answer(self, answers: dict[int, m.RunningChunks]) -> m.RunningChunks:
        """Those of all."""
        pieces = {shard: self._piece(shard, found) for shard, found in answers.items()}
        page = merged_page(pieces, self.request.limit)
        number = self._number(page, pieces, answers, _place)
        rows = [row for _, row in page.rows]
        upto = None if number is None else (number, 0, 0, 0, 0)
        return m.RunningChunks(self.request.id, rows, upto, *_about(rows, answers))

    def _piece(self, shard: int, found: m.RunningChunks) -> Piece[m.RunningChunk]:
        ages = rising([-row.run_s for row in found.rows])
        rows = [((age, shard, number), row) for number, (age, row) in enumerate(zip(ages, found.rows, strict=True))]
        return Piece(rows, rows[-1][0] if found.next_after is not None else None)


def _place(row: m.RunningChunk) -> tuple[int, int, int, int, int]:
    return row.since_ns, row.reservation_id, row.submission_id, row.block, row.mask


def _about(
    rows: Sequence[m.HistoryEvent | m.RunningChunk], answers: Mapping[int, m.HistoryRows | m.RunningChunks]
) -> tuple[dict[int, dict[str, int | str]], dict[int, str]]:
    """The metadata and the titles of the submissions that rows name."""
    named = {row.submission_id for row in rows}
    metadata = {key: pairs for found in answers.values() for key, pairs in found.metadata.items() if key in named}
    titles = {key: title for found in answers.values() for key, title in found.titles.items() if key in named}
    return metadata, titles
