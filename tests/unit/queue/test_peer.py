"""Calls of one connection that wait: each under an id of its own, whatever it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.errors import UsageError
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig

KINDS = ["Reserve", "Wait", "Results", "Events", "Submit"]


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """A queue with room for one chunk beside two."""
    rig = Rig(runtime_dir, Policy(max_backlog_chunks=3))
    yield rig
    rig.close()


def waiting(rig: Rig, kind: str, submission_id: int) -> m.Request:
    """A request 7 that has to wait."""
    requests: dict[str, m.Request] = {
        "Reserve": m.Reserve(7, 1, f"SelectOnly(nobody={submission_id})", None),
        "Wait": m.Wait(7, submission_id),
        "Results": m.Results(7, submission_id, 0, wait_s=None),
        "Events": m.Events(7, wait_s=None),
        "Submit": m.Submit(7, [m.NewSubmission(rig.request_key(), 2)], None),
    }
    return requests[kind]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_id_of_a_call_that_waits_is_refused_to_another(rig: Rig, first: str, second: str) -> None:
    ids = [rig.submit(1), rig.submit(1)]
    peer = rig.connect()
    rig.send(peer, waiting(rig, first, ids[0]))
    with pytest.raises(UsageError, match="Request 7 of this connection is still waiting"):
        rig.ask(peer, waiting(rig, second, ids[1]))
    assert peer.parked_ids == {7}
    rig.disconnect(peer)
    assert not peer.parked_ids
    rooms = rig.engine._rooms
    subscriptions, events = rooms.subscriptions, rooms.event_stream
    waiting_counts = map(
        len, (rooms.reserve_calls, subscriptions._ends, subscriptions._readers, events._parked, rooms.admission)
    )
    assert list(waiting_counts) == [0] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_id_of_a_call_that_was_given_up_can_be_used_again(rig: Rig, kind: str) -> None:
    ids = [rig.submit(1), rig.submit(1)]
    peer = rig.connect()
    for submission_id in ids:
        rig.send(peer, waiting(rig, kind, submission_id))
        assert peer.parked_ids == {7}
        rig.send(peer, m.CancelWait(7))
        assert not peer.parked_ids
