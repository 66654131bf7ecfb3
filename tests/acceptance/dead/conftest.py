"""Queues with dead chunks, for the tests of `opsq dead`."""

import pytest


@pytest.fixture
def dead(queue):
    """A submission of three chunks; the first is dead, so the submission failed and the others were skipped."""
    submission = queue.submit_lines(3)
    queue.ok("fail", "--no-retry", "--reason", "boom", queue.reserve())
    return submission


@pytest.fixture
def many(queue):
    """Two submissions that go on without their dead chunks: of a three, killed or with exit 3.

    Of b one with exit 75.
    """
    found = []
    for tenant, script in (("a", "read n; [ $n = 0 ] && kill -9 $$; exit 3"), ("b", "echo sorry >&2; exit 75")):
        count = 3 if tenant == "a" else 1
        found.append(queue.submit_lines(count, "--on-dead", "keep", "--max-attempts", "1", "-m", f"tenant={tenant}"))
        queue("consume", "--until-empty", "--", "sh", "-c", script)
    return found
