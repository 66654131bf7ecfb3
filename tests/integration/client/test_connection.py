"""One connection over real sockets: hello, frames, limits, silence, and who may use a socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.client.core.address import parse_address
from opsq.client.shards.dialling import dial
from opsq.client.sync.connection import Connection
from opsq.errors import NotFound, NotPermitted, ProtocolError, TimedOut, Unreachable, UsageError, VersionMismatch
from opsq.wire.frames import encode, request_reader
from opsq.wire.messages import (
    Alive,
    Changed,
    ErrorReply,
    GetAttachment,
    Heartbeat,
    Hello,
    Reply,
    Request,
    Requeue,
    ShardsMissing,
    Shown,
    StageSlice,
)
from scripted import welcome
from waiting import wait_until


class Peer:
    """The daemon's end of a socket pair."""

    def __init__(self, heartbeat_s: float = 60.0, frame_limit_bytes: int = 1 << 24) -> None:
        self.ours, self.socket = socket.socketpair()
        self.reader = request_reader(1 << 30)
        self.requests: list[Request] = []
        self.say(welcome(heartbeat_s, frame_limit_bytes))

    def say(self, *replies: Reply) -> None:
        self.socket.sendall(encode(replies))

    def hear(self, kind: type[Request]) -> Request:
        """The next request of a kind; others before it are dropped."""
        while True:
            while self.requests:
                request = self.requests.pop(0)
                if isinstance(request, kind):
                    return request
            received = self.socket.recv(1 << 20)
            assert received, "the client has hung up"
            self.requests += self.reader.feed(received)

    def connect(self) -> Connection:
        return Connection(self.ours, "/test.sock", name="me", token="secret")


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.socket.close()
    peer.ours.close()


def test_the_hello_carries_version_name_token_and_place(peer: Peer) -> None:
    with peer.connect() as connection:
        assert peer.hear(Hello) == Hello(1, 1, "me", "secret", None, socket.gethostname(), os.getpid())
        assert connection.welcome.consumer == "test-1"
        assert connection.fileno() == peer.ours.fileno()


def test_a_refused_hello_is_raised_and_the_socket_closed() -> None:
    peer = Peer()
    peer.ours.recv(1 << 16)
    peer.say(ErrorReply(1, "version_mismatch", "Too new."))
    with pytest.raises(VersionMismatch, match="Too new"):
        peer.connect()
    assert peer.ours.fileno() == -1
    peer.socket.close()


def test_a_call_keeps_other_messages_for_later(peer: Peer) -> None:
    with peer.connect() as connection:
        peer.say(Changed(77, 1), Changed(5, 2), Changed(78, 3))
        assert connection.call(Requeue(5, 1), Changed).count == 2
        assert [reply.id for reply in connection.receive(0)] == [77, 78]


def test_shards_without_a_part_in_an_answer_are_told_or_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with peer.connect() as connection:
        peer.say(ShardsMissing(5, ["1 (b:1)"]), Changed(5, 1))
        assert connection.call(Requeue(5, 1), Changed).count == 1
        assert caplog.messages == ["shard 1 (b:1) did not answer: what it has is not shown."]
        told: list[ShardsMissing] = []
        connection.on_missing = told.append
        peer.say(ShardsMissing(6, ["1 (b:1)", "2 (c:1)"]), Changed(6, 2))
        assert connection.call(Requeue(6, 1), Changed).count == 2
        assert connection.receive(0) == []
        assert [push.shards for push in told] == [["1 (b:1)", "2 (c:1)"]]


def test_an_error_reply_to_a_call_is_raised(peer: Peer) -> None:
    with peer.connect() as connection:
        peer.say(ErrorReply(5, "not_found", "No."))
        with pytest.raises(NotFound):
            connection.call(Requeue(5, 1), Changed)


def test_an_answer_of_the_wrong_kind_is_a_protocol_error(peer: Peer) -> None:
    with peer.connect() as connection:
        peer.say(Changed(5, 1))
        with pytest.raises(ProtocolError, match="Changed where Shown"):
            connection.call(Requeue(5, 1), Shown)


def test_a_call_without_an_answer_times_out(peer: Peer) -> None:
    with peer.connect() as connection, pytest.raises(TimedOut):
        connection.call(Requeue(5, 1), Changed, timeout_s=0.01)


def test_a_waiting_call_shows_by_heartbeats_that_it_lives() -> None:
    peer = Peer(heartbeat_s=0.01)
    with peer.connect() as connection:
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(connection.call(Requeue(5, 1), Changed).count))
        thread.start()
        for _ in range(10):
            beat = peer.hear(Heartbeat)
            peer.say(Alive(beat.id))
        peer.say(Changed(5, 9))
        thread.join()
        assert counts == [9]
        assert connection.receive(0) == []
    peer.socket.close()


def test_a_daemon_that_leaves_heartbeats_unanswered_is_unreachable() -> None:
    peer = Peer(heartbeat_s=0.01)
    with peer.connect() as connection, pytest.raises(Unreachable, match="no longer"):
        connection.call(Requeue(5, 1), Changed)
    peer.socket.close()


def test_a_daemon_that_does_not_greet_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsq.client.sync.connection.DIAL_S", 0.01)
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(Unreachable, match="accepts but does not answer"):
        Connection(ours, "/test.sock")
    assert ours.fileno() == -1


def test_the_end_of_the_connection_is_unreachable(peer: Peer) -> None:
    with peer.connect() as connection:
        peer.socket.close()
        with pytest.raises(Unreachable):
            connection.receive(10)
        with pytest.raises(Unreachable):
            connection.send([Requeue(5, 1)])


def test_closing_wakes_a_waiting_reader(peer: Peer) -> None:
    connection = peer.connect()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                connection.receive(None)
        except Unreachable as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(connection._receiving.locked, what="the reader waits")
    connection.close()
    thread.join(180)
    assert ended


def test_garbage_is_a_protocol_error(peer: Peer) -> None:
    with peer.connect() as connection:
        peer.socket.sendall(b"\0\0\0\3abc")
        with pytest.raises(ProtocolError):
            connection.receive(10)


def test_requests_over_the_frame_limit_travel_in_several_frames() -> None:
    peer = Peer(frame_limit_bytes=200)
    with peer.connect() as connection:
        connection.send([Requeue(number, number) for number in range(100, 200)])
        received = bytearray()
        peer.hear(Hello)
        while len(peer.requests) < 100:
            received = peer.socket.recv(1 << 16)
            peer.requests += peer.reader.feed(received)
        assert [request.id for request in peer.requests] == list(range(100, 200))
    peer.socket.close()


def test_requests_of_which_one_is_over_the_frame_limit_are_not_sent() -> None:
    peer = Peer(frame_limit_bytes=200)
    with peer.connect() as connection:
        with pytest.raises(UsageError, match="exceeds the frame limit of 200 bytes"):
            connection.send([Requeue(1, 1), Requeue(2, 1, list(range(1000)))])
        connection.send([Requeue(3, 1)])
        assert peer.hear(Requeue).id == 3
    peer.socket.close()


def test_a_full_socket_does_not_block_both_sides(peer: Peer) -> None:
    """The daemon stops reading until we read what it has said: sending reads meanwhile."""
    flood = [Changed(number, number) for number in range(200_000)]
    with peer.connect() as connection:
        answers = threading.Thread(target=lambda: peer.say(*flood))
        answers.start()
        requests = [GetAttachment(number, number) for number in range(200_000)]
        sender = threading.Thread(target=connection.send, args=(requests,))
        sender.start()
        answers.join(180)
        assert not answers.is_alive(), "the flood was taken while the other side was not reading"
        heard = 0
        while heard < 200_000:
            heard += sum(1 for _ in peer.reader.feed(peer.socket.recv(1 << 20)))
        sender.join(180)
        got = 0
        while got < 200_000:
            got += len(connection.receive(10))


def test_nobody_at_the_address_is_unreachable_and_says_how_to_start(runtime_dir: Path) -> None:
    with pytest.raises(Unreachable, match="opsq start"):
        Connection.open(str(runtime_dir / "no.sock"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        Connection.open(("127.0.0.1", port))


def test_opening_waits_for_a_daemon_that_comes_up_in_time(runtime_dir: Path) -> None:
    path = str(runtime_dir / "s")
    opened: list[Connection] = []
    thread = threading.Thread(target=lambda: opened.append(Connection.open(path, reconnect_s=20)))
    thread.start()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        accepted, _ = listener.accept()
        accepted.sendall(encode([welcome()]))
        thread.join(180)
        opened[0].close()
        accepted.close()


def test_a_socket_path_that_is_too_long_is_refused_with_its_length() -> None:
    path = "/tmp/" + "x" * 120
    with pytest.raises(UsageError, match=r"125 bytes.*--socket"):
        dial(path)


def test_a_socket_of_somebody_else_names_owner_and_mode(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is made by hand, since root may use every socket."""

    def refuse(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(NotPermitted, match=f"{runtime_dir} belongs to uid {os.getuid()} and has mode 0700"):
        dial(str(runtime_dir / "s"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/run/opsq.sock", "/run/opsq.sock"),
        ("opsq.sock", "opsq.sock"),
        ("unix:/a:1", "/a:1"),
        ("unix:///a", "/a"),
        ("localhost:7411", ("localhost", 7411)),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:7411", ("::1", 7411)),
    ],
)
def test_addresses_are_read_as_people_type_them(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["host:", "host:x", "tcp://host", ":1", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        parse_address(text)


def test_connection_on_which_part_of_a_frame_was_sent_is_ended(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with peer.connect() as connection:
        peer.hear(Hello)
        monkeypatch.setattr(connection, "_wait_writable", interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection.send([StageSlice(1, bytes(16), bytes(16), 5, 0, bytes(1 << 23), True)])
        peer.socket.settimeout(5)
        while peer.socket.recv(1 << 20):
            pass
        with pytest.raises(Unreachable):
            connection.send([Heartbeat(1)])


def test_a_daemon_that_stops_reading_in_the_middle_of_a_frame_counts_as_gone() -> None:
    peer = Peer(heartbeat_s=0.05)
    with peer.connect() as connection, pytest.raises(Unreachable, match="no longer answers"):
        connection.send([StageSlice(1, bytes(16), bytes(16), 5, 0, bytes(1 << 23), True)])
    peer.socket.close()
