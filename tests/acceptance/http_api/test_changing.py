"""What is changed over HTTP is what the verbs of the same name change, with the roles that they need."""

import pytest

from acceptance.http_api.conftest import serving
from acceptance.http_api.test_inspecting import document, kill_one, problem


def changed(api, path, body=None, method="POST"):
    """How many things a request has changed, which is accepted."""
    reply = api.request(method, path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["count"]


def test_submissions_are_cancelled_and_removed(queue, api):
    submission_id = queue.submit_lines(2)
    assert problem(api.delete(f"submissions/{submission_id}")) == (409, "not_finished")
    assert changed(api, f"submissions/{submission_id}/cancel", {"reason": "a mistake"}) == 1
    assert changed(api, f"submissions/{submission_id}/cancel") == 0
    assert document(api, f"submissions/{submission_id}")["reason"] == "a mistake"
    assert changed(api, f"submissions/{submission_id}", method="DELETE") == 1
    assert problem(api.get(f"submissions/{submission_id}")) == (404, "not_found")
    assert problem(api.post(f"submissions/{submission_id}/cancel")) == (404, "not_found")
    assert problem(api.delete(f"submissions/{submission_id}")) == (404, "not_found")


def test_dead_chunks_are_requeued_and_dropped(queue, api):
    submission_id = queue.submit_lines(6, "-m", "tenant=acme", "--on-dead", "keep")
    indexes = [kill_one(queue, submission_id) for _ in range(5)]
    assert changed(api, "dead/requeue", {"submission_id": submission_id, "indexes": indexes[:1]}) == 1
    assert changed(api, "dead/drop", {"submission_id": submission_id, "indexes": indexes[1:2]}) == 1
    assert changed(api, "dead/drop", {"metadata": {"tenant": "acme"}, "reason": "other"}) == 0
    assert changed(api, "dead/requeue", {"metadata": {"tenant": "acme"}, "reason": "NO SUCH"}) == 3
    assert changed(api, "dead/requeue", {"all": True}) == 0
    wrong = [
        {},
        {"all": True, "reason": "x"},
        {"indexes": [1]},
        {"indexes": [], "submission_id": submission_id},
        {"submission_id": submission_id, "indexes": [1], "reason": "x"},
    ]
    assert {problem(api.post("dead/drop", json=body)) for body in wrong} == {(400, "usage")}


def test_rules_are_set_and_lifted(queue, api):
    assert changed(api, "pause", {"metadata": {"tenant": "acme"}}) == 1
    assert changed(api, "pause", {"metadata": {"tenant": "acme"}}) == 0
    assert changed(api, "pause", {"all": True, "operator": True}) == 1
    assert changed(api, "limit", {"key": "tenant", "concurrency": 5, "rate_per_s": 2.5, "burst": 3}) == 1
    assert changed(api, "weight", {"key": "tenant", "value": 7, "weight": 3}) == 1
    rules = document(api, "rules")
    assert rules == queue.ok("limits", "--json").json
    assert {tuple(each["metadata"].items()) for each in rules["pauses"]} == {(("tenant", "acme"),), ()}
    assert [(each["key"], each["concurrency"], each["burst"]) for each in rules["limits"]] == [("tenant", 5, 3)]
    assert [(each["value"], each["weight"]) for each in rules["weights"]] == [(7, 3.0)]
    assert problem(api.post("resume", json={"all": True})) == (403, "not_permitted")
    assert changed(api, "resume", {"all": True, "operator": True}) == 1
    assert changed(api, "resume", {"metadata": {"tenant": "acme"}}) == 1
    assert problem(api.post("resume", json={"metadata": {"tenant": "acme"}})) == (404, "not_found")
    assert changed(api, "limit", {"key": "tenant", "lift": True}) == 1
    assert problem(api.post("limit", json={"key": "tenant", "lift": True})) == (404, "not_found")
    wrong = {
        "pause": [{}, {"all": True, "metadata": {"a": 1}}, {"metadata": {"a b": 1}}, {"metadata": {"a": 1.5}}],
        "limit": [{}, {"key": "a"}, {"key": "a", "burst": 3}, {"key": "a", "lift": True, "burst": 3}],
        "weight": [{"key": "a", "value": 1, "weight": 0}, {"key": "a", "value": "x" * 1025, "weight": 1}],
    }
    for path, bodies in wrong.items():
        assert {problem(api.post(path, json=body)) for body in bodies} == {(400, "usage")}, path


def test_history_is_pruned(queue, api):
    queue.ok("cancel", queue.submit_lines(1))
    queue.ok("cancel", queue.submit_lines(1))
    assert changed(api, "history/prune", {"keep": 1}) == 1
    assert changed(api, "history/prune", {"older_than_s": 0}) == 1
    assert problem(api.post("history/prune", json={})) == (400, "usage")


def test_bodies_have_a_type_a_bound_and_no_unknown_fields(api):
    def posted(content, media_type="application/json"):
        return api.post("pause", content=content, headers={"Content-Type": media_type})

    assert problem(posted(b'{"all":true}', "text/plain")) == (415, "http")
    assert problem(posted(b'{"all":true}', "application/jsonp")) == (415, "http")
    assert problem(posted(b'{"all":')) == (400, "usage")
    assert problem(posted(b"[" * 100_000)) == (400, "usage")
    assert problem(posted(b'{"all":true,"everything":true}')) == (400, "usage")
    assert problem(posted(b'{"metadata":{"a":"\\ud800"}}')) == (400, "usage")
    assert problem(posted(b'"' + b" " * (1 << 20) + b'"')) == (413, "http")
    assert problem(posted(iter([b" "] * 3))) == (400, "usage")
    assert document(api, "rules")["pauses"] == []


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("operator", {"pause", "limit", "cancel", "requeue", "drop", "prune", "reserve"}),
        ("producer", {"pause", "cancel", "requeue"}),
        ("consumer", {"pause", "reserve"}),
        ("read-only", set()),
    ],
)
def test_roles_of_a_token_decide_what_it_may_change(queue, role, allowed):
    requests = {
        "pause": ("pause", {"metadata": {"tenant": role}}),
        "limit": ("limit", {"key": "tenant", "concurrency": 5}),
        "cancel": ("submissions/1/cancel", {}),
        "requeue": ("dead/requeue", {"all": True}),
        "drop": ("dead/drop", {"all": True}),
        "prune": ("history/prune", {"keep": 1}),
        "reserve": ("reserve", {}),
    }
    token = queue.ok("token", "create", "somebody", "--role", role).text
    with serving(queue) as api:
        api.headers["Authorization"] = f"Bearer {token}"
        replies = {name: api.post(path, json=body) for name, (path, body) in requests.items()}
        assert {name for name, reply in replies.items() if reply.status_code != 403} == allowed
        assert {problem(reply) for reply in replies.values() if reply.status_code == 403} <= {(403, "not_permitted")}
