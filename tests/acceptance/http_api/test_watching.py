"""Waiting for a submission over HTTP: a long poll, and server-sent events."""

import concurrent.futures
import json
import signal

from acceptance.http_api.conftest import serving
from acceptance.http_api.test_inspecting import document, problem
from waiting import wait_until

DEADLINE_S = 180


def events(reply):
    """The events of a stream as they come: name, id and data."""
    event = {}
    for line in reply.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            if "data" in event:
                yield event["event"], event.get("id"), json.loads(event["data"])
            event = {}


def complete_one(queue):
    """Complete a chunk."""
    queue.ok("complete", queue.reserve())


def test_long_poll_is_answered_at_the_end_or_when_its_time_is_over(queue, api):
    submission_id = queue.submit_lines(1)
    path = f"submissions/{submission_id}"
    assert document(api, path, wait=0.1)["state"] == "open"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(document, api, path, wait=DEADLINE_S)
        wait_until(lambda: document(api, "status")["state"] == "running", DEADLINE_S, "the gateway serves others")
        complete_one(queue)
        assert waiting.result(DEADLINE_S)["state"] == "completed"
    assert document(api, path, wait=3600)["state"] == "completed"
    assert problem(api.get("submissions/1", params={"wait": 3600})) == (404, "not_found")


def test_events_tell_each_change_until_the_end_and_go_on_where_a_client_was(queue, api):
    submission_id = queue.submit_lines(2)
    path = f"submissions/{submission_id}/events"
    with api.stream("GET", path, params={"interval_s": 0.2}) as reply:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        coming = events(reply)
        name, first_id, shape = next(coming)
        assert (name, shape["submission_id"], shape["completed"]) == ("state", submission_id, 0)
        complete_one(queue)
        assert any(shape["completed"] == 1 for _, _, shape in coming)
    with api.stream("GET", path, headers={"Last-Event-ID": first_id}) as reply:
        coming = events(reply)
        assert next(coming)[2]["completed"] == 1
        complete_one(queue)
        *_, (name, last_id, shape) = coming
        assert (name, shape["state"], shape["completed"]) == ("ended", "completed", 2)
    assert [name for name, _, _ in events(api.get(path))] == ["ended"]
    assert api.get(path, headers={"Last-Event-ID": last_id}).status_code == 204
    assert problem(api.get("submissions/1/events")) == (404, "not_found")


def test_submission_that_is_removed_while_it_is_watched_is_an_error_event(queue, api):
    submission_id = queue.submit_lines(1, "--delay", "1h")
    with api.stream("GET", f"submissions/{submission_id}/events") as reply:
        coming = events(reply)
        assert next(coming)[2]["state"] == "scheduled"
        queue.ok("cancel", submission_id)
        queue.ok("rm", submission_id)
        *_, (name, _, data) = coming
    assert (name, data.get("code", data.get("state"))) in {("error", "not_found"), ("ended", "cancelled")}


def test_whoever_waits_is_answered_when_the_gateway_ends(queue):
    submission_id = queue.submit_lines(1)
    with serving(queue) as api, concurrent.futures.ThreadPoolExecutor() as pool:
        polled = pool.submit(document, api, f"submissions/{submission_id}", wait=3600)
        reserving = pool.submit(api.post, "reserve", json={"strategy": "SelectOnly(kind=none)", "wait_s": 3600})
        with api.stream("GET", f"submissions/{submission_id}/events") as reply:
            coming = events(reply)
            next(coming)
            wait_until(lambda: document(api, "status")["parked"] == 1, DEADLINE_S, "a parked call")
            api.process.send_signal(signal.SIGTERM)
            assert list(coming) == []
        assert polled.result(DEADLINE_S)["state"] == "open"
        assert reserving.result(DEADLINE_S).json()["chunks"] == []
