"""opsq dead: lists dead chunks, and gives them new attempts."""

import pytest


@pytest.fixture
def dead(queue):
    """A submission of three chunks; the first is dead, so the submission failed and the others were skipped."""
    submission = queue.submit_lines(3)
    queue.ok("fail", "--no-retry", "--reason", "boom", queue.reserve())
    return submission


def test_list_names_the_chunk_and_why_it_died(queue, dead):
    (line,) = queue.ok("dead", "list", dead).lines
    assert (line.split("\t")[0], line.split("\t")[-1]) == (f"{dead}/0", "boom")
    (chunk,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert (chunk["submission_id"], chunk["index"], chunk["attempts"], chunk["reason"]) == (dead, 0, 1, "boom")


def test_plain_form_lists(queue, dead):
    assert queue.ok("dead", dead).out == queue.ok("dead").out == queue.ok("dead", "list").out


def test_requeue_revives_the_submission(queue, dead):
    assert queue.ok("dead", "requeue", dead, "--json").json["count"] >= 1
    assert queue.ok("show", "--json", dead).json["state"] == "open"
    assert len(queue.ok("reserve", "-n", "9").lines) == 3


def test_requeue_of_one_chunk_by_its_name(queue, dead):
    queue.ok("dead", "requeue", f"{dead}/0")
    assert queue.ok("dead").out == b""


def test_bad_names_are_told(queue, dead):
    assert queue("dead", "requeue", f"{dead}/x").status == 2
    assert queue("dead", "requeue", "999").status == 3
    assert queue("dead", "requeue").status == 2
