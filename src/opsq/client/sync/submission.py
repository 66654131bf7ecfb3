"""A submission as its producer sees it: wait, look, read results, cancel.

This file only asks and reads; whatever changes is decided by the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from opsq.client.core.arguments import seconds
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import ResultCursor, bad_result_logger, only_described, request_parts
from opsq.client.sync.link import Link
from opsq.errors import TimedOut, WorkFailed
from opsq.ids import SubmissionId
from opsq.wire.messages import (
    Attachment,
    Cancel,
    Changed,
    Dead,
    DeadChunk,
    DeadChunks,
    DependencyEdge,
    Describe,
    Described,
    Drop,
    GetAttachment,
    Remove,
    Requeue,
    ResultRows,
    Show,
    Shown,
    SubmissionState,
    Wait,
)

if TYPE_CHECKING:
    from opsq.content.manifest import InputRange


class Submission:
    """A handle to one submission; holding it keeps nothing open.

    Attributes:
        id: its id.
        is_new: whether the call that gave this handle made it; else it existed under its unique key, or was only named.
    """

    __slots__ = ("_contents", "_link", "id", "is_new")

    def __init__(self, link: Link, contents: Contents, submission_id: int, *, is_new: bool = False) -> None:
        self._link = link
        self._contents = contents
        self.id = SubmissionId(submission_id)
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"<Submission {self.id}>"

    def state(self) -> SubmissionState:
        """Its state and counts now.

        Raises:
            NotFound: there is no such submission.
        """
        return self._link.call(Show(self._link.next_id(), self.id), Shown).submission

    def dependencies(self) -> list[DependencyEdge]:
        """What it waits or has waited for, what those do, and then who waits for it: the nearest, of each at most 100.

        Raises:
            NotFound: there is no such submission.
        """
        return self._link.call(Show(self._link.next_id(), self.id), Shown).dependencies

    def wait(self, timeout_s: float | None = None) -> SubmissionState:
        """Wait until it is completed, failed, cancelled or expired; the daemon pushes it.

        Args:
            timeout_s: how long at most, in seconds; None: without limit.

        Returns:
            Its final state, in the field `state`.

        Raises:
            TimedOut: it is not final in time.
            NotFound: there is no such submission.
        """
        timeout_s = seconds("timeout_s", timeout_s)
        try:
            return self._link.call(Wait(self._link.next_id(), self.id), Shown, timeout_s).submission
        except TimedOut as error:
            raise TimedOut(f"Submission {self.id} is not finished after {timeout_s:g} s.") from error

    def results(self, *, skip_dead: bool = False, skip_bad: bool = False) -> Iterator[bytes]:
        """The results in chunk order, read page by page in constant memory.

        Args:
            skip_dead: pass over chunks that died or were skipped.
            skip_bad: pass over chunks whose results are malformed or gone from the store; the log `opsq` names them.

        Raises:
            NotFinished: it is not final yet (`follow` waits).
            WorkFailed: a chunk has no result, at its place in the order.
            DatabaseDamaged, ContentMissing: the result of a chunk cannot be read.
        """
        return self._results(is_following=False, skip_dead=skip_dead, skip_bad=skip_bad)

    def follow(self, *, skip_dead: bool = False, skip_bad: bool = False) -> Iterator[bytes]:
        """The results in chunk order as they come; ends when the submission does. For the rest see `results`."""
        return self._results(is_following=True, skip_dead=skip_dead, skip_bad=skip_bad)

    def result_places(self, *, is_following: bool = False, skip_dead: bool = False) -> Iterator[Result]:
        """As `results`, but a large result is only named: object, offset and length in the folder of the content.

        Raises:
            NotFinished, WorkFailed: see `results`.
        """
        yield from self._pages(ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead))

    def dead(self) -> Iterator[DeadChunk]:
        """Its dead chunks, ascending.

        Raises:
            NotFound: there is no such submission.
        """
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            page = self._link.call(Dead(self._link.next_id(), self.id, after), DeadChunks)
            yield from page.chunks
            after = page.next_after

    def first_dead(self, count: int) -> list[tuple[DeadChunk, InputRange | None]]:
        """The first of its dead chunks, with their inputs as far as these can be found out.

        Raises:
            NotFound: there is no such submission.
        """
        chunks = self._link.call(Dead(self._link.next_id(), self.id, (0, -1), count), DeadChunks).chunks
        described = self._link.call(Describe(self._link.next_id(), [self.id]), Described).submissions
        content = described[0].content if described else b""
        return [(chunk, self._contents.known_input(content, chunk.index)) for chunk in chunks]

    def input(self, index: int) -> InputRange | None:
        """The input of a chunk of it, a dead one for example; see `Chunk.input`.

        Raises:
            NotFound: there is no such submission.
            ContentMissing, StoreNotVisible: its content cannot be had.
        """
        described = self._link.call(Describe(self._link.next_id(), [self.id]), Described)
        return self._contents.reader(only_described(described, self.id)).input_of(index)

    def attachment(self) -> bytes | None:
        """Its attachment; None if it has none.

        Raises:
            NotFound: there is no such submission.
        """
        return self._link.call(GetAttachment(self._link.next_id(), self.id), Attachment).attachment

    def cancel(self, reason: str = "") -> bool:
        """Have no more of it worked on; what runs loses its reservation. False if it was final already.

        Raises:
            NotFound: there is no such submission.
        """
        return bool(self._link.call(Cancel(self._link.next_id(), self.id, reason), Changed).count)

    def requeue(self, indexes: Sequence[int] | None = None) -> int:
        """Give dead chunks (None: all) new attempts, and revive the submission. Returns how many.

        Raises:
            NotFound: there is no such submission.
            UsageError: an index cannot be one.
        """
        return sum(
            self._link.call(Requeue(self._link.next_id(), self.id, part), Changed).count
            for part in request_parts(indexes)
        )

    def drop(self, indexes: Sequence[int] | None = None) -> int:
        """Give up on dead chunks (None: all): they count as skipped from then on. Returns how many.

        Raises:
            NotFound: there is no such submission.
            NotPermitted: the connection is not an operator's.
            UsageError: an index cannot be one.
        """
        return sum(
            self._link.call(Drop(self._link.next_id(), self.id, part), Changed).count for part in request_parts(indexes)
        )

    def remove(self) -> None:
        """Forget it, with its results and content.

        Raises:
            NotFinished: it is not final; cancel it first.
            NotFound: there is no such submission.
            NotPermitted: the connection is not an operator's.
        """
        self._link.call(Remove(self._link.next_id(), self.id), Changed)

    def _results(self, *, is_following: bool, skip_dead: bool, skip_bad: bool) -> Iterator[bytes]:
        on_bad = bad_result_logger(self.id) if skip_bad else None
        cursor = ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead, on_bad=on_bad)
        for result in self._pages(cursor):
            found = cursor.read(self._contents.read_result, result)
            if found is not None:
                yield found

    def _pages(self, cursor: ResultCursor) -> Iterator[Result]:
        while not cursor.is_done:
            page = self._link.call(cursor.request(self._link.next_id()), ResultRows)
            try:
                yield from cursor.take(page)
            except WorkFailed:
                raise cursor.lacking(self._contents.known_input(cursor.content, cursor.index)) from None
