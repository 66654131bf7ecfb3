"""Puts pages of many shards together to one, in order: no row twice, none lost, and never more than a page in memory.

A page of a shard may be short, or empty, and yet have others behind it. So a merged page ends at the lowest of the
places up to which the shards have looked; what is beyond is cut off, and asked for again. It must not know what rows
are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")

Key = tuple[Any, ...]
"""What rows are sorted by: comparable among shards."""

PAGE_BYTES = 4 << 20
"""A page ends with the row in which its reasons become longer, since a frame has an end."""
_LEAST_ROWS = 100


class Piece(NamedTuple, Generic[R]):
    """The page of one shard. `upto`: all rows with this key or a lower one are in it; None: it was the last page."""

    rows: Sequence[tuple[Key, R]]
    upto: Key | None


class MergedPage(NamedTuple, Generic[R]):
    """Rows in order, each with its shard. `upto` as in `Piece`."""

    rows: list[tuple[int, R]]
    upto: Key | None


def share(limit: int, shards_count: int) -> int:
    """How many rows each shard is asked for: twice its part, so that little is asked for again."""
    return min(limit, max(_LEAST_ROWS, 2 * limit // max(shards_count, 1)))


def merged_page(pieces: Mapping[int, Piece[R]], limit: int) -> MergedPage[R]:
    """The rows that all shards have told of, at most `limit`, but all or none of those with the same key."""
    upto = min((piece.upto for piece in pieces.values() if piece.upto is not None), default=None)
    rows = [(key, shard, row) for shard, piece in pieces.items() for key, row in piece.rows]
    known = sorted((each for each in rows if upto is None or each[0] <= upto), key=itemgetter(0, 1))
    found: list[tuple[int, R]] = []
    last: Key = ()
    size_bytes = 0
    for key, same in groupby(known, itemgetter(0)):
        new = [(shard, row) for _, shard, row in same]
        if found and (len(found) + len(new) > limit or size_bytes > PAGE_BYTES):
            return MergedPage(found, last)
        found += new
        size_bytes += sum(len(getattr(row, "reason", "")) for _, row in new)
        last = key
    return MergedPage(found, upto)


def rising(keys: Iterable[Any]) -> list[Any]:
    """Keys of one shard, none lower than the one before: a clock may have been set back, but its order holds."""
    found: list[Any] = []
    for key in keys:
        found.append(max(key, found[-1]) if found else key)
    return found


def next_places(
    page: MergedPage[R],
    pieces: Mapping[int, Piece[R]],
    starts: Mapping[int, Any],
    ends: Mapping[int, Any],
    place_of: Callable[[R], Any],
) -> dict[int, Any]:
    """Where each shard goes on behind a merged page, by shard that has more.

    Args:
        starts: where the pages of the shards began.
        ends: where they go on behind their own pages; None: nowhere.
        place_of: the place of a row at its own shard.
    """
    last = dict(page.rows)
    found = {}
    for shard, piece in pieces.items():
        if not piece.rows or (shard in last and last[shard] is piece.rows[-1][1]):
            place = ends[shard]
            if place is None:
                continue
        else:
            place = place_of(last[shard]) if shard in last else starts[shard]
        found[shard] = place
    return found
