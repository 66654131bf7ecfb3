"""The back-off of a failed chunk: how long it waits for its next attempt. Must not know which attempts count."""

from __future__ import annotations

import random

from opsq.wire.messages import Backoff

JITTER = 0.2
"""A fifth more or less, so that chunks that failed together do not come back together."""


def backoff_s(backoff: Backoff, attempts: int, rng: random.Random) -> float:
    """Seconds to wait after `attempts` failed attempts."""
    exponent = min(attempts - 1, 64)  # clamp first, then multiply: 2.0 ** 1024 overflows
    delay_s = min(backoff.base_s * backoff.factor**exponent, backoff.max_s)
    return delay_s * (1 + rng.uniform(-JITTER, JITTER))
