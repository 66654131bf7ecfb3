"""Paired runs and their statistics: the sides take turns, so that a machine that slows down slows all of them.

It knows nothing of rows or rivals.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def alternate(pairs: int, *sides: Callable[[], float], warm_up: bool = True) -> list[list[float]]:
    """Run the sides in turn, A B A B …, and give the figures of each side in order.

    Args:
        pairs: how many turns each side gets, ≥ 1.
        sides: each runs once when called and returns its figure.
        warm_up: run each side once more before, uncounted, so that the first pair finds warm caches too.
    """
    if warm_up:
        for side in sides:
            side()
    figures: list[list[float]] = [[] for _ in sides]
    for _ in range(pairs):
        for side, taken in zip(sides, figures, strict=True):
            taken.append(side())
    return figures


def pairwise(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """first/second, pair by pair."""
    return [a / b for a, b in zip(first, second, strict=True)]


def median(values: Sequence[float]) -> float:
    """The middle of `values` (at least one)."""
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` (0…1) of them do not exceed: always one that was measured."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -int(-share * len(ranked) // 1) - 1))]
