"""How to test code that uses a queue: the real engine in a temporary folder, without a daemon.

Run: pytest test_consumer.py     (in a clone, after `make venv`: ../.venv/bin/pytest test_consumer.py)
"""

from consumer import consume

import opsq


def test_numbers_are_squared_in_input_order(tmp_path):
    """Work is processed as it would be with a daemon."""
    with opsq.Queue.open(tmp_path) as queue:
        submission = queue.submit([b"1\n2\n", b"3\n"])
        consume(queue)
        assert list(submission.results()) == [b"1\n4\n", b"9\n"]


def test_what_is_no_number_is_a_dead_chunk(tmp_path):
    """Bad input is reported, and does not stop the rest."""
    with opsq.Queue.open(tmp_path) as queue:
        submission = queue.submit([b"1\n", b"one\n"], on_dead="keep")
        consume(queue)
        [dead] = submission.dead()
        assert dead.index == 1
        assert "invalid literal" in dead.reason
        assert list(submission.results(skip_dead=True)) == [b"1\n"]
