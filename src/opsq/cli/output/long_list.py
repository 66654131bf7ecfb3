"""Prints lists of any length: whole and page by page for scripts, short for a person, with how many more there are.

It must not fetch what it prints, nor hold more than a page of it where the list is whole.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from opsq.cli.caller import Caller
from opsq.documents.shape import Shape

T = TypeVar("T")

TERMINAL_ROWS = 100
DEFAULT_TEXT = f"by default {TERMINAL_ROWS} on a terminal, and all elsewhere"
_COUNT_MOST = 1000
_COUNT_S = 0.5
"""For how long what a terminal does not get is counted: conditions may fit few of many rows."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """How items are shown.

    Args:
        document: what JSON readers get: an array, and `next` if the list can go on behind an item.
        shape: makes a JSON object of an item.
        row: makes a row of an item, for the caller.
        instant: the column of instants.
        title: what is above the rows on a terminal.
        next_of: what `next` has, made of the last item; None: there is no such field, or nothing can go on behind it.
        going_on: the option that goes on behind the last item, such as `--before`.
    """

    document: type[Shape]
    columns: Sequence[str]
    right: frozenset[str]
    shape: Callable[[T], object]
    row: Callable[[Caller, T], Sequence[object]]
    instant: str
    next_of: Callable[[T], int | None] | None = None
    going_on: str = ""
    title: str = ""


def print_list(caller: Caller, pages: Iterable[Sequence[T]], listing: Listing[T], limit: int | None) -> None:
    """Print the items of the pages, of which some may be empty; at most `limit`, None: as many as fit the reader."""
    if caller.is_rich and limit is None:
        limit = TERMINAL_ROWS
    source = _Source(pages)
    shown = source.take(limit)
    if caller.is_json:
        _print_document(shown, source, listing)
    elif caller.is_rich:
        items = [item for page in shown for item in page]
        columns = [caller.heading(name) if name == listing.instant else name for name in listing.columns]
        rows = [listing.row(caller, item) for item in items]
        caller.table(columns, rows, title=listing.title, right=listing.right)
        if items:
            caller.remark(_remark(items[-1], listing, *source.count_rest(_COUNT_MOST)))
    else:
        for page in shown:
            caller.table(listing.columns, [listing.row(caller, item) for item in page])


class _Source(Generic[T]):
    """Pages, of which the first items are taken."""

    def __init__(self, pages: Iterable[Sequence[T]]) -> None:
        self._pages = iter(pages)
        self._left_count = 0

    def take(self, limit: int | None) -> Iterator[Sequence[T]]:
        """The pages, cut so that they hold `limit` items."""
        for page in self._pages:
            if limit is not None and len(page) >= limit:
                self._left_count = len(page) - limit
                yield page[:limit]
                return
            limit = None if limit is None else limit - len(page)
            yield page

    def count_rest(self, most: int) -> tuple[int, bool]:
        """How many items were not taken, and whether that is all; counted up to `most`, and not for long."""
        end = time.monotonic() + _COUNT_S
        while self._left_count < most and time.monotonic() < end:
            page = next(self._pages, None)
            if page is None:
                return self._left_count, True
            self._left_count += len(page)
        return self._left_count, False


def _remark(last: T, listing: Listing[T], count: int, is_all: bool) -> str:
    """What tells a person how many more there are, and how to see them; "" if there are none."""
    if is_all and not count:
        return ""
    if is_all:
        there = f"There {'is' if count == 1 else 'are'} {count} more"
    else:
        there = f"There are at least {count} more" if count else "There may be more"
    there += "; a pipe, such as `| less`, gets the whole list"
    if listing.next_of and (following := listing.next_of(last)) is not None:
        there += f", and `{listing.going_on} {following}` goes on here"
    return f"{there}."


def _print_document(shown: Iterator[Sequence[T]], source: _Source[T], listing: Listing[T]) -> None:
    """Print the JSON document piece by piece, on one line."""
    out = sys.stdout.buffer
    sys.stdout.flush()
    out.write(b'{"%s":[' % listing.document.__struct_fields__[0].encode())
    last: T | None = None
    for page in shown:
        for item in page:
            out.write((b"," if last is not None else b"") + msgspec.json.encode(listing.shape(item)))
            last = item
    ending = b"]"
    if listing.next_of is not None:
        has_more = last is not None and source.count_rest(1) != (0, True)
        following = listing.next_of(last) if last is not None and has_more else None
        ending += b',"next":' + msgspec.json.encode(None if following is None else str(following))
    out.write(ending + b"}\n")
    out.flush()
