"""What opsq acknowledges, as facts that can be looked up in a queue that was opened again after a loss of power.

A fact says in `broken` how it does not hold; "" if it does. This file must not know how the disk was lost.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from opsq.client.core.result_pages import results_of
from opsq.client.sync.queue import Queue
from opsq.content.manifest import decode, read_about
from opsq.daemon.audit_file import acts
from opsq.errors import NotFound, OpsqError
from opsq.ids import mask_indexes
from opsq.store.database import Database
from opsq.store.integrity import problems
from opsq.wire import messages as m

CONTENT_OF_COMPAT = b"parts"
"""What the stored databases of older schemas have in place of a content."""


class Fact(Protocol):
    """Something that was acknowledged."""

    def broken(self, found: Found) -> str:
        """How it does not hold; "" if it does."""


class Found:
    """A queue as it is found after the loss; everything is read through the client, as a user would."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.submissions = {one.submission_id: one for one in queue.submissions()}

    def described(self, submission_id: int) -> m.SubmissionContent:
        """What the daemon says of a submission's content."""
        request = m.Describe(self.queue.link.next_id(), [submission_id])
        return self.queue.link.call(request, m.Described).submissions[0]

    def chunks(self, submission_id: int) -> list[bytes] | None:
        """The bytes of all chunks; None: the submission was made without a store."""
        described = self.described(submission_id)
        if described.content in (b"", CONTENT_OF_COMPAT):
            return None
        reader = self.queue.contents.reader(described)
        return [reader.read(index) for index in range(described.chunks_count)]

    def results(self, submission_id: int) -> dict[int, bytes]:
        """The result of each chunk that is completed."""
        found: dict[int, bytes] = {}
        content, block = b"", 0
        while block * 64 < self.submissions[submission_id].chunks_count:
            request = m.Results(self.queue.link.next_id(), submission_id, block * 64)
            page = self.queue.link.call(request, m.ResultRows)
            content = page.content or content
            kept: dict[int, Any] = {}
            for row in page.rows:
                kept.update(results_of([row], submission_id))
            for number, completed in enumerate(page.completed, block):
                for index in mask_indexes(number, completed):
                    result = kept.get(index, b"")
                    is_stored = isinstance(result, tuple)
                    found[index] = self.queue.contents.read_result(content, result) if is_stored else result
            block = page.next_block
        return found

    def events(self, where: m.HistoryFilter) -> list[m.HistoryEvent]:
        """The rows of the history for which the conditions hold."""
        rows: list[m.HistoryEvent] = []
        after: int | None = None
        while True:
            page = self.queue.link.call(m.History(self.queue.link.next_id(), where, after), m.HistoryRows)
            rows += page.rows
            if page.next_after is None:
                return rows
            after = page.next_after

    def half_there(self) -> list[str]:
        """What is named and cannot be read, and what breaks a rule, acknowledged or not."""
        found = list(self.queue.link.call(m.Check(self.queue.link.next_id()), m.Checked).problems)
        for submission_id in self.submissions:
            try:
                self.chunks(submission_id)
                self.results(submission_id)
            except OpsqError as error:
                found.append(f"submission {submission_id}: {error}")
        return found


class Submitted(NamedTuple):
    """A submission is there, with its chunks."""

    id: int
    chunks: tuple[bytes, ...]

    def broken(self, found: Found) -> str:
        if self.id not in found.submissions:
            return "is gone"
        chunks = found.chunks(self.id)
        return "" if chunks is None or chunks == list(self.chunks) else "has other chunks"


class Described(NamedTuple):
    """The format of the chunks is known."""

    id: int
    about: bytes

    def broken(self, found: Found) -> str:
        about = read_about(found.queue.contents.store, decode(found.described(self.id).content))
        return "" if about == self.about else "has another format"


class Completed(NamedTuple):
    """Chunks are completed, with these results."""

    id: int
    results: Mapping[int, bytes]

    def broken(self, found: Found) -> str:
        there = found.results(self.id)
        wrong = [index for index, result in self.results.items() if there.get(index) != result]
        return f"chunks {wrong} are not completed, or have other results" if wrong else ""


class Followed(NamedTuple):
    """Chunks are completed together with their follow-ups, which have these chunks, or not at all: neither is there."""

    id: int
    follow_ups: Mapping[int, Sequence[bytes]]
    is_acknowledged: bool = False

    def broken(self, found: Found) -> str:
        there = found.results(self.id) if self.id in found.submissions else {}
        for index, chunks in self.follow_ups.items():
            ids = [one for one, state in found.submissions.items() if state.metadata == {"of": index}]
            have = sorted(found.chunks(one) or [] for one in ids)
            if have != sorted([chunk] for chunk in chunks if index in there) or (
                self.is_acknowledged and index not in there
            ):
                return f"chunk {index} is {'' if index in there else 'not '}completed, with {len(ids)} follow-ups"
        return ""


class Said(NamedTuple):
    """The history has this event of a chunk."""

    id: int
    index: int
    event: str

    def broken(self, found: Found) -> str:
        where = m.HistoryFilter(self.id, self.index, [self.event])
        return "" if found.events(where) else f"chunk {self.index} was not {self.event}"


class Dead(NamedTuple):
    """Exactly these chunks of a submission are dead."""

    id: int
    indexes: frozenset[int]

    def broken(self, found: Found) -> str:
        dead = {chunk.index for chunk in found.queue.submission(self.id).dead()}
        return "" if dead == self.indexes else f"{sorted(dead)} are dead, not {sorted(self.indexes)}"


class InState(NamedTuple):
    """A submission has come to this state."""

    id: int
    state: str

    def broken(self, found: Found) -> str:
        state = found.submissions[self.id].state if self.id in found.submissions else "gone"
        return "" if state == self.state else f"is {state}, not {self.state}"


class Removed(NamedTuple):
    """A submission is not known any more."""

    id: int

    def broken(self, found: Found) -> str:
        try:
            found.queue.submission(self.id).state()
        except NotFound:
            return ""
        return "is back"


class Pruned(NamedTuple):
    """The history has no event of before."""

    first_seq: int

    def broken(self, found: Found) -> str:
        return "events are back" if found.events(m.HistoryFilter())[0].seq < self.first_seq else ""


class Leased(NamedTuple):
    """A lease is good: its chunks are completed by it. To be looked up last, since that changes the queue."""

    held: m.HeldChunks

    def broken(self, found: Found) -> str:
        link = found.queue.link
        refusals = link.call(m.Complete(link.next_id(), [m.Completion(self.held)]), m.Completed).refusals
        return f"was refused: {refusals[0].code}" if refusals else ""


class Keyed(NamedTuple):
    """An idempotency key names a submission."""

    idempotency_key: str
    id: int

    def broken(self, found: Found) -> str:
        submission = found.queue.find(self.idempotency_key)
        return "" if submission is not None and submission.id == self.id else "names another submission, or none"


class Ruled(NamedTuple):
    """A pause and a limit are in force, or neither is."""

    is_paused: bool
    limited: frozenset[str]

    def broken(self, found: Found) -> str:
        rules = found.queue.rules()
        has = bool(rules.pauses), frozenset(limit.key for limit in rules.limits)
        return "" if has == tuple(self) else f"rules are {has}"


class Acted(NamedTuple):
    """The audit says what an operator did, in this order at its end; a stop of the daemon may follow."""

    path: str
    names: tuple[str, ...]

    def broken(self, found: Found) -> str:
        there = tuple(act.act for act in acts(self.path) if act.act != "Stop")[-len(self.names) :]
        return "" if there == self.names else f"the audit ends with {there}"


class BackedUp(NamedTuple):
    """A backup is whole and has these submissions."""

    path: str
    ids: frozenset[int]

    def broken(self, found: Found) -> str:
        if not os.path.exists(self.path):
            return "is gone"
        folder = Path(tempfile.mkdtemp(prefix="opsq-"))
        try:
            shutil.copy(self.path, folder / "opsq.sqlite")
            database = Database.open(folder / "opsq.sqlite", is_durable=False)
            try:
                wrong = problems(database)
                ids = {int(row[0]) for row in database.reader.execute("SELECT id FROM submission")}
            finally:
                database.close()
        except OpsqError as error:
            return str(error)
        finally:
            shutil.rmtree(folder)
        return "; ".join(wrong) or ("" if self.ids <= ids else f"lacks {sorted(self.ids - ids)}")


class Known(NamedTuple):
    """These submissions have these states and counts."""

    states: Mapping[int, tuple[Any, ...]]

    def broken(self, found: Found) -> str:
        now = {number: counts_of(state) for number, state in found.submissions.items()}
        wrong = [number for number, counts in self.states.items() if now.get(number) != counts]
        return f"submissions {wrong} have changed" if wrong else ""


def counts_of(state: m.SubmissionState) -> tuple[Any, ...]:
    """State and final counts of a submission, which time alone does not change."""
    return state.state, state.chunks_count, state.completed_count, state.dead_count


def broken(queue: Queue, promises: Mapping[str, Fact]) -> list[str]:
    """All that is wrong with a queue: what is half there, and promises that do not hold."""
    found = Found(queue)
    wrong = found.half_there()
    for key, fact in sorted(promises.items(), key=lambda one: isinstance(one[1], Leased)):
        try:
            text = fact.broken(found)
        except OpsqError as error:
            text = str(error)
        if text:
            wrong.append(f"{key}: {text}")
    return wrong
