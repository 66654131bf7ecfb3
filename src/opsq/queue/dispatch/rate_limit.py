"""The tokens of a rate limit: how many chunks may start now, and when the next one may.

Must not know what they are spent on.
"""

from __future__ import annotations

import math

from opsq.clock import MonoNs
from opsq.store.rules import LimitRow
from opsq.wire.messages import RATE_MAX_PER_S, RATE_MIN_PER_S


class Bucket:
    """A token bucket: `tokens` at the instant `at`, refilled at `rate_per_s` up to `burst`."""

    __slots__ = ("at", "burst", "rate_per_s", "tokens")

    def __init__(self, limit: LimitRow, now: MonoNs) -> None:
        # A file of an earlier version may hold any rate, and arithmetic with 1e-300 overflows.
        self.rate_per_s = min(max(limit.rate_per_s or 0.0, RATE_MIN_PER_S), RATE_MAX_PER_S)
        self.burst = limit.burst or max(1, math.ceil(self.rate_per_s))
        self.tokens = float(self.burst)
        self.at = now

    def is_of(self, limit: LimitRow) -> bool:
        """Whether the limit says what it said when the bucket was made."""
        made = Bucket(limit, self.at)
        return (made.rate_per_s, made.burst) == (self.rate_per_s, self.burst)

    def refill(self, now: MonoNs) -> float:
        """The tokens there are now."""
        if now == self.at:  # asked a moment ago, by the same call
            return self.tokens
        tokens = self.tokens + (now - self.at) / 1e9 * self.rate_per_s
        self.at = now
        self.tokens = tokens = min(self.burst, tokens)
        return tokens

    def next_token_at(self) -> MonoNs:
        """When there is a whole token again, rounded up.

        If it is not whole then after all, at least a nanosecond later.
        """
        missing = max(1.0 - self.tokens, 0.0)
        return MonoNs(self.at + math.ceil(missing / self.rate_per_s * 1e9))
