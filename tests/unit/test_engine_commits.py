"""Commits: what happens before, while and after they are under way, when they fail, and when the process dies around them."""

from __future__ import annotations

from opsq.wire import messages as m
from unit.model.rig import Rig, tickets_of


def submit(rig: Rig, chunks_count: int, request_id: int = 1) -> m.Submit:
    return m.Submit(request_id, [m.NewSubmission(rig.request_key(), chunks_count)])


# --- while a commit is under way ------------------------------------------------------------------------------------------------------


def test_submission_met_by_a_walk_before_its_commit_is_settled_is_handed_out_once(rig: Rig) -> None:
    """Stale reader: the COMMIT has ended in its thread, the engine has not been told."""
    producer, consumer = rig.connect(), rig.connect()
    rig.send(producer, submit(rig, 2))
    assert rig.begin()
    rig.database.commit()
    rig.send(consumer, m.Reserve(2, 1, "OldestFirst"))
    [reply] = rig.replies(consumer, 2)
    assert isinstance(reply, m.Reserved)
    rig.end(None)
    handed = [index for ticket in (*tickets_of(reply), *rig.reserve(consumer, 5)) for index in ticket.indexes]
    assert sorted(handed) == [0, 1]
