"""What a consumer works on: a `Chunk`, or a whole `Reservation` in blocks and masks.

Both only carry what was granted and pass verdicts on; what is held and what is owed is kept by the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from opsq import traces
from opsq.client.core.arguments import delay
from opsq.client.core.chunk_base import ChunkBase
from opsq.client.core.held_block import Result
from opsq.client.core.reservation_base import ReservationBase
from opsq.client.core.verdict_batch import FailedRun
from opsq.client.sync.verdict_sender import VerdictSender

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.manifest import InputRange
    from opsq.wire.messages import NewSubmission


class Chunk(ChunkBase):
    """One reserved chunk. Give it one verdict: `complete`, `fail` or `release`."""

    __slots__ = ()

    _consumer: VerdictSender

    def _carried(self) -> traces.TraceContext | None:
        return traces.carried_by(self._consumer.describe(self._block.submission_id).content)

    @property
    def metadata(self) -> dict[str, int | str]:
        """The strategic metadata of its submission."""
        return self._consumer.describe(self._block.submission_id).metadata

    @property
    def chunks_count(self) -> int:
        """How many chunks its submission has."""
        return self._consumer.describe(self._block.submission_id).chunks_count

    @property
    def data(self) -> bytes:
        """Its bytes, read again on each access.

        Raises:
            ContentMissing, ContentChanged, StoreNotVisible: they cannot be had.
        """
        return self._consumer.reader(self._block.submission_id).read(self.index)

    @property
    def input(self) -> InputRange | None:
        """The file, or `-` for stdin, and the bytes of it that it was cut from; None: its producer named none."""
        return self._consumer.reader(self._block.submission_id).input_of(self.index)

    @property
    def file_path(self) -> bytes | None:
        """The file that it is, byte for byte, if it was submitted in place as a whole; None: it is not such a file."""
        return self._consumer.reader(self._block.submission_id).whole_file(self.index)

    @property
    def header(self) -> bytes:
        """What its `data` begins with and is no record of it, such as the header of a CSV file; mostly empty."""
        return self._consumer.reader(self._block.submission_id).header

    def __bytes__(self) -> bytes:
        return self.data

    def attachment(self) -> bytes | None:
        """The attachment of its submission; None if it has none.

        Raises:
            NotFound: its submission was removed.
        """
        return self._consumer.attachment(self._block.submission_id)

    def prepare(self, then: Iterable[Follower]) -> list[NewSubmission]:
        """Write the content of follow-ups, if it is large; `complete` does it, too, and takes what this returns.

        Raises:
            UsageError: they are too many or too long for one chunk.
            ChunkTooLarge, StorageFull, StoreNotVisible: it cannot be written.
        """
        return self._consumer.prepare(then, self.trace_context)

    def complete(
        self,
        result: Result = b"",
        *,
        then: Iterable[Follower] = (),
        run_s: float | None = None,
        exit_status: int | None = None,
    ) -> None:
        """Report it as done. Returns at once; the report is durable when `Consumer.flush` has returned.

        Args:
            result: kept until the submission is removed; a large one is written to the store first.
            then: submissions (`opsq.FollowUp`) to be made in the same commit. If the chunk is done by another consumer
                first, they are not made; if the daemon refuses one, the attempt fails for that reason.
            run_s: how long it took, in seconds; None: since it was handed out.
            exit_status: of the program that worked on it, if one did.

        Raises:
            UsageError: it has a verdict already; or, and then it has none, the result is not bytes, or as `prepare`.
            OpsqError: an earlier report could not be delivered.
        """
        followers = self.prepare(then) if then else []
        run_s = self._run_s(run_s)
        self._take_verdict()
        try:
            self._consumer.complete_chunk(self._block, self._bit, result, run_s, exit_status, followers)
        finally:
            self._note_verdict("completed", result=result)

    def fail(
        self,
        reason: str = "",
        *,
        delay_s: float | None = None,
        retry: bool = True,
        run_s: float | None = None,
        exit_status: int | None = None,
        signal: int | None = None,
    ) -> None:
        """Report that the attempt failed: the chunk is offered again after a back-off, or dies.

        Args:
            reason: for people; of a long one the last 16384 characters are kept.
            delay_s: how long it waits for its next attempt, in seconds; None: as its back-off says.
            retry: False buries the chunk at once.
            run_s: how long it took, in seconds; None: since it was handed out.
            exit_status: of the program that worked on it, if one did.
            signal: that ended the program.

        Raises:
            UsageError: it has a verdict already, or a value is out of its range.
            OpsqError: an earlier report could not be delivered.
        """
        failed = FailedRun(reason, exit_status, signal, self._run_s(run_s), delay("delay_s", delay_s), not retry)
        self._take_verdict()
        try:
            self._consumer.fail_blocks([self._block], failed, 1 << self._bit)
        finally:
            self._note_verdict("failed", reason=reason)

    def release(self) -> None:
        """Give it back; no attempt is counted.

        Raises:
            UsageError: it has a verdict already.
            OpsqError: an earlier report could not be delivered.
        """
        self._take_verdict()
        self._end_span("released")
        self._consumer.release_blocks([self._block], 1 << self._bit)

    def extend(self, lease_s: float | None = None) -> None:
        """Move its deadline to `lease_s` seconds from now (None: the length of its reservation).

        Rarely needed: heartbeats extend what a connected consumer holds, by `lease_s` from then on.

        Raises:
            ReservationLost: it is not held any more.
        """
        self._consumer.extend(self._block, 1 << self._bit, lease_s)


class Reservation(ReservationBase):
    """Many chunks at once, in blocks and masks; nothing is made per chunk. Give it one verdict as a whole.

    Attributes:
        chunks_count: how many chunks; 0: nothing was free in time.
        is_empty: nothing can come any more without a new submission, or the consumer was stopped.
    """

    __slots__ = ()

    _consumer: VerdictSender

    def read(self) -> Iterator[bytes]:
        """The bytes of the chunks: block by block, ascending in each; neighbours are read together.

        Raises:
            ContentMissing, ContentChanged, StoreNotVisible: they cannot be had.
        """
        for block in self.held_blocks:
            yield from self._consumer.reader(block.submission_id).read_block(block.number, block.granted)

    def complete(self, results: Sequence[Result] | None = None, *, run_s: float = 0.0) -> None:
        """Report all as done; the report leaves with the next reserve, or within 50 ms.

        Args:
            results: one per chunk, in the order of `read`; None: all empty.
            run_s: how long all of them took together, in seconds.

        Raises:
            UsageError: there are not as many results as chunks, or the reservation already has a verdict.
        """
        self._take_completion(results)
        try:
            self._consumer.complete_blocks(self.held_blocks, results, run_s)
        finally:
            self._note_verdict()

    def fail(self, reason: str = "", *, delay_s: float | None = None, retry: bool = True) -> None:
        """Report that all attempts failed; see `Chunk.fail`."""
        failed = FailedRun(reason, delay_s=delay("delay_s", delay_s), is_final=not retry)
        self._take_verdict()
        try:
            self._consumer.fail_blocks(self.held_blocks, failed)
        finally:
            self._note_verdict()

    def release(self) -> None:
        """Give all back; no attempt is counted.

        Raises:
            UsageError: the reservation already has a verdict.
        """
        self._take_verdict()
        self._consumer.release_blocks(self.held_blocks)
