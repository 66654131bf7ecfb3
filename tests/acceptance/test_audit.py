"""opsq audit: who did what, across restarts, escaped, and nothing that was refused."""

import socket

import pytest


def test_acts_are_listed_newest_first_and_survive_a_restart(queue):
    number = queue.submit_lines(1, "-m", "tenant=a")
    queue.ok("pause", "tenant=a")
    queue.ok("limit", "tenant=a", "--concurrency", "3")
    queue.ok("cancel", number)
    queue.ok("rm", number)
    queue.ok("restart")
    acts = queue.ok("audit", "--json").json["acts"]
    assert [each["act"] for each in acts] == ["Stop", "Remove", "Cancel", "Limit", "Pause"]
    assert number in acts[1]["what"]
    assert "'tenant': 'a'" in acts[-1]["what"]
    assert "concurrency=3" in acts[3]["what"]
    assert {each["who"] for each in acts} != {"user unknown"}
    assert all(each["who"].startswith("user ") and each["origin"].startswith("uid ") for each in acts)
    assert len(queue.ok("audit", "-n", "2").lines) == 2
    assert "Pause metadata=" in (queue.state_dir / "opsq.log").read_text()


def test_what_was_refused_is_no_act_and_a_stopped_queue_tells_too(queue):
    assert queue("rm", "123456789").status == 3
    assert queue.ok("audit", "--json").json == {"acts": []}
    queue.ok("stop")
    assert [line.split("\t")[4] for line in queue.ok("audit").lines] == ["Stop"]


def test_token_is_named_and_text_of_others_escaped(opsq):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    opsq.ok("start", "--listen", address)
    remote = {"OPSQ_ADDRESS": address, "OPSQ_TOKEN": opsq.ok("token", "create", "etl").text}
    assert opsq("pause", "tenant=\x1b[2J", environ=remote).status == 0
    [line] = opsq.ok("audit").lines
    assert line.split("\t")[1] == "token etl"
    assert line.split("\t")[2].startswith("127.0.0.1:")
    assert "\x1b" not in line
    assert opsq("vacuum", environ=remote).status == 7
    assert len(opsq.ok("audit").lines) == 1


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_nothing_was_done_yet(opsq, words):
    assert opsq("audit", *words).status == 0


def test_remote_audit_is_refused(opsq):
    assert opsq("audit", "--address", "127.0.0.1:1").status == 2


def test_audit_is_whole_in_a_pipe_and_short_on_a_terminal(queue):
    for _ in range(103):
        queue.submit_lines(1)
    queue.ok("cancel", "--all")
    assert [line.split("\t")[4] for line in queue.ok("audit").lines] == ["Cancel"] * 103
    assert "There are 3 more" in queue.on_terminal("audit", columns=160).text
