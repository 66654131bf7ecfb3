"""A queue with a history, for the tests of `opsq history`."""

import pytest


@pytest.fixture
def worked(queue):
    """A submission of ten chunks: one fails with exit 3 and is dead, one is completed with exit 4.

    The others with exit 0.
    """
    submission = queue.submit_lines(10, "--on-dead", "keep", "--max-attempts", "1", "-m", "tenant=a", "-m", "size=7")
    script = "read n; case $n in 3) exit 3;; 4) exit 4;; esac"
    queue("consume", "--until-empty", "--complete-on", "0,4", "--name", "me", "--", "sh", "-c", script)
    return submission
