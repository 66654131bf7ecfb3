"""Frames that no client of ours would send: garbage, cut off, too long, of unknown kind.

And every request with values drawn at random.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from msgspec import inspect

from daemons import Client, connected, error_of, running, whole_log
from opsq.errors import BY_CODE
from opsq.settings import Settings
from opsq.wire import messages
from opsq.wire.messages import (
    Alive,
    ErrorReply,
    Heartbeat,
    Hello,
    NewSubmission,
    Reply,
    Request,
    Reserve,
    Reserved,
    Submit,
    Submitted,
)
from wire_values import values, variants

RUNS = profile(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """One daemon for all examples: it has to outlive every one of them."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    with running(folder / "state", frame_limit_bytes="64K", connection_limit="200") as found:
        yield found
        log = whole_log(found)
    assert "Traceback" not in log, log
    shutil.rmtree(folder)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def assert_serves(settings: Settings) -> None:
    """Somebody else's connection works."""
    with connected(settings) as other:
        assert other.ask(Heartbeat(5)) == Alive(5)


@RUNS
@given(st.binary(min_size=1, max_size=200))
def test_garbage_in_place_of_a_hello_is_answered_and_the_connection_closed(settings: Settings, content: bytes) -> None:
    with Client(settings.socket) as client:
        client.socket.sendall(framed(content))
        refusal = error_of(client.receive())
        assert (refusal.id, refusal.code) == (0, "protocol")
        assert client.is_closed()


@RUNS
@given(st.binary(min_size=1, max_size=200))
def test_garbage_after_the_hello_is_answered_and_the_connection_closed(settings: Settings, content: bytes) -> None:
    with connected(settings) as client:
        client.socket.sendall(framed(content))
        refusal = error_of(client.receive())
        assert (refusal.id, refusal.code) == (0, "protocol")
        assert "cannot be decoded" in refusal.message
        assert client.is_closed()
    assert_serves(settings)


@pytest.mark.parametrize("length", [(64 << 10) + 1, (1 << 32) - 1])
def test_frame_over_the_limit_is_refused_by_its_length_alone(settings: Settings, length: int) -> None:
    """Nothing of it is waited for or kept."""
    with connected(settings) as client:
        client.socket.sendall(length.to_bytes(4, "big"))
        refusal = error_of(client.receive())
        assert refusal.code == "protocol"
        assert f"{length} bytes exceeds the limit of {64 << 10} bytes" in refusal.message
        assert client.is_closed()


def test_first_frame_over_the_limit_of_a_hello_is_refused_before_it_is_read(settings: Settings) -> None:
    with Client(settings.socket) as client:
        client.socket.sendall((1 << 15).to_bytes(4, "big"))
        assert "first frame" in error_of(client.receive()).message


def test_replies_that_are_over_the_limit_together_come_in_several_frames(settings: Settings) -> None:
    """The limit holds in both directions."""
    with connected(settings) as client:
        attachment = os.urandom(60 << 10)
        reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), 0, attachment=attachment)]))
        assert isinstance(reply, Submitted)
        submission_id = reply.created[0].submission_id
        assert client.ask(messages.GetAttachment(3, submission_id)) == messages.Attachment(3, attachment)
        client.send(*(messages.GetAttachment(number, submission_id) for number in range(4, 10)))
        assert [client.receive() for _ in range(6)] == [
            messages.Attachment(number, attachment) for number in range(4, 10)
        ]


def test_unknown_kind_of_message_is_named(settings: Settings) -> None:
    with connected(settings) as client:
        client.socket.sendall(framed(msgspec.msgpack.encode([["Teleport", 1]])))
        assert "Teleport" in error_of(client.receive()).message
        assert client.is_closed()


def test_client_of_another_version_is_told_both(settings: Settings) -> None:
    with Client(settings.socket) as client:
        refusal = error_of(client.greet(version=99))
        assert refusal.code == "version_mismatch"
        assert "99" in refusal.message
        assert client.is_closed()


def test_frame_that_comes_byte_by_byte_is_understood(settings: Settings) -> None:
    with Client(settings.socket) as client:
        for frame in (messages_frame(Hello(1, messages.VERSION)), messages_frame(Heartbeat(2))):
            for byte in frame:
                client.socket.sendall(bytes([byte]))
            reply = client.receive()
        assert reply == Alive(2)


def test_connection_that_ends_in_the_middle_of_a_frame_leaves_nothing(settings: Settings) -> None:
    for cut in range(1, 30, 3):
        with connected(settings) as client:
            client.socket.sendall(messages_frame(Submit(2, [NewSubmission(os.urandom(16), 1)]))[:cut])
    assert_serves(settings)


def test_many_requests_in_one_frame_are_all_answered(settings: Settings) -> None:
    with connected(settings) as client:
        client.send(*(Heartbeat(number) for number in range(4000)))
        assert [client.receive() for _ in range(4000)] == [Alive(number) for number in range(4000)]


def messages_frame(*requests: Request) -> bytes:
    return framed(msgspec.msgpack.encode(requests))


# --- each request yields only the replies that the protocol lists for it ----------------------------------------------


REQUESTS: dict[str, type[messages.Message]] = {
    kind.__name__: kind
    for kind in get_args(Request)
    if kind not in {Hello, messages.Stop, messages.Backup, messages.Vacuum, messages.Check}
}
"""Stop would end the daemon, and the other three work on the whole file: they have tests of their own."""


def documented(kind: type[messages.Message]) -> set[str]:
    """The replies that a request's docstring lists behind its arrow."""
    after = (kind.__doc__ or "").partition("→")[2]
    return {name for name in re.findall(r"[A-Z]\w+", after.partition(".")[0]) if hasattr(messages, name)}


@pytest.fixture(scope="module")
def submission_ids(settings: Settings) -> list[int]:
    """Some submissions that the random requests may hit."""
    with connected(settings) as client:
        reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), count) for count in (1, 64, 1000)]))
        assert isinstance(reply, Submitted)
        return [created.submission_id for created in reply.created]


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_request_yields_only_replies_that_the_protocol_lists(
    settings: Settings, submission_ids: list[int], name: str
) -> None:
    """Whatever the fields say; an error has a known code and is never a bug of ours."""
    kind = REQUESTS[name]
    allowed = documented(kind)
    fields = {
        field.name: values(field.type, submission_ids) for field in inspect.type_info(kind).fields if field.name != "id"
    }  # type: ignore[attr-defined]  # a struct
    numbers = itertools.count(100)

    @RUNS
    @given(st.builds(dict, **fields))
    def each(drawn: dict[str, Any]) -> None:
        has_id = "id" in kind.__struct_fields__
        if "wait_s" in drawn:
            drawn["wait_s"] = 0.0
        if kind is messages.Wait:
            drawn["submission_id"] = 7
        request = kind(id=next(numbers), **drawn) if has_id else kind(**drawn)
        with connected(settings) as client:
            client.socket.sendall(messages_frame(request, Heartbeat(1)))  # type: ignore[arg-type]  # one of the union
            replies: list[Reply] = []
            expected = allowed if kind is messages.CompleteAndReserve else set()
            while True:
                reply = client.receive()
                assert reply is not None
                if isinstance(reply, messages.Revoked | messages.Draining):
                    continue
                if isinstance(reply, ErrorReply):
                    assert reply.code in BY_CODE
                    assert reply.code != "bug", reply.message
                replies.append(reply)
                names = {type(one).__name__ for one in replies}
                is_answered = "ErrorReply" in names or (names & allowed and names >= expected)
                if "Alive" in names and (is_answered or not has_id):
                    break
            own = [one for one in replies if not (isinstance(one, Alive) and one.id == 1)]
            assert {type(one).__name__ for one in own} <= allowed | {"ErrorReply"}
            assert all(getattr(one, "id", None) == getattr(request, "id", None) for one in own)

    each()


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_field_beyond_its_bounds_is_refused_by_name_and_the_connection_lives(settings: Settings, name: str) -> None:
    """At its bounds it is served, or refused for another reason."""
    kind = REQUESTS[name]
    numbers = itertools.count(100)
    known: dict[str, Any] = {
        "when": lambda: "@daily",
        "id": lambda: next(numbers),
        "request_key": lambda: os.urandom(16),
        "metadata": lambda: {"key": 1},
        "strategy": lambda: "OldestFirst",
    }
    with connected(settings) as client:
        for variant in variants(kind, known):
            content = [msgspec.Raw(variant.content), Heartbeat(1)]
            if "id" in kind.__struct_fields__:
                content.insert(1, messages.CancelWait(msgspec.msgpack.decode(variant.content)[1]))
            frame = framed(msgspec.msgpack.encode(content))
            if len(frame) > 64 << 10:
                continue
            client.socket.sendall(frame)
            replies: list[Reply] = []
            while not replies or replies[-1] != Alive(1):
                reply = client.receive()
                assert reply is not None, (variant, replies)
                replies.append(reply)
            refusals = [reply for reply in replies if isinstance(reply, ErrorReply)]
            assert all(refusal.code not in {"bug", "protocol"} for refusal in refusals), (variant, refusals)
            named = [refusal.details["field"] for refusal in refusals if refusal.cause == "impossible_field"]
            is_refused = not variant.is_possible and "id" in kind.__struct_fields__
            assert named == [variant.field] * is_refused, (variant, refusals)
    assert_serves(settings)


def test_every_request_lists_its_replies() -> None:
    """What has an id is answered, and its docstring says by what."""
    for kind in get_args(Request):
        assert bool(documented(kind)) == ("id" in kind.__struct_fields__), kind


def test_parked_reserve_of_a_connection_that_broke_takes_nothing(settings: Settings) -> None:
    """What would be handed to a dead connection stays for the living."""
    with connected(settings) as dead:
        dead.send(Reserve(2, 1, "OldestFirst", wait_s=None))
        dead.socket.sendall(b"\xff\xff\xff\xff")
    with connected(settings) as alive:
        reply = alive.ask(Submit(3, [NewSubmission(os.urandom(16), 1)]))
        assert isinstance(reply, Submitted)
        assert isinstance(alive.ask(Reserve(4, 1, "OldestFirst", wait_s=0.0)), Reserved)
