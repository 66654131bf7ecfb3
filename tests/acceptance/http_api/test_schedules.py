"""Schedules over HTTP are those of `opsq schedule`, with the same options and the same documents."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from acceptance.http_api.conftest import serving
from acceptance.http_api.test_changing import changed
from acceptance.http_api.test_inspecting import document, problem

WHEN = {"when": "30 2 * * *"}


def test_schedule_is_put_listed_shown_edited_and_removed(queue, api):
    options = {**WHEN, "tz": "Europe/Amsterdam", "overlap": "queue", "metadata": ["tenant=acme", "n=7"]}
    put = api.put("schedules/nightly", params=options)
    assert (put.status_code, put.headers["location"]) == (201, "/api/v1/schedules/nightly")
    shown = document(api, "schedules/nightly")
    assert put.json() == shown == queue.ok("schedule", "show", "nightly", "--json").json
    assert (shown["zone"], shown["overlap"], shown["metadata"]) == (
        "Europe/Amsterdam",
        "queue",
        {"tenant": "acme", "n": 7},
    )
    edited = api.patch("schedules/nightly", params={"pause_on_failure": "yes", "metadata": "kind=x"}).json()
    assert edited == shown | {"on_failure": "pause", "metadata": {"tenant": "acme", "n": 7, "kind": "x"}}
    assert document(api, "schedules") == queue.ok("schedule", "list", "--json").json
    assert len(document(api, "schedules/nightly", upcoming=5)["upcoming"]) == 5
    assert changed(api, "schedules/nightly", method="DELETE") == 1
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger")):
        assert problem(api.request(method, f"schedules/nightly{path}")) == (404, "not_found")


def test_put_takes_the_place_of_one_and_keeps_what_it_has_counted(queue, api):
    assert api.put("schedules/nightly", params={**WHEN, "title": "Old"}).status_code == 201
    assert api.post("schedules/nightly/trigger").status_code == 200
    again = api.put("schedules/nightly", params={"when": "@hourly"})
    assert (again.status_code, again.json()["when"], again.json()["title"]) == (200, "@hourly", None)
    assert again.json()["open"] == 1


def test_edits_at_the_same_time_all_hold_or_are_refused(queue, api):
    api.put("schedules/nightly", params=WHEN)
    with ThreadPoolExecutor(8) as threads:
        options = [{"metadata": f"k{number}=1"} for number in range(16)]
        statuses = list(threads.map(lambda one: api.patch("schedules/nightly", params=one).status_code, options))
    assert set(statuses) <= {200, 409}
    assert len(document(api, "schedules/nightly")["metadata"]) == statuses.count(200)


def test_body_is_the_chunk(queue, api):
    headers = {"Content-Type": "text/plain"}
    assert api.put("schedules/nightly", params=WHEN, content="work\n", headers=headers).status_code == 201
    assert api.patch("schedules/nightly", params={"title": "T"}).status_code == 200
    [first] = api.post("schedules/nightly/trigger").json()["submission_ids"]
    assert api.patch("schedules/nightly", content=b"other\n").status_code == 200
    [second] = api.post("schedules/nightly/trigger").json()["submission_ids"]
    assert [api.get(f"submissions/{one}/chunks/0/content").content for one in (first, second)] == [
        b"work\n",
        b"other\n",
    ]
    assert document(api, f"submissions/{first}")["title"] == "T"
    assert problem(api.put("schedules/nightly", params=WHEN, content=b"x" * 60_001)) == (413, "http")
    assert problem(api.put("schedules/nightly", params=WHEN, data={"a": "b"})) == (415, "http")


def test_schedules_come_in_pages(api):
    for name in "cab":
        assert api.put(f"schedules/{name}", params=WHEN).status_code == 201
    page = document(api, "schedules", limit=2)
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["a", "b"], "b")
    page = document(api, "schedules", limit=2, after="b")
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["c"], None)


def test_schedule_is_paused_resumed_and_backfilled(queue, api):
    api.put("schedules/nightly", params=WHEN)
    assert changed(api, "schedules/nightly/pause", {"note": "holiday"}) == 1
    assert changed(api, "schedules/nightly/pause") == 0
    assert document(api, "schedules/nightly")["note"] == "holiday"
    assert changed(api, "schedules/nightly/resume") == 1
    assert changed(api, "schedules/nightly/resume") == 0
    span = {"from_at": "2026-03-01T00:00Z", "to_at": "2026-03-08T00:00Z"}
    assert len(api.post("schedules/nightly/backfill", json=span).json()["submission_ids"]) == 7
    assert api.post("schedules/nightly/backfill", json=span).json() == {"submission_ids": []}
    wrong = [{}, {"from_at": "soon", "to_at": "later"}, {**span, "x": 1}]
    assert {problem(api.post("schedules/nightly/backfill", json=body)) for body in wrong} == {(400, "usage")}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"when": ""},
        {"when": "61 * * * *"},
        {**WHEN, "tz": "Europe/Nowhere"},
        {**WHEN, "overlap": "never"},
        {**WHEN, "catch_up": "some"},
        {**WHEN, "metadata": "schedule=x"},
        {**WHEN, "unique": "key"},
        {**WHEN, "jitter": "much"},
        {**WHEN, "pause_on_failure": "perhaps"},
    ],
)
def test_what_can_be_no_schedule_is_refused(api, wrong):
    assert problem(api.put("schedules/nightly", params=wrong)) == (400, "usage")
    assert document(api, "schedules")["schedules"] == []


@pytest.mark.parametrize(("role", "may_change"), [("operator", True), ("producer", True), ("read-only", False)])
def test_roles_of_a_token_decide_who_changes_schedules(queue, role, may_change):
    queue.ok("schedule", "add", "nightly", "@daily")
    token = queue.ok("token", "create", "somebody", "--role", role).text
    with serving(queue) as api:
        api.headers["Authorization"] = f"Bearer {token}"
        assert document(api, "schedules/nightly")["name"] == "nightly"
        replies = [api.put("schedules/other", params=WHEN), api.post("schedules/nightly/trigger")]
        assert [reply.status_code < 300 for reply in replies] == [may_change] * 2
