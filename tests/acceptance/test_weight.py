"""opsq weight: how often a value is served in Fair."""

import pytest


def test_weight_is_listed_and_goes_back_to_the_default(queue):
    queue.submit_lines(0, "-m", "tenant=a")
    queue.ok("weight", "tenant=a", "2.5")
    assert queue.ok("limits", "--json").json["weights"] == [{"key": "tenant", "value": "a", "weight": 2.5}]
    queue.ok("weight", "tenant=a", "1")
    assert queue.ok("limits", "--json").json["weights"] == []


@pytest.mark.parametrize("words", [("tenant", "2"), ("tenant=a", "0"), ("tenant=a", "1001"), ("tenant=a", "x")])
def test_what_is_no_weight_is_exit_2(queue, words):
    assert queue("weight", *words).status == 2
