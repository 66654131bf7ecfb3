"""Mover, source and target are killed at every step of a move, while consumers work: nothing is lost or done twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from opsq.errors import Moved
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Killed, Pair, states

KILLS = ("mover", "mover late", "source", "source late", "target", "target late")
CRUCIAL = {"CommitMove", "ActivateMoved", "ConfirmMoved"}
CHUNKS = {"plain": 70, "joined": 2, "join": 1}


def submit(rig: Rig) -> dict[int, int]:
    """Submissions of which some chunks are done, one is dead, and one waits for another; chunks by id."""
    plain = rig.submit(CHUNKS["plain"], keep_on_dead=True)
    joined = rig.submit(CHUNKS["joined"], metadata={"batch": 1})
    join = rig.submit(CHUNKS["join"], after=[m.Dependency(key="batch", value=1)])
    return {plain: CHUNKS["plain"], joined: CHUNKS["joined"], join: CHUNKS["join"]}


def work(rig: Rig, done: Counter[tuple[int, int]], most: int) -> int:
    """A consumer completes up to so many chunks; those whose completion was acknowledged are counted."""
    peer = rig.connect("worker")
    count = 0
    for ticket in rig.reserve(peer, most):
        indexes = ticket.indexes
        results = msgspec.Raw(msgspec.msgpack.encode([b"%d" % index for index in indexes]))
        if not rig.complete(peer, ticket.held(), results=results):
            done.update((ticket.submission_id, index) for index in indexes)
            count += len(indexes)
    rig.disconnect(peer)
    rig.settle()
    return count


def play(pair: Pair, kill_at: tuple[int, str] | None) -> None:
    """Move while consumers work, with one kill; then move again, work all off, and look at everything."""
    done: Counter[tuple[int, int]] = Counter()
    chunks = submit(pair.source)
    work(pair.source, done, 5)
    pair.kill_at = kill_at
    mover = pair.mover()
    try:
        for _ in mover.run():
            work(pair.target, done, 3)
    except Killed:
        pass
    pair.kill_at = None
    pair.disconnect_mover(mover)
    pair.check()
    work(pair.source, done, 4)
    work(pair.target, done, 4)
    assert pair.move().left == {}
    assert states(pair.source) == {}
    for submission_id in chunks:
        with pytest.raises(Moved):
            pair.source.show(submission_id)
    pair.settle()
    while work(pair.target, done, 50):
        pass
    pair.settle()
    pair.check()
    assert done == {(submission_id, index): 1 for submission_id, count in chunks.items() for index in range(count)}
    target = pair.target
    for submission_id, count in chunks.items():
        assert states(target)[submission_id].state == "completed"
        rows = target.only(target.connect(), m.Results(next(target.ids), submission_id), m.ResultRows).rows
        found = Counter(result for row in rows for result in msgspec.msgpack.decode(row.results))
        assert found == {b"%d" % index: 1 for index in range(count)}
    assert target.rows("SELECT * FROM arriving") == pair.source.rows("SELECT * FROM arriving") == []
    assert target.rows("SELECT * FROM moved WHERE NOT is_confirmed") == []
    assert pair.source.rows("SELECT * FROM moved WHERE NOT is_confirmed") == []


def calls(folder: Path) -> list[str]:
    """What an undisturbed move asks for, in order."""
    folder.mkdir()
    pair = Pair(folder)
    submit(pair.source)
    work(pair.source, Counter(), 5)
    pair.move()
    pair.close()
    return pair.calls


def test_kill_at_any_step_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    """At the steps that change owners everybody is killed, before and after; at the others one of them."""
    for step, call in enumerate(calls(tmp_path / "whole"), 1):
        for number, kill in enumerate(KILLS):
            if call in CRUCIAL or number == step % len(KILLS):
                folder = tmp_path / f"{step}-{number}"
                folder.mkdir()
                pair = Pair(folder)
                play(pair, (step, kill))
                pair.close()
