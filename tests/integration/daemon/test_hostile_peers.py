"""Peers that break every rule harm nobody but themselves: not the daemon, not its log, not the clients beside them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from crowds import held
from daemons import DEADLINE_S, Client, connected, error_of, holder, log_with, running, state_of, whole_log
from opsq.daemon.connection_quota import LOCAL_RESERVE, WAITING_LIMITS
from opsq.queue.peer import PARKED_LIMIT
from opsq.settings import Settings
from opsq.wire.frames import encode
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Alive,
    Check,
    Checked,
    Complete,
    Completed,
    Completion,
    ErrorReply,
    Heartbeat,
    Hello,
    NewSubmission,
    Reserve,
    Reserved,
    ResultRows,
    Results,
    Status,
    Submit,
    Submitted,
    Welcome,
)
from waiting import wait_until

GARBAGE = {
    "no MessagePack": b"\xc1\xc1",
    "text that is not UTF-8": b"\x91\x92\xa9Heartbea\xff\x01",
    "a name that is not UTF-8": b"\x91\x92\xa4\xff\xfe\xfd\xfc\x01",
    "nested 10^5 times": b"\x91\x95\xa5Hello\x01" + b"\x91" * 100_000 + b"\xc0",
    "nested where nothing is looked at": b"\x91\x93\xa9Heartbeat\x01" + b"\x91" * 100_000 + b"\xc0",
    "an array of 2^32 - 1": b"\xdd\xff\xff\xff\xff",
    "control characters": b"\x91\x92\xaf\x1b]0;owned\x07\n2026\x9b\x01",
}


PAGE_BLOCKS = 16
"""A page of results ends with the block in which it has 4 MiB."""


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon that listens on TCP too; when the test has ended, it is the same process, and has met no bug."""
    with running(runtime_dir / "state", listen="127.0.0.1:0") as found:
        pid = holder(found)
        yield found
        assert state_of(found).pid == pid
        assert "Traceback" not in whole_log(found)


def address_of(settings: Settings) -> str:
    """Where it listens: the system chose the port."""
    return state_of(settings).settings["listen"]


def test_answer_that_comes_after_the_end_is_dropped(settings: Settings) -> None:
    """The check is answered from another thread, when nothing may be written to that connection any more."""
    for _ in range(20):
        with connected(settings) as client:
            client.socket.sendall(encode([Check(5)]) + framed(b"\xc1"))
            codes = [getattr(reply, "code", "") for reply in iter(client.receive, None)]
            assert codes[-1] == "protocol"
    with connected(settings) as other:
        assert isinstance(other.ask(Check(6)), Checked)


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("is_greeted", [False, True], ids=["before the hello", "after it"])
def test_frame_that_cannot_be_decoded_is_answered_and_ends_its_connection(
    settings: Settings, body: bytes, is_greeted: bool
) -> None:
    with Client(settings.socket) as client:
        if is_greeted:
            assert isinstance(client.greet(), Welcome)
        client.socket.sendall(framed(body))
        refusal = error_of(client.receive())
        assert (refusal.id, refusal.code) == (0, "protocol")
        assert refusal.message.isprintable()
        assert len(refusal.message) < 400
        assert client.is_closed()
    [line] = [line for line in log_with(settings, "connection closed").splitlines() if "connection closed" in line]
    assert line.isprintable()
    assert len(line) < 500


def test_refusals_do_not_fill_the_log(settings: Settings) -> None:
    for _ in range(50):
        with Client(settings.socket) as client:
            client.socket.sendall(framed(b"\xc1"))
            assert client.is_closed()
    assert log_with(settings, "connection closed").count("connection closed") == 1


def test_silent_connections_over_tcp_shut_out_nobody(runtime_dir: Path) -> None:
    """More than there may be connections: local users get in, and so does a client over TCP that says hello."""
    with (
        running(runtime_dir / "state", listen="127.0.0.1:0", connection_limit="20") as settings,
        contextlib.ExitStack() as stack,
    ):
        address, token = address_of(settings), Path(settings.token_file).read_text().strip()
        for _ in range(2 * WAITING_LIMITS[True]):
            stack.enter_context(Client(address))
            with connected(settings):
                pass
        with Client(address) as client:
            assert isinstance(client.greet(token=token), Welcome)
        assert isinstance(state_of(settings).pid, int)


def test_clients_over_tcp_leave_room_for_those_of_this_machine(runtime_dir: Path) -> None:
    limit = 4 * LOCAL_RESERVE
    with (
        running(runtime_dir / "state", listen="127.0.0.1:0", connection_limit=str(limit)) as settings,
        contextlib.ExitStack() as stack,
    ):
        address, token = address_of(settings), Path(settings.token_file).read_text().strip()
        for _ in range(limit - LOCAL_RESERVE):
            assert isinstance(stack.enter_context(Client(address)).greet(token=token), Welcome)
        assert error_of(stack.enter_context(Client(address)).receive()).code == "too_many_connections"
        for _ in range(LOCAL_RESERVE):
            stack.enter_context(connected(settings))


def test_hello_that_comes_byte_by_byte_has_a_deadline(runtime_dir: Path) -> None:
    """Each byte shows life, but only a whole hello counts: three heartbeats are 0.6 s here."""
    with running(runtime_dir / "state", heartbeat_s="200ms") as settings, Client(settings.socket) as slow:
        hello = encode([Hello(1, 1, "x" * 200)])
        slow.socket.settimeout(0.05)
        sent = 0
        while sent < len(hello) - 1:
            slow.socket.sendall(hello[sent : sent + 1])
            sent += 1
            with contextlib.suppress(TimeoutError):
                refusal = error_of(slow.receive())
                break
        assert (refusal.id, refusal.code) == (0, "timed_out")
        assert sent < len(hello) - 1


def test_calls_that_one_connection_may_park_are_limited(settings: Settings) -> None:
    """What is over the limit is refused by itself; the others stay parked, and one that ends makes room."""
    with connected(settings) as client:
        for start in range(2, PARKED_LIMIT + 2, 1024):
            client.send(*(Reserve(number, 1, "OldestFirst", None) for number in range(start, start + 1024)))
        last = PARKED_LIMIT + 100
        assert error_of(client.ask(Reserve(last, 1, "OldestFirst", None))).code == "refused"
        assert isinstance(client.ask(Heartbeat(last + 1)), Alive)
    with connected(settings) as other:
        assert isinstance(other.ask(Reserve(2, 1, "OldestFirst", 0.0)), Reserved)


def test_operations_that_one_connection_may_have_in_progress_are_limited(settings: Settings) -> None:
    """Of a thousand in one frame each is answered: it was done, or refused by itself."""
    with connected(settings) as client:
        client.send(*(Check(number) for number in range(1000)), Heartbeat(1001))
        replies = [client.receive() for _ in range(1001)]
        refusals = [reply for reply in replies if isinstance(reply, ErrorReply)]
        assert {refusal.code for refusal in refusals} == {"refused"}
        assert "already in progress" in refusals[0].error().message
        assert sum(isinstance(reply, Checked) for reply in replies) + len(refusals) == 1000
        assert isinstance(client.ask(Check(2000)), Checked)


def submit_pages(client: Client) -> tuple[int, Callable[[], None]]:
    """A submission with four megabytes of results; what completes its first block, the last that is missing."""
    reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), PAGE_BLOCKS * 64)]))
    assert isinstance(reply, Submitted)
    results = msgspec.Raw(msgspec.msgpack.encode([bytes(RESULT_INLINE_BYTES)] * 64))
    completions = []
    for number in range(PAGE_BLOCKS):
        reserved = client.ask(Reserve(10 + number, 64, "OldestFirst"))
        assert isinstance(reserved, Reserved)
        completions.append(Completion(held(reserved), results))

    def complete(*some: Completion) -> None:
        for completion in some:
            assert isinstance(client.ask(Complete(100, [completion])), Completed)

    complete(*completions[1:])
    return reply.created[0].submission_id, partial(complete, completions[0])


@pytest.mark.needs("ps")
def test_pages_that_are_asked_for_together_come_one_after_the_other(settings: Settings) -> None:
    """A gigabyte in all, of which the daemon keeps little at a time; whoever reads it is not cut off for it."""
    pid = holder(settings)
    with connected(settings) as client, connected(settings) as other:
        submission_id, complete_first = submit_pages(client)
        complete_first()
        before_kb = resident_kb(pid)
        client.send(*(Results(number, submission_id, 0, 64) for number in range(1000, 1256)))
        for number in range(1000, 1256):
            page = client.receive()
            assert isinstance(page, ResultRows)
            assert (page.id, len(page.rows)) == (number, PAGE_BLOCKS)
            assert other.ask(Heartbeat(3)) == Alive(3)
            assert resident_kb(pid) - before_kb < 256 << 10


def test_client_that_leaves_too_much_unread_is_told_behind_what_was_written(settings: Settings) -> None:
    """Its calls wait for one event, and are answered with 40 MB at once."""
    with connected(settings) as deaf, connected(settings) as other:
        submission_id, complete_first = submit_pages(other)
        deaf.send(*(Results(number, submission_id, 0, 64, None) for number in range(10)), Heartbeat(99))
        assert deaf.receive() == Alive(99)
        complete_first()
        replies = list(iter(deaf.receive, None))
        assert all(isinstance(reply, ResultRows | ErrorReply) for reply in replies)
        assert isinstance(other.ask(Heartbeat(3)), Alive)
    assert "connection closed: More than 32M of replies were not read." in log_with(settings, "More than 32M")


def test_refused_client_that_reads_nothing_is_closed_all_the_same(settings: Settings) -> None:
    with connected(settings) as deaf:
        with connected(settings) as other:
            submission_id, complete_first = submit_pages(other)
            deaf.send(*(Results(number, submission_id, 0, 64, None) for number in range(10)), Heartbeat(99))
            assert deaf.receive() == Alive(99)
            complete_first()
        log_with(settings, "More than 32M of replies were not read.")
        wait_until(lambda: state_of(settings).connections_count == 1, DEADLINE_S, "it is gone")


@pytest.mark.needs("ps")
def test_client_that_never_reads_costs_little_memory(settings: Settings) -> None:
    """A hundred thousand short requests with long answers, none of which is read."""
    pid = holder(settings)
    before_kb = resident_kb(pid)
    with connected(settings) as deaf, connected(settings) as other:
        deaf.socket.setblocking(False)
        requests = memoryview(encode([Status(number) for number in range(100_000)]))
        refused_count = 0
        while requests and refused_count < 100:  # the daemon had as many turns to read more
            try:
                requests = requests[deaf.socket.send(requests) :]
                refused_count = 0
            except BlockingIOError:
                refused_count += 1
            assert other.ask(Heartbeat(3)) == Alive(3)
        assert resident_kb(pid) - before_kb < 64 << 10


def resident_kb(pid: int) -> int:
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)]))


def test_every_request_of_a_long_frame_is_answered_in_order(settings: Settings) -> None:
    """Many turns long, with more behind it and pieces of frames between."""
    with connected(settings) as client:
        frames = encode([Heartbeat(number) for number in range(2, 3002)]) + encode(
            [Heartbeat(number) for number in range(3002, 4002)]
        )
        for start in range(0, len(frames), 7001):
            client.socket.sendall(frames[start : start + 7001])
        assert [client.receive() for _ in range(2, 4002)] == [Alive(number) for number in range(2, 4002)]


def test_peer_that_resets_while_it_is_answered_ends_alone(settings: Settings) -> None:
    for _ in range(20):
        with connected(settings) as client:
            client.send(*(Status(number) for number in range(300)))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wait_until(lambda: state_of(settings).connections_count == 1, DEADLINE_S)
    assert os.path.exists(settings.socket)
