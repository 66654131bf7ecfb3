"""A consumer that has nothing but HTTP."""

import base64
import concurrent.futures
import socket
from urllib.parse import urlsplit

from acceptance.http_api.test_changing import changed
from acceptance.http_api.test_inspecting import document, problem
from waiting import wait_until

DEADLINE_S = 180


def reserve(api, **body):
    """What was reserved."""
    reply = api.post("reserve", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def handles(api, **body):
    """The handles of chunks that were reserved."""
    return [chunk["handle"] for chunk in reserve(api, **body)["chunks"]]


def test_chunks_are_reserved_and_completed_with_results_of_any_size(queue, api):
    large = "x" * 100_000
    submission_id = queue.submit_lines(4)
    reserved = reserve(api, count=9, strategy="OldestFirst", lease_s=60)
    assert [(chunk["index"], chunk["attempt"], chunk["input"]) for chunk in reserved["chunks"]] == [
        (index, 0, "-") for index in range(4)
    ]
    assert 0 < reserved["deadline_s"] <= 60
    taken = [chunk["handle"] for chunk in reserved["chunks"]]
    assert handles(api) == []
    binary = base64.b64encode(b"\xff\x00").decode()
    done = [
        {"handle": taken[0], "text": "ü"},
        {"handle": taken[1], "base64": binary},
        {"handle": taken[2], "text": large},
    ]
    assert changed(api, "complete", {"chunks": done}) == 3
    assert changed(api, "complete", {"chunks": [{"handle": taken[3]}]}) == 1
    assert queue.ok("results", submission_id).out == "ü".encode() + b"\xff\x00" + large.encode()
    assert changed(api, "complete", {"chunks": done}) == 3  # its answer may have been lost
    assert problem(api.post("fail", json={"handles": taken[:1]})) == (409, "reservation_lost")


def test_chunk_is_completed_with_follow_ups(queue, api):
    submission_id = queue.submit_lines(2)
    first, second = handles(api, count=2, strategy="OldestFirst", lease_s=60)
    then = [
        {"chunks": ["a", {"base64": "/w=="}, "x" * 5000], "metadata": {"step": 2}, "title": "next", "on_dead": "keep"},
        {"chunks": [], "not_before_at": "2030-01-01T00:00:00Z"},
    ]
    body = {"chunks": [{"handle": first, "text": "A", "then": then}, {"handle": second}]}
    reply = api.post("complete", json=body).json()
    assert (reply["count"], len(reply["created"])) == (2, 2)
    state = document(api, f"submissions/{reply['created'][0]}")
    assert (state["chunks"], state["title"], state["on_dead"], state["metadata"]) == (3, "next", "keep", {"step": 2})
    assert api.post("complete", json=body).json() == {"count": 2, "created": []}  # its answer may have been lost
    assert document(api, f"submissions/{submission_id}")["state"] == "completed"
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", reply["created"][0]).out == b"a\xff" + b"x" * 5000


def test_follow_up_that_makes_no_submission_completes_nothing(queue, api):
    submission_id = queue.submit_lines(1)
    [handle] = handles(api, lease_s=60)
    for wrong in ({}, {"chunks": [1]}, {"chunks": [], "file": "/etc/passwd"}, {"chunks": [], "expires_s": -1},
                  {"chunks": [], "metadata": {"submission": 1}}, {"chunks": [{"base64": "!"}]}):  # fmt: skip
        body = {"chunks": [{"handle": handle, "then": [{"chunks": ["fine"]}, wrong]}]}
        assert problem(api.post("complete", json=body)) == (400, "usage"), wrong
    assert document(api, f"submissions/{submission_id}")["completed"] == 0
    assert len(document(api, "submissions")["submissions"]) == 1


def test_chunks_fail_and_are_released_and_extended(queue, api):
    submission_id = queue.submit_lines(3, "--max-attempts", "2")
    first, second, third = handles(api, count=3, strategy="OldestFirst", lease_s=60)
    assert changed(api, "fail", {"handles": [first], "reason": "no such user", "delay_s": 3600}) == 1
    assert changed(api, "release", {"handles": [second]}) == 1
    assert changed(api, "extend", {"handles": [third], "lease_s": 120}) == 1
    assert changed(api, "fail", {"handles": [third], "no_retry": True}) == 1
    state = document(api, f"submissions/{submission_id}")
    assert (state["delayed"], state["dead"], state["reserved"]) == (0, 1, 0)
    assert [event["reason"] for event in state["attempts"]] == ["no such user", ""]
    assert problem(api.post("extend", json={"handles": [first]})) == (409, "reservation_lost")


def test_what_is_no_handle_or_result_is_refused(api):
    wrong = {
        "extend": [{"handles": []}, {}],
        "fail": [{"handles": ["x"], "no_retry": True, "delay_s": 1}],
        "complete": [
            {"chunks": [{"handle": "1/0@1.0.1.1", "text": "", "base64": ""}]},
            {"chunks": [{"handle": "1/0@1.0.1.1", "base64": "!"}]},
        ],
        "reserve": [{"count": 0}, {"lease_s": 0}, {"wait_s": -1}],
    }
    for path, bodies in wrong.items():
        assert {problem(api.post(path, json=body)) for body in bodies} == {(400, "usage")}, path
    assert problem(api.post("release", json={"handles": ["x"]})) == (400, "invalid_handle")
    assert problem(api.post("reserve", json={"strategy": "First"})) == (400, "invalid_strategy")


def test_waiting_consumer_gets_what_is_submitted_meanwhile(queue, api):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(handles, api, wait_s=DEADLINE_S)
        wait_until(lambda: document(api, "status")["parked"] == 1, DEADLINE_S, "a parked call")
        submission_id = queue.submit_lines(1)
        [handle] = waiting.result(DEADLINE_S)
    assert handle.startswith(f"{submission_id}/0@")


def test_consumer_that_has_gone_takes_nothing_away(queue, api):
    url = urlsplit(str(api.base_url))
    body = b'{"wait_s": 3600}'
    with socket.create_connection((url.hostname, url.port)) as peer:
        head = "POST /api/v1/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        peer.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: document(api, "status")["parked"] == 1, DEADLINE_S, "a parked call")
    wait_until(lambda: document(api, "status")["parked"] == 0, DEADLINE_S, "no parked call")
    queue.submit_lines(1)
    assert len(handles(api)) == 1
