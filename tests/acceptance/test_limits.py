"""opsq limits: lists pauses, limits and weights."""


def test_every_rule_is_one_line_with_its_bound(queue):
    for tenant in "abc":
        queue.submit_lines(0, "-m", f"tenant={tenant}")
    queue.ok("pause", "tenant=a")
    queue.ok("limit", "tenant=b", "-c", "2")
    queue.ok("weight", "tenant=c", "3")
    rows = [line.split("\t")[:3] for line in queue.ok("limits").lines]
    assert rows == [["pause", "tenant=a", ""], ["limit", "tenant=b", "2 at once"], ["weight", "tenant=c", "3"]]


def test_queue_without_rules_lists_nothing(queue):
    assert queue.ok("limits").out == b""
    assert queue.ok("limits", "--json").json == {"pauses": [], "limits": [], "weights": []}
