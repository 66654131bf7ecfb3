"""opsq rm: forgets what has ended, with its content; refuses what has not."""

import os

from waiting import wait_until


def content(queue):
    """The folders in the content store."""
    return [name for name in os.listdir(queue.state_dir / "content") if not name.startswith("store-")]


def test_removed_submission_is_gone_with_its_content(queue):
    submission = queue.ok("submit", queue.file("in", b"x\n" * 5000)).text
    queue.ok("complete", queue.reserve())
    assert len(content(queue)) == 1
    queue.ok("rm", submission)
    assert queue("show", submission).status == 3
    wait_until(lambda: not content(queue), what="the content is deleted")


def test_unfinished_submission_is_exit_5_and_stays(queue):
    submission = queue.submit_lines(1)
    assert queue("rm", submission).status == 5
    assert queue.ok("show", "--json", submission).json["state"] == "open"


def test_unknown_id_is_exit_3(queue):
    assert queue("rm", "999").status == 3


def test_conditions_select_what_has_ended(queue):
    ended = [queue.submit_lines(0, "-m", "k=1") for _ in range(2)]
    kept = [queue.submit_lines(1, "-m", "k=1"), queue.submit_lines(0)]
    assert {line.split("\t")[0] for line in queue.ok("rm", "-m", "k=1", "--dry-run").lines} == set(ended)
    assert queue.ok("rm", "-m", "k=1", "--json").json == {"count": 2}
    assert {line.split("\t")[0] for line in queue.ok("list").lines} == set(kept)
    assert queue("rm", "--state", "open").status == 2
    assert queue.ok("rm", "--all", "--json").json == {"count": 1}
    ran = queue("rm", "--all", "--json")
    assert (ran.status, ran.json, "under these conditions" in ran.err) == (0, {"count": 0}, True)
