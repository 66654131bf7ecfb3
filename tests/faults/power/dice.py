"""What the simulation draws, by its seed alone: evenly, and each run anew.

Hypothesis itself begins with the simplest runs, which do one step over and over, then varies runs that it has had, and
likes the constants of whatever modules are loaded, so that a seed would mean something else beside other tests. It
still shrinks what is found.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

BACKEND = "opsq-simulation"
WIDE = 1 << 20
"""Wider integers than this are masks, as a rule: few bits, any, or all of them."""


class Dice(PrimitiveProvider):
    """Draws for one part of a run."""

    seed: ClassVar[str] = ""

    def __init__(self, conjecturedata: Any, /) -> None:
        super().__init__(conjecturedata)
        self._random = random.Random(self.seed)

    def draw_boolean(self, p: float = 0.5) -> bool:
        """See `PrimitiveProvider`."""
        return self._random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """See `PrimitiveProvider`."""
        assert min_value is not None
        assert max_value is not None
        width = max_value - min_value
        if width > WIDE:
            kind = self._random.random()
            if kind < 0.25:
                return max_value
            if kind < 0.75:
                width >>= self._random.randrange(width.bit_length())
        return self._random.randint(min_value, min_value + width)

    def draw_float(self, **bounds: Any) -> float:
        """No rule draws one."""
        raise TypeError("A rule draws floats: say here how they come evenly.")

    def draw_string(self, *bounds: Any, **sizes: Any) -> str:
        """No rule draws one."""
        raise TypeError("A rule draws text: say here how it comes evenly.")

    def draw_bytes(self, *sizes: Any, **more: Any) -> bytes:
        """No rule draws one."""
        raise TypeError("A rule draws bytes: say here how they come evenly.")


AVAILABLE_PROVIDERS[BACKEND] = Dice
