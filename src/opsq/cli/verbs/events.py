"""The verb events: what people want to be told, as it comes, with a cursor to go on from.

It must not decide what an event is.
"""

from __future__ import annotations

import sys

from opsq.cli.caller import Caller
from opsq.cli.cursor_file import CursorFile
from opsq.cli.event_feed import NOW, OLDEST, Feed, cursor, open_feed
from opsq.cli.output.readers import is_read
from opsq.documents.event_cursor import EventCursor
from opsq.documents.events import EventDocument
from opsq.options import values
from opsq.options.option import COUNT, OneOf, option
from opsq.units import format_instant
from opsq.wire.messages import EVENT_KINDS, Event

_KINDS = OneOf(EVENT_KINDS[:-1])
"""`lost` comes unasked."""
_KINDS_TEXT = f"Only these kinds: {', '.join(_KINDS.words)}."
_LOOK_S = 5.0
"""How often a follower makes sure that somebody still reads."""


def events(
    caller: Caller,
    follow: bool = option("-f, --follow", "Go on with new events as they come, also when the daemon is restarted."),
    since: EventCursor | None = option("--since CURSOR|now|oldest", "Only events behind this one.", cursor),
    cursor_file: str | None = option(
        "--cursor-file FILE", "Go on behind the cursor in this file, and keep it up to date with what was printed."
    ),
    kinds: list[str] = option("--kind KIND...", _KINDS_TEXT, _KINDS),
    limit: int | None = option("-n, --limit N", "End after this number of events.", COUNT),
) -> None:
    """Print what has happened, oldest first: cursor, time, kind, subject, sentence; with --json, a document a line.

    These are the ends of submissions, dead chunks, pauses, and what schedules have fired or missed. Events are kept for
    a while (event_days, event_rows); a reader that comes too late gets an event of kind lost.
    """
    values.exclude(since=since, cursor_file=cursor_file)
    kept = CursorFile(cursor_file) if cursor_file is not None else None
    with open_feed(caller, is_lasting=follow) as feed:
        if kept is not None:
            since = kept.cursor
        elif since == NOW:
            since = feed.newest()
        elif since == OLDEST:
            since = None
        _print(caller, feed, since, kept, kinds, limit, follow=follow)


def _print(
    caller: Caller,
    feed: Feed,
    since: EventCursor | None,
    kept: CursorFile | None,
    kinds: list[str],
    left: int | None,
    *,
    follow: bool,
) -> None:
    last: int | None = None
    while follow or last is None or since is None or since.seq < last:
        rows_count = 1000 if left is None else min(left, 1000)
        page = feed.page(since, rows_count, _LOOK_S if follow else 0.0, kinds)
        shown = page.events if left is None else page.events[:left]
        for event in shown:
            _print_one(caller, event)
        sys.stdout.flush()
        if not is_read(sys.stdout):
            return
        since = EventCursor.behind(page) if shown == page.events else EventCursor(shown[-1].seq, shown[-1].at)
        last = page.last_seq if last is None else last
        if kept is not None:
            kept.keep(since)
        if left is not None:
            left -= len(shown)
            if not left:
                return


def _print_one(caller: Caller, event: Event) -> None:
    shape = EventDocument.of(event)
    if caller.is_json:
        caller.document(shape)
    elif caller.is_rich:
        caller.lines([f"{caller.instant(event.at)}  {event.kind:<9}  {caller.reworded(shape.text)}"])
    else:
        caller.lines(["\t".join((shape.cursor, format_instant(event.at), shape.kind, shape.subject, shape.text))])
