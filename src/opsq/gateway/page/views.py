"""What each page shows: asks the daemon for it, a bounded number of rows of everything.

It must not write HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from opsq.documents.asking import ATTEMPTS, newest_events, running
from opsq.documents.composing import chunk_document, submission_document
from opsq.documents.submission_text import reason_text
from opsq.errors import UsageError
from opsq.gateway.blocking_queue import BlockingQueue
from opsq.gateway.page.drawing import ChunkMap, chunk_map, counts_plot, longest_plot
from opsq.gateway.page.rendering import now_ms
from opsq.ids import SubmissionId, blocks_of, parse_submission_id
from opsq.options.conditions import FINAL
from opsq.strategy.tree import parse_pairs
from opsq.units import parse_count, parse_duration
from opsq.wire import messages as m


class Look(NamedTuple):
    """What a view is asked: of which daemon, what the path names, and what the query says."""

    daemon: BlockingQueue
    path: Mapping[str, str]
    query: Mapping[str, str]


View = Callable[[Look], dict[str, Any]]
"""What a template needs."""

ROWS = 50
RUNNING_SHOWN, FAILURES_SHOWN = 10, 10
PLOTTED = 500
HISTORY_PAGES = 3
"""That are searched for what is rare in them."""
RATE_EVENTS, RATE_S = 300, 60.0
"""Ends of chunks by which the rate is estimated; it is unknown when the last is older."""
MAP_CHUNKS, MAP_BLOCKS = 1 << 20, 4096
"""A submission with more chunks has no map; blocks that are asked for at once."""
MAP_DEAD = 1000
TRIED_STRATEGIES = ("Random", "OldestFirst", "NewestFirst", "CustomPriority")


def overview(look: Look) -> dict[str, Any]:
    """Counts, rate, what is held back, what runs where, consumers, latest failures."""
    daemon = look.daemon
    state = daemon.call(m.Status(daemon.next_id(), None, "", measures=True), m.DaemonState)
    ends, _ = newest_events(daemon, m.HistoryFilter(events=["completed", "dead"]), RATE_EVENTS, 1)
    failures, _ = newest_events(daemon, m.HistoryFilter(events=list(ATTEMPTS)), FAILURES_SHOWN, HISTORY_PAGES)
    total = state.total
    backlog = total.backlog_count
    rate = _rate(ends)
    return {
        "state": state,
        "backlog": backlog,
        "rate": rate,
        "left_s": backlog / rate if rate and backlog else None,
        "running": list(islice(running(daemon, None, None, RUNNING_SHOWN), RUNNING_SHOWN)),
        "failures": failures[::-1],
        "plot": counts_plot(ends, now_ms()) if rate else None,
    }


def _rate(ends: list[m.HistoryEvent]) -> float:
    """Chunks that end in a second, lately; 0: unknown."""
    now = now_ms()
    if len(ends) < 2 or now - ends[-1].at > RATE_S * 1000:
        return 0.0
    count = sum(event.mask.bit_count() for event in ends[1:])
    return count * 1000 / max(now - ends[0].at, 1)


def submissions(look: Look) -> dict[str, Any]:
    """Submissions, newest first."""
    daemon, query = look.daemon, look.query
    before = query.get("before")
    request = m.List(
        daemon.next_id(),
        [query["state"]] if query.get("state") else [],
        metadata_of(query.get("m", "")),
        parse_submission_id(before) if before else None,
        ROWS,
    )
    page = daemon.call(request, m.Listed)
    return {"rows": page.submissions, "next": page.next_before, "states": m.STATES}


def submission(look: Look) -> dict[str, Any]:
    """One submission."""
    daemon, path = look.daemon, look.path
    submission_id = parse_submission_id(path["id"])
    composed = submission_document(daemon, submission_id, HISTORY_PAGES)
    state = composed.state
    explained = daemon.call(m.ExplainWork(daemon.next_id(), submission_id), m.WorkExplained)
    busy = daemon.call(m.Running(daemon.next_id(), submission_id, limit=MAP_DEAD), m.RunningChunks)
    return {
        "state": state,
        "shape": composed.document,
        "reason": reason_text(state, partial(composed.inputs.of, submission_id)),
        "explained": explained,
        "meter": composed.meter,
        "failures": composed.failed[::-1],
        "running": list(islice(running(daemon, submission_id, None, ROWS), ROWS)) if busy.rows else [],
        "map": _map(daemon, state, busy),
        "final": state.state in FINAL,
    }


def _map(daemon: BlockingQueue, state: m.SubmissionState, busy: m.RunningChunks) -> ChunkMap | None:
    """The chunks of a submission, if they are not too many."""
    count, submission_id = state.chunks_count, state.submission_id
    if not 0 < count <= MAP_CHUNKS:
        return None
    completed: list[int] = []
    while len(completed) < blocks_of(count):
        first = len(completed) * 64
        rows = daemon.call(
            m.Results(daemon.next_id(), submission_id, first, MAP_BLOCKS, without_rows=True), m.ResultRows
        )
        if not rows.completed:
            break
        completed += rows.completed
    dead = (
        []
        if not state.dead_count
        else daemon.call(m.Dead(daemon.next_id(), submission_id, limit=MAP_DEAD), m.DeadChunks).chunks
    )
    masks: dict[int, int] = {}
    for row in busy.rows:
        masks[row.block] = masks.get(row.block, 0) | row.mask
    is_final = state.state in FINAL
    return chunk_map(count, completed, masks, (chunk.index for chunk in dead), is_final=is_final)


def chunk(look: Look) -> dict[str, Any]:
    """One chunk."""
    daemon, path = look.daemon, look.path
    submission_id, index = _chunk(f"{path['id']}/{path['index']}")
    return {
        "found": chunk_document(daemon, submission_id, index or 0, HISTORY_PAGES),
        "name": f"{submission_id}/{index}",
    }


def dead(look: Look) -> dict[str, Any]:
    """Dead chunks."""
    daemon, query = look.daemon, look.query
    named = query.get("id", "").strip()
    after_id, after_index = _chunk(query["after"]) if query.get("after") else (0, -1)
    where = m.DeadFilter(metadata=metadata_of(query.get("m", "")), reason=query.get("reason", ""))
    place = (after_id, -1 if after_index is None else after_index)
    page = daemon.call(
        m.Dead(daemon.next_id(), parse_submission_id(named) if named else None, place, ROWS, where), m.DeadChunks
    )
    return {"rows": page.chunks, "next": page.next_after and "{}/{}".format(*page.next_after)}


def schedules(look: Look) -> dict[str, Any]:
    """Schedules, by name."""
    daemon = look.daemon
    page = daemon.call(m.ShowSchedules(daemon.next_id(), None, look.query.get("after", ""), ROWS), m.Schedules)
    rows = page.schedules
    return {"rows": rows, "next": rows[-1].schedule.name if page.has_more else None}


def rules(look: Look) -> dict[str, Any]:
    """Pauses, limits and weights."""
    daemon = look.daemon
    return {"state": daemon.call(m.ShowRules(daemon.next_id()), m.RulesState)}


def strategies(look: Look) -> dict[str, Any]:
    """How a strategy is served; and which strategies consumers have."""
    daemon, query = look.daemon, look.query
    state = daemon.call(m.Status(daemon.next_id()), m.DaemonState)
    known = [consumer.waiting_strategy for consumer in state.consumers if consumer.waiting_strategy]
    text = query.get("s", "").strip()
    request = m.Explain(daemon.next_id(), text, bool(query.get("try")))
    return {
        "explained": daemon.call(request, m.Explained) if text else None,
        "known": sorted(set(known))[:ROWS],
        "tried": TRIED_STRATEGIES,
    }


def history(look: Look) -> dict[str, Any]:
    """What has happened, newest first."""
    daemon, query = look.daemon, look.query
    subject = query.get("id", "").strip()
    submission_id, index = _chunk(subject) if subject else (None, None)
    where = m.HistoryFilter(
        submission_id=submission_id,
        index=index,
        events=[query["event"]] if query.get("event") else [],
        consumer=query.get("consumer", ""),
        metadata=metadata_of(query.get("m", "")),
        reason=query.get("reason", ""),
        from_at=_since(query.get("since", "")),
    )
    after = query.get("after", "")
    request = m.History(daemon.next_id(), where, _number(after) if after else None, PLOTTED, newest_first=True)
    plotted = daemon.call(request, m.HistoryRows).rows
    attempts = [event for event in plotted if event.event != "dead"]  # which a failure tells, too
    page = daemon.call(replace(request, id=daemon.next_id(), limit=ROWS), m.HistoryRows)
    return {
        "page": page,
        "rows": page.rows,
        "plotted": plotted,
        "next": page.next_after,  # of several shards, no event alone says where to go on
        "events": m.EVENTS,
        "plots": [
            ("Chunks by how attempts ended", "count", counts_plot(attempts or plotted)),
            ("Longest attempt", "span", longest_plot(plotted, "run")),
            ("Longest wait before an attempt", "span", longest_plot(plotted, "wait")),
        ],
    }


# --- what queries say -------------------------------------------------------------------------------------------------


def metadata_of(text: str) -> dict[str, int | str]:
    """Pairs as people type them: words, with quotes around those that have spaces.

    Raises:
        UsageError: a word is none.
    """
    try:
        return parse_pairs(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"The metadata cannot be read: {error}.", hint="Write KEY=VALUE, with spaces between."
        ) from error


def _chunk(text: str) -> tuple[SubmissionId, int | None]:
    """A submission, or a chunk as SUBMISSION/INDEX."""
    name, slash, index = text.partition("/")
    return parse_submission_id(name), _number(index) if slash else None


def _number(text: str) -> int:
    number = parse_count(text)
    if number is None:
        raise UsageError(f"{text!r:.80} is not a number.")
    return number


def _since(text: str) -> int | None:
    """When it was, so long ago; None: at any time."""
    if not text.strip():
        return None
    try:
        return max(now_ms() - int(parse_duration(text.strip()) * 1000), 0)
    except ValueError as error:
        raise UsageError(f"{error}.") from error
