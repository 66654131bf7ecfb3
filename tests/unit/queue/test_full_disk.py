"""A full disk: how much of what is spare a request takes; `tests/faults/test_disk_full.py` has real ones."""

from __future__ import annotations

import pytest

from opsq.errors import StorageFull
from opsq.store.write_ahead_log import WriteAheadLog
from opsq.wire import messages as m
from unit.model.rig import Rig


def test_failures_take_room_for_each_of_their_chunks_with_its_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be a failure, a death and a dead letter."""
    rig.submit(64)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 64)
    rig.engine._state.is_full = True
    monkeypatch.setattr(WriteAheadLog, "room_for_growth_bytes", lambda *_: 3 * 64 * 1000)
    with pytest.raises(StorageFull):
        rig.send(peer, m.Fail(1, [m.Failure(ticket.held(), "x" * 1000)]))
    rig.send(peer, m.Fail(2, [m.Failure(ticket.held(range(32)), "x" * 1000)]))
    with pytest.raises(StorageFull):
        rig.send(peer, m.Fail(3, [m.Failure(ticket.held(range(32, 64)), "x" * 1000)]))
    rig.settle()
    assert len(rig.replies(peer, 2)) == 1
