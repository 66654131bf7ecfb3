"""What keeps a queue in order, for programs: its history, a copy of its database, a check, and what frees room.

This file makes the requests; who sends them, blocking or awaited, is another matter.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from opsq.client.core.administration import AsyncCaller, Caller
from opsq.client.core.arguments import converted, pairs, path
from opsq.client.core.new_submission import Moment, to_ms
from opsq.errors import UsageError
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import (
    Backup,
    Changed,
    Check,
    Checked,
    History,
    HistoryEvent,
    HistoryFilter,
    HistoryRows,
    Prune,
    Vacuum,
)


class HistoryConditions(TypedDict, total=False):
    """Which rows of the history: all conditions must hold; what is empty or None always does."""

    submission_id: int | None
    index: int | None
    events: Sequence[str]
    consumer: str
    metadata: Mapping[str, int | str] | None
    from_at: Moment | None
    to_at: Moment | None
    reason: str
    exit_statuses: Sequence[int]
    signals: Sequence[int]


def history_filter(conditions: HistoryConditions) -> HistoryFilter:
    """The conditions as the daemon takes them.

    Raises:
        UsageError: a value is out of its range, or an instant has no zone.
    """
    fields: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
    if "metadata" in fields:
        fields["metadata"] = pairs("metadata", fields["metadata"])
    for bound in fields.keys() & {"from_at", "to_at"}:
        fields[bound] = to_ms(fields[bound])
    for name in fields.keys() & {"events", "exit_statuses", "signals"}:
        fields[name] = converted(name, fields[name], _list, "a list")
    return HistoryFilter(**fields)


def _list(values: object) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError
    return list(values)


def _prune(request_id: int, older_than_s: float | None, keep: int | None) -> Prune:
    if older_than_s is None and keep is None:
        raise UsageError("No events were selected.", hint="Give older_than_s or keep.")
    return checked(Prune(request_id, older_than_s, keep))


def _backup(request_id: int, to: str | os.PathLike[str]) -> Backup:
    return checked(Backup(request_id, os.path.abspath(path("path", to))))


class MaintenanceCalls:
    """The upkeep of a queue."""

    link: Caller

    def history(
        self, *, after: int | None = None, newest_first: bool = False, **where: Unpack[HistoryConditions]
    ) -> Iterator[HistoryEvent]:
        """Iterate over what has happened to chunks: attempts and their ends, page by page.

        Args:
            after: only rows behind the one with this `seq`, in the order asked for.
            newest_first: start with the newest instead of the oldest.
            submission_id: only of this submission.
            index: only of this chunk of it.
            events: only these: "completed", "failed", "lost", "dead", "requeued", "dropped", "cancelled", "expired".
            consumer: only of consumers whose name starts with this.
            metadata: only of submissions with all these pairs.
            from_at: only from this moment on: an aware datetime, or milliseconds since 1970 UTC.
            to_at: only before this moment.
            reason: only with this text in the reason, ignoring case.
            exit_statuses: only after one of these exit statuses, or `signals`.
            signals: only after one of these signals, or `exit_statuses`.

        Raises:
            UsageError: a value is out of its range.
        """
        conditions, is_last = history_filter(where), False
        while not is_last:
            request = checked(History(self.link.next_id(), conditions, after, newest_first=newest_first))
            page = self.link.call(request, HistoryRows)
            yield from page.rows
            after, is_last = page.next_after, page.next_after is None

    def prune_history(self, *, older_than_s: float | None = None, keep: int | None = None) -> int:
        """Delete old history now, in small steps between other work. Returns how many rows.

        Args:
            older_than_s: rows older than this many seconds.
            keep: all but the newest so many rows.

        Raises:
            UsageError: neither is given.
            NotPermitted: the connection is not an operator's.
        """
        return self.link.call(_prune(self.link.next_id(), older_than_s, keep), Changed).count

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the database to a file while work continues; the content of chunks and large results is not in it.

        Args:
            path: where to, on the machine of the daemon; it must not exist.

        Returns:
            How many bytes the copy has.

        Raises:
            InputUnreadable: the file exists, or cannot be written.
            StorageFull: the disk is full.
            NotPermitted: the connection is not an operator's.
        """
        return self.link.call(_backup(self.link.next_id(), path), Changed).count

    def check(self) -> list[str]:
        """Check the database and its invariants, while work continues.

        Returns:
            What is damaged; none if it is sound.

        Raises:
            NotPermitted: the connection is not an operator's.
        """
        return self.link.call(Check(self.link.next_id()), Checked).problems

    def vacuum(self) -> int:
        """Return unused pages of the database to the file system, while work continues. Returns how many bytes.

        Raises:
            NotPermitted: the connection is not an operator's.
        """
        return self.link.call(Vacuum(self.link.next_id()), Changed).count


class AsyncMaintenanceCalls:
    """The same, awaited; see `MaintenanceCalls`."""

    link: AsyncCaller

    async def history(
        self, *, after: int | None = None, newest_first: bool = False, **where: Unpack[HistoryConditions]
    ) -> AsyncIterator[HistoryEvent]:
        """Iterate over what has happened to chunks; see `MaintenanceCalls.history`."""
        conditions, is_last = history_filter(where), False
        while not is_last:
            request = checked(History(self.link.next_id(), conditions, after, newest_first=newest_first))
            page = await self.link.call(request, HistoryRows)
            for row in page.rows:
                yield row
            after, is_last = page.next_after, page.next_after is None

    async def prune_history(self, *, older_than_s: float | None = None, keep: int | None = None) -> int:
        """Delete old history now; see `MaintenanceCalls.prune_history`."""
        return (await self.link.call(_prune(self.link.next_id(), older_than_s, keep), Changed)).count

    async def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the database to a file; see `MaintenanceCalls.backup`."""
        return (await self.link.call(_backup(self.link.next_id(), path), Changed)).count

    async def check(self) -> list[str]:
        """Check the database and its invariants; see `MaintenanceCalls.check`."""
        return (await self.link.call(Check(self.link.next_id()), Checked)).problems

    async def vacuum(self) -> int:
        """Return unused pages of the database to the file system; see `MaintenanceCalls.vacuum`."""
        return (await self.link.call(Vacuum(self.link.next_id()), Changed)).count
