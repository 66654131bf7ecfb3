"""Copies that have come to the target and are not active there: whom they keep from their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.errors import Conflict
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair, StepMover

KEYS: tuple[dict[str, str], ...] = ({"unique_key": "nightly"}, {"idempotency_key": "once"}, {})
NAMES = ["unique", "idempotency", "request"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def stage_all(pair: Pair) -> tuple[StepMover, m.HeldForMove]:
    """A mover, and what it has copied and not yet moved."""
    mover = pair.mover()
    list(mover.recover())
    held = mover.hold()
    mover.copy(held)
    return mover, held


@pytest.mark.parametrize("keys", KEYS, ids=NAMES)
def test_submit_whose_key_belongs_to_an_arriving_copy_is_refused_until_that_is_active(
    pair: Pair, keys: dict[str, str]
) -> None:
    first = m.NewSubmission(b"first request...", 3, **keys)
    again = m.NewSubmission(b"another request." if keys else first.request_key, 3, **keys)
    submission = submit(pair.source, first).submission_id
    mover, held = stage_all(pair)
    target = pair.target
    with pytest.raises(Conflict, match="moving here"):
        submit(target, again)
    with pytest.raises(Conflict, match="moving here"):
        target.ask(target.connect(), m.CheckCapacity(next(target.ids), 3, submission=again))
    mover.commit(held)
    mover.activate(held)
    assert submit(target, again) == m.Created(submission, False)


@pytest.mark.parametrize("keys", KEYS, ids=NAMES)
def test_keys_of_a_copy_that_was_dropped_are_free_once_it_is_gone(pair: Pair, keys: dict[str, str]) -> None:
    new = m.NewSubmission(b"first request...", 3, **keys)
    submission = submit(pair.source, new).submission_id
    mover, held = stage_all(pair)
    mover.drop(held)
    target = pair.target
    with pytest.raises(Conflict, match="being removed"):
        submit(target, new)
    pair.settle()
    created = submit(target, new)
    assert created.is_new
    assert created.submission_id != submission


def submit(rig: Rig, new: m.NewSubmission) -> m.Created:
    [created] = rig.only(rig.connect(), m.Submit(next(rig.ids), [new]), m.Submitted).created
    return created
