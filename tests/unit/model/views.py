"""What every view of the engine says of chunks, held against the model and so against each other.

It asks as a client does, and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from opsq.errors import OpsqError
from opsq.ids import mask_indexes
from opsq.queue.engine import Peer
from opsq.wire import messages as m
from unit.model.naive import Model
from unit.model.rig import Rig
from unit.model.things import FINAL, Submission

Told = TypeVar("Told")
KEYS = ("k", "l")
STATES = {"free": 0, "delayed": 1, "reserved": 2, "done": 3, "dead": 4, "skipped": 5, "dropped": 5}
"""Where chunks of each state are counted: waiting, delayed, reserved, completed, dead, skipped."""
ENDS = {"completed": "done", "dead": "dead", "dropped": "dropped"}
"""The event of each state of which there must be one."""
VERDICTS = {"delayed": 1, "reserved": 2, "completed": 3, "dead": 4, "skipped": 5}
"""Of `explain` of a chunk; with any other it waits."""
Sums = tuple[int, int, int, int, int, int]


def naive_counts(*submissions: Submission) -> Sums:
    """Chunks that are waiting, delayed, reserved, completed, dead and skipped, one by one."""
    found = Counter([chunk.state for submission in submissions for chunk in submission.chunks])
    assert found.keys() <= STATES.keys()
    skipped = found["skipped"] + found["dropped"]
    return found["free"], found["delayed"], found["reserved"], found["done"], found["dead"], skipped


def check_views(rig: Rig, model: Model) -> None:
    """Status, show, list, explain, limits, dead, history and events say what the model says."""
    asker = rig.connect("asker")
    try:
        states = _check_lists(rig, model, m.List(0, limit=10_000), asker)
        _check_status(rig, model, asker)
        _check_running(rig, model, asker)
        _check_dead(rig, model, asker)
        _check_history(rig, model, asker)
        _check_events(rig, model, asker)
        _check_limits(rig, model, asker)
        for submission in model.submissions.values():
            shown = _ask(rig, asker, m.Show(0, submission.id), m.Shown)
            assert shown.submission == states[submission.id]
            _check_explained(rig, submission, asker)
    finally:
        rig.disconnect(asker)


def _ask(rig: Rig, asker: Peer, request: m.Request, kind: type[Told]) -> Told:
    """The answer to a question, which must come at once."""
    try:
        rig.send(asker, request)
    except OpsqError as error:
        raise AssertionError(request) from error
    [reply] = rig.replies(asker, 0)
    assert isinstance(reply, kind)
    return reply


def _of_state(state: m.SubmissionState) -> Sums:
    busy = (
        state.delayed_count,
        state.reserved_count,
        state.completed_count,
        state.dead_count,
        state.skipped_count,
    )
    return state.chunks_count - sum(busy), *busy


def _of_counts(counts: m.Counts) -> Sums:
    return (
        counts.waiting_count,
        counts.delayed_count,
        counts.reserved_count,
        counts.completed_count,
        counts.dead_count,
        counts.skipped_count,
    )


def _check_lists(rig: Rig, model: Model, request: m.List, asker: Peer) -> dict[int, m.SubmissionState]:
    states = {state.submission_id: state for state in _ask(rig, asker, request, m.Listed).submissions}
    assert {submission_id: _of_state(state) for submission_id, state in states.items()} == {
        submission.id: naive_counts(submission) for submission in model.submissions.values()
    }
    for name in sorted({state.state for state in states.values()}):
        listed = _ask(rig, asker, m.List(0, states=[name], limit=10_000), m.Listed).submissions
        assert listed == [state for state in states.values() if state.state == name]
    return states


def _check_status(rig: Rig, model: Model, asker: Peer) -> None:
    known = list(model.submissions.values())
    for key in KEYS:
        status = _ask(rig, asker, m.Status(0, key), m.DaemonState)
        assert status.total.submissions_count == len(known)
        assert _of_counts(status.total) == naive_counts(*known)
        groups: dict[int | str | None, list[Submission]] = {}
        for submission in known:
            groups.setdefault(submission.new.metadata.get(key), []).append(submission)
        if set(groups) == {None}:
            groups = {}
        assert {counts.value: (counts.submissions_count, _of_counts(counts)) for counts in status.by} == {
            value: (len(group), naive_counts(*group)) for value, group in groups.items()
        }
        assert sum(consumer.reserved_count for consumer in status.consumers) == status.total.reserved_count
        assert sum(status.states.values()) == len(known)


def _check_running(rig: Rig, model: Model, asker: Peer) -> None:
    """Once each: what is held and was begun, and all that is leased; in pages, the longest first."""
    rows: list[m.RunningChunk] = []
    after = None
    while True:
        page = _ask(rig, asker, m.Running(0, after=after, limit=2), m.RunningChunks)
        rows += page.rows
        after = page.next_after
        if after is None:
            break
    found = [(row.submission_id, index) for row in rows for index in mask_indexes(row.block, row.mask)]
    assert sorted(found) == sorted(
        (chunk.submission.id, chunk.index)
        for chunk in model.chunks()
        if chunk.reservation is not None and not chunk.intent
        if chunk.is_started or (chunk.reservation.is_lease and not chunk.reservation.is_for_restart)
    )
    assert [row.run_s for row in rows] == sorted((row.run_s for row in rows), reverse=True)


def _check_dead(rig: Rig, model: Model, asker: Peer) -> None:
    dead: list[m.DeadChunk] = []
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = _ask(rig, asker, m.Dead(0, after=after), m.DeadChunks)
        dead += page.chunks
        after = page.next_after
    assert [(chunk.submission_id, chunk.index) for chunk in dead] == sorted(
        (chunk.submission.id, chunk.index) for chunk in model.chunks() if chunk.state == "dead"
    )


def _check_history(rig: Rig, model: Model, asker: Peer) -> None:
    """What happened last to each chunk is what it is now."""
    last: dict[int, dict[int, str]] = {submission_id: {} for submission_id in model.submissions}
    for event in _history_of(rig, asker):
        if event.submission_id in last:
            last[event.submission_id] |= dict.fromkeys(mask_indexes(event.block, event.mask), event.event)
    for submission_id, events in last.items():
        assert {index: ENDS[name] for index, name in events.items() if name in ENDS} == {
            chunk.index: chunk.state
            for chunk in model.submissions[submission_id].chunks
            if chunk.state in {"done", "dead", "dropped"}
        }


def _history_of(rig: Rig, asker: Peer) -> Iterator[m.HistoryEvent]:
    """All of the history, page by page."""
    after: int | None = 0
    while after is not None:
        page = _ask(rig, asker, m.History(0, after=after, limit=10_000), m.HistoryRows)
        yield from page.rows
        after = page.next_after


def _check_events(rig: Rig, model: Model, asker: Peer) -> None:
    """What comes last of a submission that has ended is how."""
    last: dict[int | None, str] = {}
    for event in events_of(rig, asker):
        if event.kind in FINAL:
            last[event.submission_id] = event.kind
    for submission in model.submissions.values():
        if submission.state in FINAL and not submission.is_closing:
            assert last.get(submission.id) == submission.state, submission


def events_of(rig: Rig, asker: Peer) -> Iterator[m.Event]:
    """All events, page by page; there is no gap between their cursors."""
    since, rows = 0, None
    while rows is None or since < rows.last_seq:
        rows = _ask(rig, asker, m.Events(0, since, 100), m.EventRows)
        for event in rows.events:
            assert event.seq == since + 1
            since = event.seq
            yield event


def _check_limits(rig: Rig, model: Model, asker: Peer) -> None:
    """The busiest value of each limit has as many reserved as the model says; of a submission, back-offs count too."""
    for limit in _ask(rig, asker, m.ShowRules(0), m.RulesState).limits:
        found: Counter[int | str] = Counter()
        for submission in model.submissions.values():
            _, delayed, reserved, *_ = naive_counts(submission)
            if limit.key == "submission":
                found[submission.id] += reserved + delayed
            elif limit.key in submission.new.metadata:
                found[submission.new.metadata[limit.key]] += reserved
        assert limit.reserved_count == max(found.values(), default=0), limit


def _check_explained(rig: Rig, submission: Submission, asker: Peer) -> None:
    """The counts that `explain` of a submission names, and what it says of some of its chunks."""
    explained = _ask(rig, asker, m.ExplainWork(0, submission.id), m.WorkExplained)
    counts = next(found.details for found in explained.findings if found.code == "counts")
    names = ("waiting", "in_back_off", "reserved", "completed", "dead", "skipped")
    assert tuple(counts.get(name, 0) for name in names) == naive_counts(submission)
    if explained.verdict in {"reserved", "delayed"} and submission.state not in FINAL:
        assert counts.get("reserved" if explained.verdict == "reserved" else "in_back_off") or submission.is_closing
    chosen = {chunk.state: chunk for chunk in submission.chunks}
    for state, chunk in chosen.items():
        verdict = _ask(rig, asker, m.ExplainWork(0, submission.id, chunk.index), m.WorkExplained).verdict
        assert VERDICTS.get(verdict, 0) == STATES[state], (verdict, chunk)
