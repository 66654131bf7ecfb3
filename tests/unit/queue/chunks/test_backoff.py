"""Back-off: exponential, bounded, and spread."""

from __future__ import annotations

import random

import pytest

from opsq.queue.chunks.backoff import JITTER, backoff_s
from opsq.wire import messages as m


class Extreme(random.Random):
    """Always one end of the range."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.end = end

    def uniform(self, a: float, b: float) -> float:
        return (a, b)[self.end]


@pytest.mark.parametrize(
    ("attempts", "expected"), [(1, 1.0), (2, 2.0), (3, 4.0), (9, 256.0), (10, 300.0), (5000, 300.0), (1 << 31, 300.0)]
)
def test_back_off_doubles_up_to_its_maximum_whatever_the_attempt(attempts: int, expected: float) -> None:
    """Clamped before it is multiplied: 2.0 ** 5000 is no float."""
    backoff = m.Backoff(1.0, 2.0, 300.0)
    assert backoff_s(backoff, attempts, Extreme(0)) == pytest.approx(expected * (1 - JITTER))
    assert backoff_s(backoff, attempts, Extreme(1)) == pytest.approx(expected * (1 + JITTER))


def test_back_off_with_the_largest_numbers_allowed_is_its_maximum() -> None:
    assert backoff_s(m.Backoff(1e9, 100.0, 1e9), 5000, Extreme(0)) == pytest.approx(8e8)


def test_jitter_spreads_chunks_that_fail_together() -> None:
    rng = random.Random(1)
    delays = {round(backoff_s(m.Backoff(1.0, 2.0, 300.0), 3, rng), 6) for _ in range(50)}
    assert len(delays) > 40
    assert 3.2 <= min(delays) < max(delays) <= 4.8
