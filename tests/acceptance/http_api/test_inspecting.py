"""What can be looked at over HTTP: the documents of --json, with conditions and pages."""

import concurrent.futures
import re

from acceptance.http_api.conftest import serving


def document(api, path, **query):
    """The document at a path, which there must be."""
    reply = api.get(path, params=query)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json"), reply.text
    return reply.json()


def problem(reply):
    """Status and code of a problem document, which says what happened."""
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json()
    assert found["status"] == reply.status_code
    assert found["detail"]
    return found["status"], found["code"]


def timeless(explained):
    """A document of explain without how long ago things were."""
    return explained | {"reasons": [re.sub(r"\((now|[^)]* ago)\)", "", reason) for reason in explained["reasons"]]}


def kill_one(queue, submission_id):
    """Have a chunk of a submission die; returns its index."""
    handle = queue.reserve("--strategy", f"SelectOnly(submission={submission_id}, OldestFirst)")
    queue.ok("fail", handle, "--reason", "no such user", "--no-retry")
    return int(handle.partition("@")[0].partition("/")[2])


def test_documents_are_those_that_the_verbs_print(queue, api):
    first = queue.submit_lines(3, "-m", "tenant=acme", "--title", "Nightly import", "--on-dead", "keep")
    second = queue.submit_lines(2, "-m", "tenant=7")
    index = kill_one(queue, first)
    queue.ok("pause", "tenant=7")
    queue.ok("limit", "tenant", "--concurrency", "5")

    def printed(*words):
        return queue.ok(*words, "--json").json

    assert document(api, "submissions")["submissions"] == printed("list")["submissions"]
    shown = document(api, f"submissions/{first}")
    assert shown.pop("rate_per_s") > 0
    assert shown.pop("left_s") > 0
    assert shown.items() < printed("show", first).items()
    assert [event["reason"] for event in shown["attempts"]] == ["no such user"]
    assert document(api, f"submissions/{first}/chunks/{index}") == printed("show", f"{first}/{index}")
    assert timeless(document(api, f"submissions/{second}/explain")) == timeless(printed("explain", second))
    ours, theirs = document(api, f"submissions/{second}/chunks/1/explain"), printed("explain", f"{second}/1")
    assert timeless(ours) == timeless(theirs)
    assert document(api, "dead") == printed("dead", "list") | {"next": None}
    assert document(api, "history") == printed("history", "list")
    assert document(api, "rules") == printed("limits")
    assert document(api, "explain", strategy="Fair(tenant)") == printed("explain", "Fair(tenant)")
    analyzed = document(api, "explain", strategy="Fair(tenant)", analyze=True)
    assert [offer["submission_id"] for offer in analyzed["offers"]] == [first] * 2
    queue.reserve("--strategy", f"SelectOnly(submission={first}, OldestFirst)")
    running = document(api, f"submissions/{first}/running")
    assert [(chunk["submission_id"], chunk["title"]) for chunk in running["running"]] == [(first, "Nightly import")]
    ours, theirs = document(api, "status", by="tenant"), printed("status", "--by", "tenant")
    assert ours.keys() == theirs.keys()
    for name in ("state", "pid", "total", "by", "states", "held_back", "backlog"):
        assert ours[name] == theirs[name]


def test_lists_are_read_in_pages_until_next_is_null(queue, api):
    ids = [queue.submit_lines(2, "--on-dead", "keep") for _ in range(5)]
    for each in ids:
        kill_one(queue, each)

    def all_of(path, name, cursor, key):
        found, query = [], {"limit": 2}
        while True:
            page = document(api, path, **query)
            found += [item[key] for item in page[name]]
            assert len(page[name]) <= 2
            if page["next"] is None:
                return found
            query[cursor] = page["next"]

    assert all_of("submissions", "submissions", "before", "submission_id") == ids[::-1]
    assert all_of("dead", "chunks", "after", "submission_id") == ids
    events = [event["seq"] for event in queue.ok("history", "list", "--json").json["events"]]
    assert all_of("history", "events", "after", "seq") == events


def test_conditions_select(queue, api):
    acme = queue.submit_lines(2, "-m", "tenant=acme", "-m", "kind=a=b", "--on-dead", "keep")
    number = queue.submit_lines(1, "-m", "tenant=7")
    kill_one(queue, acme)
    queue.ok("cancel", number)

    def ids(**query):
        return [each["submission_id"] for each in document(api, "submissions", **query)["submissions"]]

    assert ids(metadata="tenant=acme") == ids(metadata=["tenant=acme", "kind=a=b"]) == [acme]
    assert ids(metadata="tenant=7") == ids(state=["cancelled", "failed"]) == [number]
    assert ids(metadata='tenant="7"') == []
    assert ids(newer_than_s=3600) == [number, acme]
    assert ids(older_than_s=3600) == []

    def dead(**query):
        return len(document(api, "dead", **query)["chunks"])

    assert dead(reason="NO SUCH") == dead(submission_id=acme) == dead(metadata="tenant=acme") == 1
    assert dead(reason="other") == dead(submission_id=number) == dead(exit_status=3) == dead(older_than_s=3600) == 0

    def events(**query):
        return [each["event"] for each in document(api, "history", **query)["events"]]

    assert events(submission_id=number) == ["cancelled"]
    assert events(oldest_first=True, event=["failed", "dead"]) == events(submission_id=acme)[::-1]


IMPOSSIBLE = {
    "submissions/1": (404, "not_found"),
    "submissions/x": (404, "not_found"),
    "submissions/99999999999999999999": (404, "not_found"),
    "submissions/1/chunks/x": (404, "not_found"),
    "submissions/1/chunks/-1": (404, "not_found"),
    "submissions/1/explain": (404, "not_found"),
    "submissions?limit=0": (400, "usage"),
    "submissions?limit=1&limit=2": (400, "usage"),
    "submissions?state=done": (400, "usage"),
    "submissions?metadata=x": (400, "usage"),
    "submissions?metadata=a=1&metadata=a=2": (400, "usage"),
    'submissions?metadata=a="': (400, "usage"),
    "submissions?older=3": (400, "usage"),
    "submissions?older_than_s=null": (400, "usage"),
    "submissions/1?wait=nan": (400, "usage"),
    "dead?after=3": (400, "usage"),
    "history?signal=0": (400, "usage"),
    "history?index=3": (400, "usage"),
    "status?by=%00": (400, "usage"),
    "explain?strategy=Fair(": (400, "invalid_strategy"),
    "nothing": (404, "http"),
}


def test_what_cannot_be_meant_is_a_problem_that_says_why(api):
    assert {path: problem(api.get(path)) for path in IMPOSSIBLE} == IMPOSSIBLE


def test_other_methods_are_refused_and_the_allowed_ones_named(api):
    reply = api.delete("status")
    assert (reply.status_code, set(reply.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert api.head("status").status_code == 200


def test_token_may_look_with_any_role_and_none_may_without(queue):
    token = queue.ok("token", "create", "reader", "--role", "consumer").text
    with serving(queue, "--listen", "0.0.0.0:0") as api:
        assert problem(api.get("status")) == (401, "not_permitted")
        assert problem(api.get("openapi.json")) == (401, "not_permitted")
        api.headers["Authorization"] = f"Bearer {token}"
        assert document(api, "status")["state"] == "running"
        assert document(api, "openapi.json")["openapi"] == "3.1.0"


def test_requests_that_come_while_the_daemon_is_away_are_answered_by_the_next(queue, api):
    submission_id = queue.submit_lines(1)
    assert document(api, f"submissions/{submission_id}")["state"] == "open"
    queue.ok("stop")
    with concurrent.futures.ThreadPoolExecutor(40) as pool:  # more than there are threads that ask
        shown = [pool.submit(document, api, f"submissions/{submission_id}") for _ in range(40)]
        assert api.get(api.base_url.join("/healthz")).status_code == 200
        queue.ok("start")
        assert {each.result(180)["state"] for each in shown} == {"open"}
