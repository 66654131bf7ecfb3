"""Hands rows of an outbox to the daemon, in batches: what it will never take is told from what it cannot take now.

This file changes no outbox. Whatever is handed over again is answered as before: a submission by its request key, a
completion by its token. Of several shards each knows only its own request keys: there it is an idempotency key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from opsq.client.core.address import ShardedAddress
from opsq.client.core.content_access import Contents
from opsq.client.core.new_submission import made_before, write_content
from opsq.client.core.unused_content import delete_unused
from opsq.client.sync.connection import Connection
from opsq.content import manifest
from opsq.errors import (
    Bug,
    Conflict,
    Moved,
    NoRoom,
    NotFound,
    OpsqError,
    Refused,
    Unreachable,
    UsageError,
    VersionMismatch,
)
from opsq.ids import BLOCK_CHUNKS, Handle, mask_indexes, parse_handle
from opsq.outbox.waiting_rows import Completion, Submission
from opsq.wire import messages
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Complete,
    Completed,
    Describe,
    Described,
    Find,
    Found,
    HeldChunks,
    NewSubmission,
    Refusal,
    ResultRows,
    Results,
    Show,
    Shown,
    SubmissionContent,
    Submit,
    Submitted,
)

if TYPE_CHECKING:
    from opsq.content.result_objects import ResultWriter

_submission_decoder = msgspec.msgpack.Decoder(NewSubmission)
_chunks_decoder = msgspec.msgpack.Decoder(list[bytes])

_PASSING = frozenset({"moving_here", "clearing"})
"""Conflicts with what is under way: the row is taken, or found, once that is over."""

R = TypeVar("R")


class Outcome(msgspec.Struct):
    """What became of rows, by `seq`; those that are not named are as they were.

    Attributes:
        done: the daemon has them.
        refused: it never will, and why.
        held_back: why it takes no more now.
    """

    done: list[int] = []
    refused: dict[int, str] = {}
    held_back: Refused | None = None


class _Item(NamedTuple):
    seq: int
    payload: Any


class HandOver:
    """A connection to the daemon that is made when it is needed, and again when it has ended.

    Args:
        dial: makes one.
    """

    def __init__(self, dial: Callable[[], Connection]) -> None:
        self._dial = dial
        self._connection: Connection | None = None
        self._contents: Contents | None = None

    def open(self) -> None:
        """Connect, unless it is connected.

        Raises:
            Unreachable: the daemon does not answer.
            NotPermitted, VersionMismatch: it never will.
        """
        self._connected()

    def submit(self, rows: Sequence[Submission]) -> Outcome:
        """Hand over submissions, in order.

        Raises:
            Unreachable: the daemon does not answer; what it has taken is not known.
            NotPermitted, VersionMismatch: it never will.
        """
        outcome, items = Outcome(), []
        for row in rows:
            try:
                items.append(_Item(row.seq, self._prepared(row)))
            except (UsageError, msgspec.DecodeError) as error:
                outcome.refused[row.seq] = str(error)
            except Refused as error:
                self._send(items, self._submit, outcome)
                outcome.held_back = outcome.held_back or error
                return outcome
        self._send(items, self._submit, outcome)
        return outcome

    def complete(self, rows: Sequence[Completion]) -> Outcome:
        """Hand over completions.

        Raises:
            Unreachable, NotPermitted, VersionMismatch: as `submit`.
        """
        outcome, items = Outcome(), []
        handles: dict[int, Handle] = {}
        for row in rows:
            try:
                handles[row.seq] = parse_handle(row.handle)
            except UsageError as error:
                outcome.refused[row.seq] = str(error)
        rows = [row for row in rows if row.seq in handles]
        try:
            places = self._stored(rows, handles, outcome)
        except Refused as error:
            outcome.held_back = error
            return outcome
        for row in rows:
            if row.seq in outcome.refused:
                continue
            result = places.get(row.seq, row.result)
            packed = msgspec.Raw(msgspec.msgpack.encode([result] if result else None))
            held = HeldChunks.of(handles[row.seq])
            items.append(_Item(row.seq, messages.Completion(held, packed)))
        self._send(items, self._complete, outcome)
        return outcome

    def close(self) -> None:
        """End the connection."""
        connection, contents = self._connection, self._contents
        self._connection = self._contents = None
        if connection is not None:
            connection.close()
        if contents is not None:
            contents.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _prepared(self, row: Submission) -> NewSubmission:
        """What to send for a row; chunks that have no place in it are in the store then."""
        try:
            new = _submission_decoder.decode(row.submission)
            if row.chunks is None:
                return new
            trace = manifest.decode(new.content).trace
        except VersionMismatch as error:  # of the row, not of the daemon
            raise UsageError(error.message, hint=error.hint) from error
        chunks = _chunks_decoder.decode(row.chunks)
        daemon = self._connected()
        content = write_content(chunks, new.request_key, self._store(), daemon.welcome, is_repeated=True)
        return replace(new, content=manifest.encode(replace(content, trace=trace)), chunks_count=content.chunks_count)

    def _send(self, items: Sequence[_Item], send: Callable[[Sequence[_Item], Outcome], None], outcome: Outcome) -> None:
        """Send all, or if the daemon will not have them together, halves, in order."""
        if not items or outcome.held_back is not None:
            return
        try:
            send(items, outcome)
        except (UsageError, NotFound, Conflict, Refused, Bug) as error:
            if len(items) > 1:
                middle = len(items) // 2
                self._send(items[:middle], send, outcome)
                self._send(items[middle:], send, outcome)
                return
            [item] = items
            if isinstance(error, Refused) and not _is_final(error):
                outcome.held_back = error
            elif error.cause in _PASSING:
                outcome.held_back = Refused(error.message, hint=error.hint)
            elif self._has_arrived(item.payload, error):
                outcome.done.append(item.seq)
            elif _is_final(error):
                outcome.refused[item.seq] = str(error)
                if isinstance(item.payload, NewSubmission):
                    delete_unused([item.payload], self._store(), self._find)
            else:
                raise Unreachable(error.message, hint=error.hint) from error

    def _submit(self, items: Sequence[_Item], outcome: Outcome) -> None:
        new = [item.payload for item in items]
        if isinstance(self._connected().address, ShardedAddress):
            new = [_kept_once(each) for each in new]
        reply = self._call(lambda number: Submit(number, new, 0.0), Submitted)
        outcome.done += [item.seq for item in items]
        # If another submission had one of the keys, what was written for this one is of no use.
        delete_unused(made_before(new, reply.created), self._store(), self._find)

    def _has_arrived(self, payload: object, error: OpsqError) -> bool:
        """Whether a row that is refused was handed over before, or has the key of a submission that has moved."""
        if not isinstance(payload, NewSubmission):
            return False
        if error.cause == "other_content":  # the same, written by another version
            return True
        if isinstance(error, Moved):  # it, or what it waits for
            return error.details["submission_id"] not in {one.submission_id for one in payload.after}
        try:
            return _is_final(error) and self._find(payload.request_key).submission_id is not None
        except Moved:
            return True

    def _find(self, request_key: bytes) -> Found:
        """What a row has made. It is not withdrawn: what was set aside may be put back."""
        return self._call(lambda number: Find(number, request_key), Found)

    def _complete(self, items: Sequence[_Item], outcome: Outcome) -> None:
        completions = [item.payload for item in items]
        reply = self._call(lambda number: Complete(number, completions), Completed)
        refusals = {
            (refusal.submission_id, index): refusal
            for refusal in reply.refusals
            for index in mask_indexes(refusal.block, refusal.mask)
        }
        for item in items:
            held = item.payload.held
            [index] = mask_indexes(held.block, held.mask)
            refusal = refusals.get((held.submission_id, index))
            if refusal is None or self._is_completed(refusal, index):
                outcome.done.append(item.seq)
            elif refusal.cause != "submission_finalizing":
                outcome.refused[item.seq] = refusal.message

    def _is_completed(self, refusal: Refusal, index: int) -> bool:
        """Whether a chunk was completed under another reservation: whoever had it next has found the row."""
        if refusal.code != "already_finished":
            return False
        try:
            found = self._call(lambda number: Results(number, refusal.submission_id, index, 1, 0.0, True), ResultRows)
        except NotFound:
            return False
        return any(mask >> index % BLOCK_CHUNKS & 1 for mask in found.completed)

    def _stored(
        self, rows: Sequence[Completion], handles: dict[int, Handle], outcome: Outcome
    ) -> dict[int, tuple[str, int, int]]:
        """Where large results are, by row; those of submissions that are gone are refused."""
        large = [row for row in rows if len(row.result) > RESULT_INLINE_BYTES]
        if not large:
            return {}
        described = self._described(sorted({handles[row.seq].submission_id for row in large}))
        writers: dict[int, ResultWriter] = {}
        places: dict[int, tuple[str, int, int]] = {}
        with contextlib.ExitStack() as stack:
            for row in large:
                submission_id = handles[row.seq].submission_id
                found = described[submission_id]
                if isinstance(found, OpsqError):
                    outcome.refused[row.seq] = str(found)
                    continue
                if submission_id not in writers:
                    writer = self._store().result_writer(found, "relay")
                    writers[submission_id] = stack.enter_context(contextlib.closing(writer))
                places[row.seq] = writers[submission_id].append(row.result)
            for writer in writers.values():
                writer.sync()
        return places

    def _described(self, submission_ids: list[int]) -> dict[int, SubmissionContent | NotFound | Moved]:
        """Submissions, or why they are not here.

        Raises:
            Unreachable: that cannot be known now.
        """
        found: dict[int, SubmissionContent | NotFound | Moved] = {}
        left = submission_ids
        while left and (described := self._call(partial(Describe, submission_ids=left), Described).submissions):
            found |= {each.submission_id: each for each in described}
            left = [one for one in left if one not in found]  # they may only not have fitted
        for submission_id in left:  # it is gone, or of a shard that is away
            try:
                self._call(partial(Show, submission_id=submission_id), Shown)
            except (NotFound, Moved) as error:
                found[submission_id] = error
            else:
                raise Unreachable(f"Where the results of submission {submission_id} belong is not known now.")
        return found

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._dial()
        return self._connection

    def _store(self) -> Contents:
        if self._contents is None:
            self._contents = Contents(self._connected().welcome)
        return self._contents

    def _call(self, make: Callable[[int], Any], kind: type[R]) -> R:
        """Ask; a connection that has ended since it was last used is made anew once."""
        is_old = self._connection is not None
        while True:
            daemon = self._connected()
            try:
                return daemon.call(make(daemon.next_id()), kind)
            except Unreachable:
                self.close()
                if not is_old:
                    raise
                is_old = False


def _is_final(error: OpsqError) -> bool:
    """Whether a row will be refused whenever it comes."""
    if isinstance(error, NoRoom):
        return error.cause == "over_backlog"
    return isinstance(error, UsageError | NotFound | Conflict | Bug)


def _kept_once(new: NewSubmission) -> NewSubmission:
    """With a key that says at which shard it is when it is handed over again: its request key is known there only."""
    return new if new.idempotency_key else replace(new, idempotency_key=f"outbox:{new.request_key.hex()}")
