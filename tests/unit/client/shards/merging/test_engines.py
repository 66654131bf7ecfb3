"""What real engines of three shards say, put together, as one client would see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from opsq.cli.output.top_view import Sight, TopWatch
from opsq.client.shards.merging import Cursors, Members, gathering
from opsq.documents.asking import events, running
from opsq.errors import NotFound, OpsqError, UsageError
from opsq.store import shard
from opsq.wire import messages as m
from opsq.wire.frames import encode, reply_reader
from unit.model.rig import Rig

R = TypeVar("R")

SHARDS = (0, 5, 1023)


class Queue:
    """A queue of several shards, with work of each kind at each of them."""

    def __init__(self, folder: Path) -> None:
        self.cursors = Cursors()
        self.rigs: dict[int, Rig] = {}
        for number in SHARDS:
            (folder / str(number)).mkdir()
            rig = self.rigs[number] = Rig(folder / str(number))
            shard.claim(rig.database, number)
            rig.restart()
        self.ids = [self._fill(number, turn) for turn in range(3) for number in SHARDS]

    def _fill(self, number: int, turn: int) -> int:
        rig = self.rigs[number]
        for other in self.rigs.values():
            other.advance(1)
        submission_id = rig.submit(4, metadata={"tenant": f"t{turn}"}, max_attempts=1, keep_on_dead=True)
        peer = rig.connect("worker")
        tickets = rig.reserve(peer, 2, f"SelectOnly(submission={submission_id}, OldestFirst)")
        first = tickets[0]
        rig.fail(peer, first.held(first.indexes[:1]), reason="No.")
        rig.start(peer, first, first.indexes[1:])
        return submission_id

    def next_id(self) -> int:
        """As a connection has it."""
        return 7

    def call(self, request: Any, kind: type[R]) -> R:
        """What the client receives."""
        found = gathering(request, Members(dict.fromkeys(SHARDS, "host:1")), self.cursors)
        assert found is not None
        replies = {number: self._ask(number, sent) for number, sent in found.ask(SHARDS).items()}
        [reply] = reply_reader().feed(encode([found.merged(replies)]))
        if isinstance(reply, m.ErrorReply):
            raise reply.error()
        assert isinstance(reply, kind)
        return reply

    def _ask(self, number: int, request: m.Request) -> m.Reply:
        rig = self.rigs[number]
        try:
            [reply] = rig.ask(rig.connect("asks"), request)
        except OpsqError as error:
            return m.ErrorReply.of(7, error)
        return reply


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[Queue]:
    queue = Queue(runtime_dir)
    yield queue
    for rig in queue.rigs.values():
        rig.close()


def test_submissions_are_listed_newest_first_page_by_page(queue: Queue) -> None:
    found: list[int] = []
    before: int | None = None
    while before is not None or not found:
        page = queue.call(m.List(7, before=before, limit=2), m.Listed)
        found += [row.submission_id for row in page.submissions]
        before = page.next_before
    assert found == sorted(queue.ids, reverse=True)


def test_state_is_that_of_all(queue: Queue) -> None:
    state = queue.call(m.Status(7, "tenant", "", True), m.DaemonState)
    assert state.total == m.Counts(None, 9, 18, 0, 9, 0, 9, 0)
    assert state.by == [m.Counts(f"t{turn}", 3, 6, 0, 3, 0, 3, 0) for turn in range(3)]
    assert state.states["open"] == 9
    assert [each.shard for each in state.shards] == [*SHARDS]
    assert state.measures is not None
    assert state.measures.events["failed"] == 9


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_events_come_in_the_order_in_which_they_happened(queue: Queue, newest_first: bool, limit: int) -> None:
    where = m.HistoryFilter(events=["failed"])
    pages = events(queue, where, newest_first=newest_first, limit=limit)
    found = [row.submission_id for page in pages for row in page.rows]
    assert found == (queue.ids[::-1] if newest_first else queue.ids)


def test_what_runs_comes_longest_first(queue: Queue) -> None:
    assert [int(each.submission_id) for each in running(queue, page_rows=2)] == queue.ids


def test_top_sees_the_failures_of_all_shards_and_later_ones_too(queue: Queue) -> None:
    watch = TopWatch()
    first = watch.look(queue, Sight())
    assert [each.submission_id for each in first.failures if each.event == "failed"] == queue.ids[::-1]
    assert len(first.running) == 9
    late = queue._fill(SHARDS[0], 3)
    assert [each.submission_id for each in watch.look(queue, Sight()).failures if each.event == "failed"] == [
        late,
        *queue.ids[::-1],
    ]


def test_dead_chunks_are_listed_and_requeued_everywhere(queue: Queue) -> None:
    for rig in queue.rigs.values():
        rig.fold()
    found: list[int] = []
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = queue.call(m.Dead(7, after=after, limit=2), m.DeadChunks)
        found += [row.submission_id for row in page.chunks]
        after = page.next_after
    assert found == sorted(queue.ids)
    two = m.DeadFilter(queue.ids[:2])
    assert queue.call(m.Requeue(7, None, where=two), m.Changed).count == 2
    assert queue.call(m.Requeue(7, None), m.Changed).count == 7


def test_rules_hold_at_all_shards(queue: Queue) -> None:
    assert queue.call(m.Limit(7, "tenant", "t0", 5, revision=4), m.Changed) == m.Changed(7, 1, True)
    rules = queue.call(m.ShowRules(7), m.RulesState)
    assert ([limit.value for limit in rules.limits], rules.limits[0].reserved_count, rules.revision) == (["t0"], 1, 4)
    assert queue.call(m.Unlimit(7, "tenant", "t0", revision=5), m.Changed).count == 1
    with pytest.raises(NotFound, match="no such limit"):
        queue.call(m.Unlimit(7, "tenant", "t0", revision=6), m.Changed)


def test_content_comes_from_the_shard_of_each_submission(queue: Queue) -> None:
    reply = queue.call(m.Describe(7, [*queue.ids, 3 << 12]), m.Described)
    assert [each.submission_id for each in reply.submissions] == queue.ids


def test_what_all_shards_refuse_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="is not an event"):
        queue.call(m.History(7, m.HistoryFilter(events=["vanished"])), m.HistoryRows)


def test_a_strategy_is_explained_and_tried_where_it_has_work(queue: Queue) -> None:
    text = f"SelectOnly(submission={queue.ids[1]}, OldestFirst)"
    reply = queue.call(m.Explain(7, text, analyze=True), m.Explained)
    assert {offer.submission_id for offer in reply.offers} == {queue.ids[1]}
    assert "shard 5 (host:1)" in reply.notes[-1]
