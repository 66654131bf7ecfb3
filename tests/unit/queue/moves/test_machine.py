"""Moves under random steps, by one seed: `OPSQ_TEST_STEPS` says how many, `OPSQ_TEST_SEED` which.

Producers, consumers and operators at two engines; commits in their three parts, which may fail; kills of either process
between any two steps; up to two movers at once, that stop at any call and may be killed there. It is run in parts, as
the simulation, and Hypothesis shrinks what fails.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.power.dice import BACKEND, Dice
from opsq.client.core import mover
from opsq.queue.moves import listing, source
from opsq.store import move_units, transfer
from unit.queue.moves.moving import Moving
from unit.queue.moves.stepped import pause
from unit.queue.test_state_machine import small_bounds  # noqa: F401  # a fixture

SMALL = {
    (mover, "BATCH_SUBMISSIONS"): 3,
    (mover, "TOGETHER_ACTIVE"): 2,
    (mover, "TOGETHER_SUBMISSIONS"): 2,
    (listing, "LISTED"): 2,
    (source, "LOOK_ROWS"): 60,
    (move_units, "UNIT_LIMIT"): 4,
    (move_units, "SCAN_ROWS"): 4,
    (transfer, "SLICE_ROWS"): 3,
}
LENGTH, PART_RUNS = 150, 8
STEPS = int(os.environ.get("OPSQ_TEST_STEPS", "2400"))
SEED = os.environ.get("OPSQ_TEST_SEED", "9")


def parts() -> list[str]:
    """The seeds of the parts of the run."""
    return [SEED] if "/" in SEED else [f"{SEED}/{number}" for number in range(max(STEPS // (LENGTH * PART_RUNS), 1))]


@pytest.fixture
def small_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bounds of moves met by few submissions, and no mover wait for the clock of this machine."""
    for (module, name), value in SMALL.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(mover, "time", SimpleNamespace(sleep=pause, monotonic=lambda: 0.0))


@pytest.mark.usefixtures("small_moves")
@pytest.mark.parametrize("part", parts(), ids=lambda part: part.replace("/", "-"))
def test_moves_lose_nothing_and_do_nothing_twice_whatever_happens(part: str) -> None:
    Dice.seed = part
    profile = settings(
        backend=BACKEND,
        max_examples=PART_RUNS,
        stateful_step_count=LENGTH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Moving, settings=profile)
    except BaseException as error:
        error.add_note(f"To replay: OPSQ_TEST_SEED={part} pytest {os.path.relpath(__file__)}")
        raise
