"""Events for programs: what people want to be told, page by page, or as an iterator that goes on as they come.

This file makes the requests; who sends them, blocking or awaited, is another matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from opsq.client.core.administration import AsyncCaller, Caller
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Event, EventRows, Events


class EventCalls:
    """The events of a queue."""

    link: Caller

    def event_page(
        self,
        since: int | None = None,
        *,
        limit: int = 1000,
        wait_s: float | None = 0.0,
        kinds: Iterable[str] = (),
        since_at: int | None = None,
    ) -> EventRows:
        """The next events behind a cursor: the `seq` of the last event, or the `next_since` of the last page.

        An event of kind `lost` says that some are not kept any more.

        Args:
            since: the cursor; None: from the oldest event that is kept.
            limit: at most so many, up to 1000.
            wait_s: how long to wait for one, in seconds; None: until there is one.
            kinds: only these; empty: all.
            since_at: the `at` of that event, or the `next_at` of that page, in ms since 1970: so the cursor of a queue
                that was put back to an older state is known, and answered with `lost`; None: not compared.

        Raises:
            UsageError: a value is out of its range.
        """
        request = checked(Events(self.link.next_id(), since, limit, wait_s, list(kinds), since_at))
        return self.link.call(request, EventRows)

    def events(
        self,
        since: int | None = None,
        *,
        follow: bool = False,
        kinds: Iterable[str] = (),
        since_at: int | None = None,
    ) -> Iterator[Event]:
        """Iterate over events behind a cursor, up to now, or with `follow` for ever; see `event_page`.

        Who keeps the `seq` and the `at` of the last event it has dealt with goes on there, whatever was killed.
        """
        kinds, last = list(kinds), None
        while follow or last is None or (since or 0) < last:
            page = self.event_page(since, wait_s=None if follow else 0.0, kinds=kinds, since_at=since_at)
            yield from page.events
            since, since_at = page.next_since, page.next_at
            last = page.last_seq if last is None else last


class AsyncEventCalls:
    """The same, awaited; see `EventCalls`."""

    link: AsyncCaller

    async def event_page(
        self,
        since: int | None = None,
        *,
        limit: int = 1000,
        wait_s: float | None = 0.0,
        kinds: Iterable[str] = (),
        since_at: int | None = None,
    ) -> EventRows:
        """The next events behind a cursor; see `EventCalls.event_page`."""
        request = checked(Events(self.link.next_id(), since, limit, wait_s, list(kinds), since_at))
        return await self.link.call(request, EventRows)

    async def events(
        self,
        since: int | None = None,
        *,
        follow: bool = False,
        kinds: Iterable[str] = (),
        since_at: int | None = None,
    ) -> AsyncIterator[Event]:
        """Iterate over events behind a cursor; see `EventCalls.events`."""
        kinds, last = list(kinds), None
        while follow or last is None or (since or 0) < last:
            page = await self.event_page(since, wait_s=None if follow else 0.0, kinds=kinds, since_at=since_at)
            for event in page.events:
                yield event
            since, since_at = page.next_since, page.next_at
            last = page.last_seq if last is None else last
