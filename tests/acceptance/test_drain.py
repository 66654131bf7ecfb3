"""opsq drain: nothing new comes in, what is there is worked off."""

import pytest

from opsq.client.core.mover import Mover
from opsq.client.sync.connection import Connection
from opsq.wire.messages import CommitMove
from waiting import wait_until


def test_drained_daemon_refuses_submissions_over_a_restart_until_that_is_undone(queue):
    submission = queue.submit_lines(1)
    assert queue.ok("drain", "--json").json == {"count": 1}
    assert queue.ok("drain", "--json").json == {"count": 0}
    for _ in range(2):
        ran = queue("submit", "-", "--json", stdin=b"new\n")
        assert ran.status == 6
        assert ran.json["error"]["code"] == "draining"
        assert "opsq drain --undo" in ran.json["error"]["hint"]
        queue.ok("restart")
    assert queue.ok("status", "--json").json["takes_new"] is False
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission).out == b"0\n"
    assert queue.ok("drain", "--undo", "--json").json == {"count": 1}
    queue.submit_lines(1)
    assert queue.ok("status", "--json").json["takes_new"] is True


def test_producer_that_waits_for_room_is_refused_when_the_drain_begins(opsq):
    opsq.ok("start", "--max-backlog-chunks", "1")
    opsq.submit_lines(1)
    opsq.file("in", b"new\n")
    with opsq.running("submit", "in", "--wait-for-room") as process:
        wait_until(lambda: opsq.ok("status", "--json").json["room_waiting"] == 1)
        opsq.ok("drain")
        _, said = process.communicate()
    assert process.returncode == 6
    assert b"being drained" in said


def test_wait_returns_when_nothing_is_unfinished(queue):
    queue.submit_lines(2)
    ran = queue("drain", "--wait", "--timeout", "10ms")
    assert (ran.status, "1 submission not finished yet" in ran.err) == (124, True)
    with queue.running("drain", "--wait") as process:
        queue.ok("consume", "--until-empty", "--", "true")
        process.communicate()
    assert process.returncode == 0


def test_options_that_exclude_each_other_are_exit_2(queue):
    assert queue("drain", "--undo", "--wait").status == 2
    assert queue("drain", "--timeout", "1s").status == 2
    assert queue("drain", "--force").status == 2


def test_giving_up_a_source_of_which_nothing_is_here_changes_nothing(queue):
    assert queue.ok("drain", "--give-up", "0" * 32, "--json").json == {"count": 0}
    assert queue.ok("status", "--json").json["takes_new"] is True
    ran = queue("drain", "--give-up", "other:7400")
    assert (ran.status, "`opsq status` shows it" in ran.err) == (2, True)


@pytest.fixture
def other(queue):
    """Another daemon, which has the same content store."""
    folder = queue.folder / "t"
    environ = {"OPSQ_STATE_DIR": str(folder)}
    assert queue("start", "--shard", "5", "--store", str(queue.state_dir / "content"), environ=environ).status == 0

    def run(*words):
        return queue(*words, environ=environ)

    yield run
    assert run("stop").status == 0


def test_submissions_move_and_go_on_elsewhere(queue, other):
    submission = queue.submit_lines(3, "--title", "Nightly")
    handle = queue.reserve()
    queue.ok("complete", handle, "--result", queue.file("r", b"zero"))
    socket = other("status", "--json").json["socket"]
    assert queue.ok("drain", "--to", socket, "--json").json == {"count": 1}
    assert queue.ok("drain", "--to", socket, "--json").json == {"count": 0}
    assert queue.ok("list").out == b""
    ran = queue("show", submission, "--json")
    assert (ran.status, ran.json["error"]["code"]) == (5, "moved")
    assert f"shard 5, at {socket}" in ran.json["error"]["message"]
    assert other("consume", "--until-empty", "--", "cat").status == 0
    assert other("results", submission).out == b"zero1\n2\n"
    assert other("show", submission, "--json").json["title"] == "Nightly"
    for run in (queue, other):
        assert run("check").status == 0


def test_what_has_ended_moves_with_all(queue, other):
    submission = queue.submit_lines(1)
    queue.ok("consume", "--until-empty", "--", "cat")
    socket = other("status", "--json").json["socket"]
    assert queue.ok("drain", "--to", socket, "--json").json == {"count": 0}
    assert queue.ok("results", submission).out == b"0\n"
    assert queue.ok("drain", "--to", socket, "--all", "--json").json == {"count": 1}
    assert other("results", submission).out == b"0\n"


def test_what_cannot_move_is_named_with_exit_5(queue, other):
    submission = queue.submit_lines(1, "--unique", "nightly")
    queue.file("in", b"another\n")
    assert other("submit", "in", "--unique", "nightly").status == 0
    ran = queue("drain", "--to", other("status", "--json").json["socket"])
    assert ran.status == 5
    assert submission in ran.err


def test_daemon_that_cannot_be_moved_to_is_exit_2_and_says_why(queue):
    ran = queue("drain", "--to", str(queue.state_dir / "opsq.sock"))
    assert (ran.status, "opsq start --shard" in ran.err) == (2, True)
    assert queue("drain", "--to", "nowhere:1:2:x").status == 2
    assert queue("drain", "--to", str(queue.folder / "none.sock")).status == 4
    assert queue("drain", "--all").status == 2
    assert queue.ok("status", "--json").json["takes_new"] is True


class Killed(Exception):
    """The mover is gone."""


class KilledConnection:
    """A connection of a mover that is killed when all is copied, before the source gives anything away."""

    def __init__(self, socket):
        self.connection = Connection.open(socket, name="mover")
        self.next_id = self.connection.next_id

    def call(self, request, kind):
        if isinstance(request, CommitMove):
            raise Killed
        return self.connection.call(request, kind)

    def call_all(self, requests, kind):
        return [self.call(request, kind) for request in requests]


def test_what_a_lost_source_was_moving_is_shown_and_given_up(queue, other):
    queue.submit_lines(2, "--idempotency-key", "nightly")
    sockets = [run("status", "--json").json["socket"] for run in (queue, other)]
    source, target = map(KilledConnection, sockets)
    mover = Mover(source, target, 5, sockets[1], source_address="lost:7400", with_final=False, wait_s=1.0)
    with pytest.raises(Killed):
        list(mover.run())
    for each in (source, target):
        each.connection.close()
    [arriving] = other("status", "--json").json["arriving_from"]
    identity = arriving.pop("source")
    assert arriving == {"submissions": 1, "complete": 1, "address": "lost:7400"}
    queue.file("in", b"another\n")
    ran = other("submit", "in", "--idempotency-key", "nightly")
    assert (ran.status, "is moving here" in ran.err) == (5, True)
    assert "lost:7400" in other("drain").err
    assert other("drain", "--undo").status == 0
    ran = other("drain", "--give-up", identity, "--json")
    assert (ran.status, ran.json["count"]) == (5, 0)
    assert other("drain", "--give-up", identity, "--force", "--json").json == {"count": 1}
    wait_until(lambda: other("submit", "in", "--idempotency-key", "nightly").status == 0)
    assert other("check").status == 0
