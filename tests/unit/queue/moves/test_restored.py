"""Daemons whose files are older than what the other one knows: restored from a replica, which lags, or a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import Conflict
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair, states


def restore(rig: Rig, driver: int) -> None:
    """Have the file be as it was when so many movers had begun."""
    rig.database.writer.execute("UPDATE meta SET value = ? WHERE key = 'move_driver'", (driver,))
    rig.crash()


def test_nothing_that_a_mover_goes_on_from_is_answered_before_the_replica_has_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Policy(replicate_to="s3://bucket/queue"))
    submission = pair.source.submit(100)
    worker = pair.source.connect("worker")
    [ticket] = pair.source.reserve(worker, 1)
    pair.source.complete(worker, ticket.held())
    pair.source.fold()
    pair.move()
    assert pair.calls.count("StageSlice") == 2  # the last one says that all is there
    assert pair.awaited == ["DriveMoves", "AdmitMover", "StageSlice", "CommitMove", "ActivateMoved"]
    assert set(states(pair.target)) == {submission}
    pair.close()


def test_answers_that_are_given_again_wait_for_the_replica_as_well(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Policy(replicate_to="s3://bucket/queue"))
    pair.source.submit(1)
    mover, held = pair.holding()
    part = mover.export(held)
    mover.stage(held, part)
    mover.stage(held, part)
    mover.commit(held)
    assert [mover.activate(held), mover.activate(held)] == [1, 0]
    assert pair.awaited[2:] == ["StageSlice", "StageSlice", "CommitMove", "ActivateMoved", "ActivateMoved"]
    pair.close()


def test_nothing_waits_for_a_replica_that_there_is_not(pair: Pair) -> None:
    pair.source.submit(1)
    pair.move()
    assert pair.awaited == []


@pytest.mark.parametrize("behind_count", [1, 2, 3])
def test_source_that_was_restored_goes_on_above_the_movers_that_the_target_knows(pair: Pair, behind_count: int) -> None:
    for _ in range(3):
        pair.move()
    submission = pair.source.submit(10)
    early = pair.mover()
    list(early.recover())
    stale = early.hold()
    part = early.export(stale)
    pair.disconnect_mover(early)
    restore(pair.source, 4 - behind_count)
    mover, held = pair.staged()
    early.reconnect_target()
    with pytest.raises(Conflict, match="Another"):
        early.stage(stale, part)
    mover.commit(held)
    assert mover.activate(held) == 1
    assert set(states(pair.target)) == {submission}
    pair.check()


def test_mover_that_another_one_has_overtaken_before_it_is_admitted_does_not_go_on(pair: Pair) -> None:
    pair.source.submit(10)
    late = pair.mover()
    pair.beside = (m.AdmitMover, pair.move)
    with pytest.raises(Conflict, match="Another"):
        list(late.recover())
    assert pair.calls[-1] == "DriveMoves"
