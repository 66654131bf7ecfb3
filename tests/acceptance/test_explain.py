"""opsq explain: how a strategy is served, in words, and as JSON."""

import pytest


@pytest.mark.parametrize("strategy", ["Random", "OldestFirst", "NewestFirst"])
def test_plans_search_an_index_and_sort_nothing(queue, strategy):
    queue.submit_lines(1)
    document = queue.ok("explain", strategy, "--json").json
    assert document["strategy"] == strategy
    (arm,) = document["arms"]
    steps = [step["detail"] for statement in arm["statements"] for step in statement["plan"]]
    assert steps
    plain = queue.ok("explain", strategy)
    assert plain.lines[0] == strategy
    for step in steps:
        assert "SEARCH" in step
        assert "TEMP B-TREE" not in step
        assert step in plain.text


def test_order_is_said_to_pre_empt_nothing(queue):
    assert "nothing is pre-empted" in queue.ok("explain", "Random").text


def test_unknown_strategy_is_exit_2(queue):
    ran = queue("explain", "Fastest")
    assert ran.status == 2
    assert "Fastest" in ran.err


def test_tree_on_a_terminal_has_its_sql_coloured(queue):
    ran = queue.on_terminal("explain", "OldestFirst")
    assert ran.status == 0
    assert b"\x1b[" in ran.out
    assert "└──".encode() in ran.out
