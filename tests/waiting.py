"""Owns the one way in which tests wait: a condition with a deadline.

It must not be replaced by a sleep of some guessed length in any test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


def wait_until(condition: Callable[[], T], deadline_s: float = 60, what: str = "") -> T:
    """Call the condition again and again until it returns something true, and return that.

    Args:
        condition: must not block; an exception in it ends the wait.
        deadline_s: seconds, generous, since it costs time only when the test fails.
        what: names the awaited thing in the failure; default the condition's own name.

    Raises:
        AssertionError: still not true after `deadline_s`.
    """
    end = time.monotonic() + deadline_s
    pause_s = FIRST_PAUSE_S
    while True:
        is_last = time.monotonic() >= end
        if outcome := condition():
            return outcome
        if is_last:
            raise AssertionError(
                f"not so after {deadline_s} s: {what or getattr(condition, '__qualname__', condition)}"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
