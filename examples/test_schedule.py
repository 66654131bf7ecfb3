"""How to test what depends on time: the real engine, and a clock that moves only when the test says so.

Run: pytest test_schedule.py     (in a clone, after `make venv`: ../.venv/bin/pytest test_schedule.py)
"""

import json

import pytest

import opsq
import opsq.testing


@pytest.fixture
def queue():
    """A queue of its own for each test; it is gone afterwards."""
    with opsq.testing.queue(at="2026-03-27T12:00Z") as queue:
        yield queue


def report(queue):
    """What is tested: process what is there, and list the instants that it was for."""
    instants = []
    for chunk in queue.consume("SelectOnly(schedule=nightly)", until_idle=True):
        instants.append(json.loads(chunk.data)["at"])
        chunk.complete(b"done\n")
    return instants


def test_nightly_report_follows_the_clock_on_the_wall(queue):
    """In the night to the 29th clocks were set forward: 02:30 in Amsterdam is an hour earlier in UTC after it."""
    queue.add_schedule("nightly", "30 3 * * *", timing={"zone": "Europe/Amsterdam"})
    queue.clock.advance(days=1)
    assert report(queue) == ["2026-03-28T02:30:00.000Z"]
    queue.clock.advance(days=1)
    assert report(queue) == ["2026-03-29T01:30:00.000Z"]


def test_nights_without_a_daemon_are_caught_up_on(queue):
    """The default is the last one; `all` makes up for each."""
    queue.add_schedule("nightly", "30 3 * * *", timing={"catch_up": "all", "overlap": "allow"})
    queue.clock.skip(days=3)
    assert len(report(queue)) == 3
    assert queue.schedule("nightly").missed_count == 0


def test_service_that_is_down_is_tried_again_after_a_while(queue):
    """A back-off is over when the clock says so."""
    submission = queue.submit([b"hello\n"], backoff=(60, 2, 3600))
    for chunk in queue.consume(until_idle=True):
        chunk.fail("the service is down")
    assert list(queue.consume(until_idle=True)) == []
    queue.clock.advance(minutes=2)
    for chunk in queue.consume(until_idle=True):
        chunk.complete(b"sent\n")
    assert list(submission.results()) == [b"sent\n"]
