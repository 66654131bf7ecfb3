"""The order delivered is the naive definition of the strategy at every instant, whatever comes and goes meanwhile.

Each world is small, so that its strategies, limits and submissions meet all the time, and is told a long random story.
A story that fails is shrunk; the message holds what `play` needs to tell it again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings

from opsq.queue.chunks import reserve
from opsq.queue.dispatch import front
from opsq.queue.submissions import retention
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
)
from unit.story import KEYS, VALUES, Step, play

STEPS = 200
WORLDS = 25
"""Told by one test."""
SOAK = settings().max_examples // 100
"""How many times as many worlds are to be told: 1, but for a soak."""
SEED = random.SystemRandom().randrange(1 << 32) if SOAK > 1 else 0

OFTEN = ["submit", "reserve", "release", "complete"]
SOMETIMES = ["park", "lease", "follow", "fail", "pass_time", "limit", "unlimit", "pause", "resume"]
SELDOM = ["schedule", "submit_again", "cancel", "requeue", "bury", "disconnect", "reclaim", "weight", "fold"]
SELDOM += ["restart", "crash"]


class World:
    """What a story is about: a few strategies, how often each step comes, how long a turn of the engine is."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.has_short_turns = rng.random() < 0.2
        self.turn_rows = rng.randint(1, 9) if self.has_short_turns else reserve.TURN_ROWS
        self.walk_rows = rng.choice([2, 3, front.WALK_ROWS])
        self._keys = rng.choice([KEYS, KEYS, KEYS[:1], [*KEYS, "submission"]])
        self._values = rng.choice([VALUES, VALUES[:1], VALUES[1:]])
        self.strategies = [self._strategy(rng.randint(1, 4)) for _ in range(rng.randint(1, 4))]
        most = rng.choice([4, 16, 64])
        weights = {name: weight for names, weight in ((OFTEN, 9), (SOMETIMES, 3), (SELDOM, 1)) for name in names}
        weights = {name: weight * rng.choice([0, 1, 1, 2]) for name, weight in weights.items()}
        weights |= {"submit": rng.choice([4, 9, 18]), "reserve": rng.choice([9, 18])}
        self.steps: list[Step] = [
            (name, rng.randrange(most), rng.randrange(64), rng.randrange(64))
            for name in rng.choices(list(weights), list(weights.values()), k=STEPS)
        ]

    def _strategy(self, depth: int) -> Strategy:
        """Any tree; a turn that is cut by its bound is shared out otherwise by `Fair` and `Random`."""
        rng, orders = self.rng, [OldestFirst(), NewestFirst(), CustomPriority()]
        if depth == 1:
            return rng.choice(orders if self.has_short_turns else [*orders, Random()])
        node = rng.choice([SelectOnly, MaxSimultaneous, PreferDistinct, OrElse, Fair])
        if node is OrElse or (node is Fair and self.has_short_turns):
            return OrElse(self._strategy(depth - 1), self._strategy(depth - 1))
        key, inner = rng.choice(self._keys), self._strategy(depth - 1)
        if node is Fair:
            return Fair(key, inner)
        if node is SelectOnly:
            return SelectOnly(key, rng.choice(self._values), inner)
        return node(key, rng.choice([1, 1, 2, 5, Percent(20), Percent(50), Percent(100)]), inner)

    def tell(self, steps: list[Step]) -> AssertionError | None:
        """Tell a story in this world; what was wrong."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reserve, "TURN_ROWS", self.turn_rows)
            patch.setattr(front, "WALK_ROWS", self.walk_rows)
            patch.setattr(retention, "PERIOD_NS", 1 << 60)  # passes are pruned as each process begins, and then only
            try:
                play(self.strategies, steps)
            except AssertionError as error:
                return error
        return None


def shrunk(world: World) -> list[Step]:
    """A story that fails and no longer does if any one step is left out: delta debugging, halves first.

    Source: Zeller, Hildebrandt, *Simplifying and Isolating Failure-Inducing Input* (2002).
    """
    steps = world.steps
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if world.tell(fewer) is not None:
                steps = fewer
            else:
                at += size
        size = min(size // 2, len(steps)) if size > 1 else 0
    return steps


@pytest.mark.parametrize("part", range(20))
@pytest.mark.timeout(600 * SOAK)
def test_order_delivered_is_the_naive_one_at_every_instant(part: int) -> None:
    for number in range(WORLDS * SOAK):
        world = World(SEED + part * WORLDS * SOAK + number)
        if world.tell(world.steps) is not None:
            steps = shrunk(world)
            strategies = ", ".join(map(str, world.strategies))
            raise AssertionError(
                f"seed {world.seed}, turns of {world.turn_rows} rows, {world.walk_rows} read ahead\n"
                f"strategies: {strategies}\nsteps: {steps}"
            ) from world.tell(steps)
