"""What a consumer works on: a `Chunk`, or a whole `Reservation` in blocks and masks.

Both only carry what was granted and pass verdicts on; what is held and what is owed is the ledger's business.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opsq.client.core.held_block import Lot, Result
from opsq.errors import UsageError
from opsq.ids import Handle, SubmissionId

if TYPE_CHECKING:
    from opsq.client.sync.verdict_sender import Reporter


class Chunk:
    """One reserved chunk. Give it one verdict: `complete`, `fail` or `release`."""

    __slots__ = ("_bit", "_consumer", "_has_verdict", "_lot", "_started_at")

    def __init__(self, consumer: Reporter, lot: Lot, bit: int) -> None:
        self._consumer = consumer
        self._lot = lot
        self._bit = bit
        self._has_verdict = False
        self._started_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<Chunk {self.submission_id}/{self.index}>"

    @property
    def submission_id(self) -> SubmissionId:
        """The submission that it belongs to."""
        return self._lot.submission_id

    @property
    def index(self) -> int:
        """Its place in the submission, from 0."""
        return self._lot.block * 64 + self._bit

    @property
    def attempt(self) -> int:
        """How many attempts failed or were lost before."""
        return self._lot.token.attempt

    @property
    def handle(self) -> Handle:
        """What names it under this reservation, for any other process: `str` gives one shell word."""
        return self._lot.handle(self._bit)

    @property
    def metadata(self) -> dict[str, int | str]:
        """The strategic metadata of its submission."""
        return self._consumer.describe(self._lot.submission_id).metadata

    @property
    def chunks_count(self) -> int:
        """How many chunks its submission has."""
        return self._consumer.describe(self._lot.submission_id).chunks_count

    @property
    def data(self) -> bytes:
        """Its bytes, read anew each time.

        Raises:
            ContentMissing, ContentChanged, StoreNotVisible: they cannot be had.
        """
        return self._consumer.reader(self._lot.submission_id).read(self.index)

    @property
    def file_path(self) -> bytes | None:
        """The file that it is, byte for byte, if it was submitted in place as a whole; None: it is not such a file."""
        return self._consumer.reader(self._lot.submission_id).whole_file(self.index)

    @property
    def header(self) -> bytes:
        """What its `data` begins with and is no record of it, such as the header of a CSV file; mostly empty."""
        return self._consumer.reader(self._lot.submission_id).header

    def __bytes__(self) -> bytes:
        return self.data

    def attachment(self) -> bytes | None:
        """The attachment of its submission; None if it has none."""
        return self._consumer.attachment(self._lot.submission_id)

    @property
    def has_verdict(self) -> bool:
        """Whether it was completed, failed or released."""
        return self._has_verdict

    @property
    def is_revoked(self) -> bool:
        """Whether the daemon took it away: another consumer may have it, it may be finished or cancelled."""
        return self._lot.is_revoked(self._bit)

    def complete(self, result: Result = b"", *, run_s: float | None = None, exit_status: int | None = None) -> None:
        """Report it as done. Returns at once; the report is durable when `Consumer.flush` has returned.

        Args:
            result: kept until the submission is removed; a large one is written to the store first.
            run_s: how long it took; None: since it was handed out.

        Raises:
            UsageError: it has a verdict already.
            OpsqError: an earlier report could not be delivered.
        """
        self._close()
        run_s = time.monotonic() - self._started_at if run_s is None else run_s
        self._consumer.complete_chunk(self._lot, self._bit, result, run_s, exit_status)

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
            delay_s: replaces the back-off.
            retry: False buries the chunk at once.
        """
        self._close()
        run_s = time.monotonic() - self._started_at if run_s is None else run_s
        self._consumer.fail_chunk(self._lot, self._bit, reason, delay_s, not retry, run_s, exit_status, signal)

    def release(self) -> None:
        """Give it back; no attempt is counted."""
        self._close()
        self._consumer.release_lots([self._lot], 1 << self._bit)

    def extend(self, lease_s: float | None = None) -> None:
        """Move its deadline to `lease_s` seconds from now (None: the full length of a reservation).

        Rarely needed: heartbeats extend what a connected consumer holds.

        Raises:
            ReservationLost: it is not held any more.
        """
        self._consumer.extend(self._lot, 1 << self._bit, lease_s)

    def _close(self) -> None:
        if self._has_verdict:
            raise UsageError(f"Chunk {self.submission_id}/{self.index} has its verdict already.")
        self._has_verdict = True


class BlockChunks(NamedTuple):
    """Some chunks of a block in a reservation."""

    submission_id: SubmissionId
    block: int
    mask: int


class Reservation:
    """Many chunks at once, in blocks and masks; nothing is made per chunk. Give it one verdict as a whole.

    Attributes:
        chunks_count: how many chunks; 0: nothing was free in time.
        is_empty: nothing can come any more without a new submission.
    """

    __slots__ = ("_consumer", "_has_verdict", "chunks_count", "is_empty", "lots")

    def __init__(self, consumer: Reporter, lots: list[Lot], *, is_empty: bool = False) -> None:
        self._consumer = consumer
        self._has_verdict = False
        self.lots = lots
        self.chunks_count = sum([lot.granted.bit_count() for lot in lots])
        self.is_empty = is_empty

    @property
    def blocks(self) -> list[BlockChunks]:
        """What was reserved, in the order of the strategy."""
        return [BlockChunks(lot.submission_id, lot.block, lot.granted) for lot in self.lots]

    def read(self) -> Iterator[bytes]:
        """The bytes of the chunks: block by block, ascending in each; neighbours are read together."""
        for lot in self.lots:
            yield from self._consumer.reader(lot.submission_id).read_block(lot.block, lot.granted)

    def complete(self, results: Sequence[Result] | None = None, *, run_s: float = 0.0) -> None:
        """Report all as done; the report leaves with the next reserve, or within 50 ms.

        Args:
            results: one per chunk, in the order of `read`; None: all empty.
            run_s: how long all of them took together.

        Raises:
            UsageError: there are not as many results as chunks, or the reservation has its verdict already.
        """
        if results is not None and len(results) != self.chunks_count:
            raise UsageError(f"{len(results)} results were given for {self.chunks_count} chunks.")
        self._close()
        self._consumer.complete_lots(self.lots, results, run_s)

    def fail(self, reason: str = "", *, delay_s: float | None = None, retry: bool = True) -> None:
        """Report that all attempts failed; see `Chunk.fail`."""
        self._close()
        self._consumer.fail_lots(self.lots, reason, delay_s, not retry)

    def release(self) -> None:
        """Give all back; no attempt is counted."""
        self._close()
        self._consumer.release_lots(self.lots)

    def _close(self) -> None:
        if self._has_verdict:
            raise UsageError("This reservation has its verdict already.")
        self._has_verdict = True
