"""--after as a shell meets it: blocked, explained, drawn, opened, cancelled, refused."""

import pytest


def submit(queue, *options):
    return queue.ok("submit", "-", *options, stdin=b"x\n").text


def state(queue, submission):
    return queue.ok("show", submission, "--json").json["state"]


def complete(queue):
    queue.ok("complete", queue.reserve())


def test_submission_waits_until_another_is_completed(queue):
    first = submit(queue)
    second = submit(queue, "--after", first)
    third = submit(queue, "--after", f"{first}:completed", "--after", f"{second}:ended", "-m", "k=1")
    assert [state(queue, one) for one in (first, second, third)] == ["open", "blocked", "blocked"]
    assert queue.ok("list", "--state", "blocked", "--json").json["submissions"][1]["submission_id"] == second
    assert queue.ok("status", "--json").json["states"]["blocked"] == 2
    queue.ok("restart")
    complete(queue)
    assert [state(queue, one) for one in (first, second, third)] == ["completed", "open", "blocked"]
    complete(queue)
    assert state(queue, third) == "open"


def test_show_and_explain_say_what_is_waited_for(queue):
    first = submit(queue)
    second = submit(queue, "--after", first, "--after", "batch=7")
    third = submit(queue, "--after", f"{second}:ended")
    explained = queue.ok("explain", second)
    assert explained.lines[:2] == [
        f"blocked: Submission {second} is blocked by 2 conditions.",
        "  It waits for submissions with batch=7; there has been none yet.",
    ]
    assert f"It waits until submission {first} is completed; that is open." in explained.text
    shown = queue.ok("show", third).lines
    assert [line for line in shown if line.startswith(("after", "needed"))] == [
        f"after\tthe end of {second}: blocked",
        "after\t  the end of all with batch=7: waited for",
        f"after\t  {first}: open",
    ]
    shown = queue.ok("show", first).lines
    assert [line for line in shown if line.startswith(("after", "needed"))] == [
        f"needed by\t{second}: blocked",
        f"needed by\t  {third}: blocked",
    ]
    [edge, _, _] = queue.ok("show", third, "--json").json["dependencies"]
    assert edge == {
        "submission_id": third,
        "state": "blocked",
        "on_submission_id": second,
        "on_state": "blocked",
        "key": None,
        "value": None,
        "needs": "ended",
        "on_failed_dependency": "cancel",
        "outcome": None,
    }


def test_json_names_no_submission_where_a_pair_is_waited_for(queue):
    waiting = submit(queue, "--after", "batch=7")
    [edge] = queue.ok("show", waiting, "--json").json["dependencies"]
    assert (edge["on_submission_id"], edge["on_state"], edge["key"], edge["value"]) == (None, None, "batch", 7)


@pytest.mark.parametrize(("policy", "found"), [("cancel", "cancelled"), ("run", "open"), ("keep", "blocked")])
def test_failed_dependency(queue, policy, found):
    first = submit(queue)
    second = submit(queue, "--after", first, "--on-failed-dependency", policy)
    queue.ok("cancel", first)
    assert state(queue, second) == found
    shown = queue.ok("show", second).lines
    if policy == "cancel":
        assert f"reason\tSubmission {first}, which it waited for, was cancelled." in shown
        ran = queue("wait", second)
        assert ran.status == 1
    refused = queue("rm", first)
    if policy == "keep":
        assert refused.status == 5
        assert f"submission {second} waits for it" in refused.err
        assert f"`opsq dead requeue {first}`" in queue.ok("explain", second).text
    else:
        assert refused.status == 0


def test_pair_joins_a_fan_out(queue):
    join = submit(queue, "--after", "batch=7")
    for _ in range(2):
        submit(queue, "-m", "batch=7")
    complete(queue)
    assert state(queue, join) == "blocked"
    complete(queue)
    assert state(queue, join) == "open"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--after", "1:failed"], 2, "1:completed or 1:ended"),
        (["--after", "one"], 3, "one"),
        (["--after", "=1"], 2, "is not a key"),
        (["--after", "250843914371072000"], 3, "250843914371072000"),
        (["--on-failed-dependency", "run"], 2, "needs --after"),
        (["--after", "k=1", "-m", "k=1"], 5, "would wait for itself"),
    ],
)
def test_refused(queue, options, status, said):
    ran = queue("submit", "-", *options, stdin=b"x\n")
    assert ran.status == status
    assert said in ran.err
    assert queue.ok("list").out == b""


def test_schedule_takes_no_dependencies(queue):
    first = submit(queue)
    ran = queue("schedule", "add", "nightly", "@daily", "--after", first)
    assert ran.status == 2
    assert "--after" in ran.err
