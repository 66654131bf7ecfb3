"""Events over HTTP: pages with a cursor, a long poll, and a stream that goes on where a client was."""

import concurrent.futures
import signal
import socket

import pytest

from acceptance.http_api.conftest import serving
from acceptance.http_api.test_inspecting import document, problem
from acceptance.http_api.test_watching import events

DEADLINE_S = 180


def pause(queue, value):
    queue.ok("pause", f"tenant={value}", "--quiet")


def test_pages_go_on_behind_their_cursor(queue, api):
    assert document(api, "events") == {"events": [], "next": "0"}
    for value in "abc":
        pause(queue, value)
    first = document(api, "events", limit=2)
    assert [event["subject"] for event in first["events"]] == ["pause tenant=a", "pause tenant=b"]
    second = document(api, "events", since=first["next"])
    assert ([event["subject"] for event in second["events"]], second["next"]) == (
        ["pause tenant=c"],
        second["events"][0]["cursor"],
    )
    number, _, instant = second["next"].partition("@")
    assert (number, document(api, "events", since=3)["events"]) == ("3", [])
    other = document(api, "events", since=f"3@{int(instant) - 1}")["events"]
    assert [event["kind"] for event in other] == ["lost", "paused", "paused", "paused"]
    assert document(api, "events", kind="failed")["events"] == []
    assert document(api, "events", since=99)["events"][0]["kind"] == "lost"


@pytest.mark.parametrize("query", ["since=x", "since=-1", "kind=hey", "limit=0", "wait=x", "hey=1"])
def test_query_that_cannot_be_is_refused(queue, api, query):
    assert problem(api.get(f"events?{query}"))[0] == 400


def test_long_poll_is_answered_by_the_next_event_or_when_its_time_is_over(queue, api):
    assert document(api, "events", wait=0.1) == {"events": [], "next": "0"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(document, api, "events", wait=DEADLINE_S)
        pause(queue, "a")
        assert [event["kind"] for event in waiting.result(DEADLINE_S)["events"]] == ["paused"]


def test_stream_goes_on_behind_the_last_event_that_a_client_has_seen(queue, api):
    pause(queue, "a")
    with api.stream("GET", "events/stream") as reply:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        coming = events(reply)
        name, cursor, shape = next(coming)
        assert (name, cursor, shape["subject"]) == ("paused", shape["cursor"], "pause tenant=a")
        pause(queue, "b")
        _, seen, shape = next(coming)
        assert shape["subject"] == "pause tenant=b"
    pause(queue, "c")
    for cursor in ("2", seen):
        with api.stream("GET", "events/stream", headers={"Last-Event-ID": cursor}) as reply:
            assert next(events(reply))[2]["subject"] == "pause tenant=c"
    with api.stream("GET", "events/stream", headers={"Last-Event-ID": "2@1"}) as reply:
        assert next(events(reply))[0] == "lost"
    with api.stream("GET", "events/stream", params={"since": 2, "kind": ["paused"]}) as reply:
        assert next(events(reply))[1].startswith("3@")
    assert problem(api.get("events/stream", headers={"Last-Event-ID": "hey"})) == (400, "usage")


def test_head_of_a_stream_is_answered_and_its_connection_goes_on(queue, api):
    pause(queue, "a")
    address = api.base_url.host, api.base_url.port
    stream = f"/api/v1/submissions/{queue.submit_lines(1)}/events"
    with socket.create_connection(address, DEADLINE_S) as connection, connection.makefile("rb") as coming:
        for path in ("/api/v1/events/stream", stream, "/live"):
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = b"".join(iter(coming.readline, b"\r\n")).lower()
            assert head.startswith(b"http/1.1 200 ok\r\n")
            assert b"content-type: text/event-stream" in head
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in coming.readline()
            assert b"".join(iter(coming.readline, b"\r\n"))
            assert coming.read(3) == b"ok\n"


def test_streams_and_polls_end_with_the_gateway(queue):
    pause(queue, "a")
    with serving(queue) as api, concurrent.futures.ThreadPoolExecutor() as pool:
        polled = pool.submit(document, api, "events", since=1, wait=3600)
        with api.stream("GET", "events/stream") as reply:
            coming = events(reply)
            next(coming)
            api.process.send_signal(signal.SIGTERM)
            assert list(coming) == []
        assert polled.result(DEADLINE_S) == {"events": [], "next": "1"}
