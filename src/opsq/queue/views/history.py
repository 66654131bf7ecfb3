"""What the history tells: events that fulfil conditions, page by page. Reads only."""

from __future__ import annotations

from opsq.errors import UsageError
from opsq.queue.folding import Folding
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import history, lanes, submissions
from opsq.store.history import HistoryRow, Where
from opsq.wire.messages import History, HistoryEvent, HistoryFilter, HistoryRows

PAGE_BYTES = 4 << 20
"""A page ends with the event in which its reasons and metadata become longer."""


class HistoryView:
    """Answers questions about what has happened."""

    def __init__(self, state: EngineState, folding: Folding) -> None:
        self._state = state
        self._folding = folding

    def history(self, peer: Peer, request: History) -> None:
        """Answer with a page of events.

        Raises:
            UsageError: an event that there is not, or a chunk of no submission.
            Moved: the submission that is asked for has moved: its history went with it, and what is left of it goes.
        """
        state, asked_id = self._state, request.where.submission_id
        if asked_id is not None and (elsewhere := state.moved(asked_id)) is not None:
            raise elsewhere
        where = self._where(request.where)
        if where is None:
            state.reply(peer, HistoryRows(request.id, [], None, {}, shard=state.shard or 0))
            return
        rows, following = history.page(
            state.reader,
            where,
            request.after,
            request.limit,
            self._folding.folded_seq,
            newest_first=request.newest_first,
        )
        events: list[HistoryEvent] = []
        found = lanes.metadata(state.reader, {row.submission_id for _, row in rows})
        metadata: dict[int, dict[str, int | str]] = {}
        size_bytes = 0
        for seq, row in rows:
            if size_bytes > PAGE_BYTES:
                following = events[-1].seq
                break
            if row.submission_id not in metadata:
                pairs = metadata[row.submission_id] = found[row.submission_id]
                size_bytes += sum(len(key) + len(str(value)) for key, value in pairs.items())
            size_bytes += len(row.reason)
            events.append(_event(seq, row))
        titles = submissions.titles(state.reader, metadata)
        metadata = {key: pairs for key, pairs in metadata.items() if pairs}
        reached_at = None
        if following is not None:
            reached_at = history.instant_at(state.reader, following, newest_first=request.newest_first)
        state.reply(peer, HistoryRows(request.id, events, following, metadata, titles, reached_at, state.shard or 0))

    def _where(self, conditions: HistoryFilter) -> Where | None:
        """The conditions as the store knows them; None when a metadata pair has never been."""
        unknown = sorted(set(conditions.events) - set(history.EVENTS))
        if unknown:
            raise UsageError(cause="unknown_event", name=unknown[0], names=", ".join(history.EVENTS))
        if conditions.index is not None and conditions.submission_id is None:
            raise UsageError(cause="chunk_without_submission")
        lane_ids = lanes.find_all(self._state.reader, conditions.metadata)
        if lane_ids is None:
            return None
        return Where(
            conditions.submission_id,
            conditions.index,
            tuple(conditions.events),
            conditions.consumer,
            lane_ids,
            conditions.reason,
            tuple(conditions.exit_statuses),
            tuple(conditions.signals),
            conditions.from_at,
            conditions.to_at,
        )


def _event(seq: int, row: HistoryRow) -> HistoryEvent:
    return HistoryEvent(
        seq,
        row.at,
        row.event,
        row.submission_id,
        row.block,
        row.mask,
        row.attempt,
        row.consumer,
        row.run_s,
        row.run_max_s,
        row.wait_s,
        row.exit_status,
        row.signal,
        row.reason,
    )
