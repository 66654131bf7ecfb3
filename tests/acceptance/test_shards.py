"""Several daemons as one queue, as a shell meets them: also without one of them, and at an interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from acceptance.conftest import DEADLINE_S, Opsq
from waiting import wait_until

COUNT = 3


@pytest.fixture
def shards(opsq: Opsq) -> Iterator[Opsq]:
    """The program as a client of three shards."""
    for number in range(COUNT):
        start(opsq, number)
    opsq.environ["OPSQ_ADDRESS"] = ",".join(socket_of(opsq, number) for number in range(COUNT))
    yield opsq
    for number in range(COUNT):
        kill(opsq, number)


def folder_of(opsq: Opsq, number: int) -> str:
    return str(opsq.folder / str(number))


def socket_of(opsq: Opsq, number: int) -> str:
    return f"{folder_of(opsq, number)}/opsq.sock"


def start(opsq: Opsq, number: int) -> None:
    opsq.ok(
        "start", "--state-dir", folder_of(opsq, number), "--shard", str(number), "--store", str(opsq.folder / "content")
    )


def kill(opsq: Opsq, number: int) -> None:
    opsq.state_dir = opsq.folder / str(number)
    opsq.kill_daemon()


def submit_at(opsq: Opsq, number: int) -> str:
    """Submit two chunks at one of the shards."""
    return opsq.ok("--address", socket_of(opsq, number), "submit", "--lines", "1", "-", stdin=b"a\nb\n").text


def test_work_of_all_shards_is_done_and_its_results_are_read_in_order(shards: Opsq) -> None:
    submissions = [submit_at(shards, number) for number in range(COUNT)]
    assert shards("consume", "-j2", "--until-empty", "--", "tr", "a-z", "A-Z").status == 0
    for submission in submissions:
        shards.ok("wait", submission)
        assert shards.ok("results", submission).out == b"A\nB\n"
    assert shards("reserve").status == 3


def test_chunks_are_worked_on_step_by_step_at_their_shards(shards: Opsq) -> None:
    submissions = [submit_at(shards, number) for number in range(COUNT)]
    for _ in range(2 * COUNT):
        handle = shards.ok("reserve").text
        assert shards.ok("read", handle).out in {b"a\n", b"b\n"}
        shards.ok("extend", handle)
        shards.ok("complete", handle)
    assert shards("reserve").status == 3
    assert [shards.ok("show", "--json", one).json["state"] for one in submissions] == ["completed"] * COUNT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stop", "Stopping"),
        ("drain", "Draining"),
        ("backup copy.sqlite", "A backup"),
        ("events", "The list of events"),
        ("events --follow", "The list of events"),
    ],
)
def test_verbs_that_concern_one_daemon_say_so(shards: Opsq, words: str, said: str) -> None:
    ran = shards(*words.split())
    assert (ran.status, ran.out) == (2, b"")
    assert ran.err == (
        f"opsq: {said} concerns one daemon, and the address names several.\n"
        "Name one alone, with --address or --socket.\n"
    )


def test_doctor_looks_at_each_shard(shards: Opsq) -> None:
    assert [line.split("\t")[:2] for line in shards.ok("doctor").lines if "\tshard" in line] == [
        ["ok", f"shard {number}"] for number in range(COUNT)
    ]
    kill(shards, 1)
    ran = shards("doctor")
    assert ran.status == 5
    assert f"WRONG\tshard\t{socket_of(shards, 1)} does not answer" in ran.text


def test_verbs_say_what_the_absence_of_a_shard_means(shards: Opsq) -> None:
    lost, kept = submit_at(shards, 1), submit_at(shards, 0)
    shards.ok("schedule", "add", "nightly", "30 2 * * *")
    kill(shards, 1)
    where = socket_of(shards, 1)
    for words, effect in [
        (["list"], "what it has is not shown"),
        (["status"], "what it has is not shown"),
        (["vacuum"], "nothing was changed there"),
        (["dead", "requeue", "--all"], "nothing was changed there"),
        (["weight", "tenant=acme", "2"], "it gets the rules when it is back"),
    ]:
        ran = shards(*words)
        assert ran.status == 0
        assert f"opsq: shard {where} did not answer: {effect}.\n" in ran.err
    assert shards("list").lines[0].startswith(kept)
    for verb in ("show", "cancel", "rm", "results", "explain", "wait"):
        ran = shards(verb, lost)
        assert ran.status == 4, verb
        assert ran.err.startswith(f"opsq: Shard {where} does not answer.\n"), verb
    ran = shards("check")
    assert (ran.status, ran.err.count("\n")) == (4, 2)
    assert "was not checked" in ran.err
    ran = shards("submit", "--idempotency-key", "k", "-", stdin=b"x")
    assert ran.status == 4
    assert "may have a submission with this key" in ran.err
    assert int(shards.ok("submit", "-", stdin=b"x").text) >> 12 & 1023 != 1
    ran = shards("schedule", "trigger", "unknown")
    assert ran.status == 4
    assert "may have the schedule unknown" in ran.err


def test_interrupted_consumer_gives_back_what_it_holds_at_all_shards(shards: Opsq) -> None:
    for number in range(COUNT):
        submit_at(shards, number)
    with shards.running("consume", "-j6", "--grace", "0s", "--", "sleep", "600") as process:
        wait_until(lambda: shards.ok("status", "--json").json["total"]["reserved"] == 6, DEADLINE_S, "all runs")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: shards.ok("status", "--json").json["total"]["waiting"] == 6, DEADLINE_S, "all is free")


def test_shard_that_is_restarted_gives_its_work_to_a_consumer_that_waits(shards: Opsq) -> None:
    with shards.running("consume", "--", "cat") as process:
        wait_until(lambda: shards.ok("status", "--json").json["parked"] == COUNT, DEADLINE_S, "it waits at all")
        shards.ok("restart", "--state-dir", folder_of(shards, 1))
        submission = submit_at(shards, 1)
        shards.ok("wait", submission)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) in {0, 143}
