"""The state and the rules of all shards as those of one daemon."""

from __future__ import annotations

from typing import Any

import msgspec

from opsq.client.shards.merging import Cursors, Members, gathering
from opsq.wire import messages as m

ADDRESSES = {0: "a:1", 1: "b:1"}


def counts(value: int | str | None, submissions: int, waiting: int = 0, reserved: int = 0) -> m.Counts:
    return m.Counts(value, submissions, waiting, 0, reserved, 0, 0, 0)


def state(**fields: Any) -> m.DaemonState:
    zeros = ["parked_count", "connections_count", "unfolded_count", "file_bytes", "free_bytes", "wal_bytes"]
    known: dict[str, Any] = dict.fromkeys(zeros, 0) | dict.fromkeys(("uptime_s", "oldest_reservation_s"), 0.0)
    known |= {"id": 1, "server": "1.0", "pid": 7, "state": "running", "total": counts(None, 0)}
    known |= {"by": [], "states": {}, "consumers": [], "settings": {}}
    return m.DaemonState(**known | fields)


def merged(*states: m.DaemonState, addresses: dict[int, str] = ADDRESSES) -> m.DaemonState:
    found = gathering(m.Status(9, "tenant"), Members(addresses), Cursors())
    assert found is not None
    found.ask(sorted(addresses))
    reply = found.merged(dict(enumerate(states)))
    assert isinstance(reply, m.DaemonState)
    return reply


def test_counts_are_added_and_ages_are_those_of_the_oldest() -> None:
    names = ("parked_count", "connections_count", "unfolded_count", "file_bytes", "free_bytes", "wal_bytes")
    added = dict.fromkeys((*names, "room_waiting_count", "unmatched_count", "backlog_limit"), 3)
    first = state(**added, total=counts(None, 2, 5), oldest_reservation_s=1.0, uptime_s=4.0, wal_kept_s=2.0)
    second = state(**added, total=counts(None, 1, 1), oldest_reservation_s=2.0, uptime_s=3.0)
    reply = merged(first, second)
    assert {name: getattr(reply, name) for name in added} == dict.fromkeys(added, 6)
    assert reply.total == counts(None, 3, 6)
    assert (reply.oldest_reservation_s, reply.uptime_s, reply.wal_kept_s) == (2.0, 3.0, 2.0)


def test_nothing_that_a_daemon_tells_is_left_out() -> None:
    """The state of one shard alone is its own, whatever fields there are."""
    replica = m.ReplicaState("s3://a/b", "running", 1.0, True, 3, 0)
    whole = state(
        **dict.fromkeys(("connections_count", "parked_count", "unfolded_count", "free_bytes", "wal_bytes"), 3),
        **dict.fromkeys(("file_bytes", "unmatched_count", "backlog_limit", "room_waiting_count", "disk_free_bytes"), 4),
        **dict.fromkeys(("uptime_s", "oldest_reservation_s", "wal_kept_s"), 5.0),
        **dict.fromkeys(("departed_count", "arriving_count"), 2),
        total=counts(None, 2, 3),
        by=[counts("a", 1, 1), counts(None, 1, 2)],
        states={"open": 2},
        consumers=[m.ConsumerState("a", False, 1, 1.0, "Random")],
        settings={"a": "b"},
        state="full",
        removable={"ended": 3},
        held_back=[m.Finding("full")],
        takes_new=False,
        replica=replica,
        measures=m.Measures(1.0, 1, {"lost": 1}, durations(1, 2), durations(2, 1), durations(1, 1), 1, durations(1, 0)),
    )
    told = {name: getattr(whole, name) for name in m.DaemonState.__struct_fields__ if name not in {"id", "shards"}}
    defaults = m.DaemonState.__struct_defaults__
    optional = dict(zip(m.DaemonState.__struct_fields__[-len(defaults) :], defaults, strict=True))
    assert all(told[name] != default for name, default in optional.items() if name in told)
    reply = merged(whole, addresses={0: "a:1"})
    assert {name: getattr(reply, name) for name in told} == told


def test_the_replica_that_is_told_is_the_worst() -> None:
    well = m.ReplicaState("s3://a/b", "running", 9.0, True, 3, 0)
    failed, deposed = (
        msgspec.structs.replace(well, lag_s=1.0, error="No."),
        msgspec.structs.replace(well, is_owner=False),
    )
    assert merged(state(replica=failed), state(replica=well)).replica == failed
    assert merged(state(replica=failed), state(replica=deposed)).replica == deposed
    assert merged(state(), state(replica=well)).replica == well


def test_what_one_shard_does_not_know_is_unknown_of_all() -> None:
    reply = merged(state(unmatched_count=3, backlog_limit=5, disk_free_bytes=9), state())
    assert (reply.unmatched_count, reply.backlog_limit, reply.disk_free_bytes) == (None, None, 9)


def test_the_state_is_the_worst_and_the_least_room_is_told() -> None:
    reply = merged(
        state(state="full", removable={"ended": 3}, disk_free_bytes=1), state(state="draining", disk_free_bytes=2)
    )
    assert (reply.state, reply.removable, reply.disk_free_bytes) == ("full", {"ended": 3}, 1)


def test_each_shard_is_told_alone_also_one_that_did_not_answer() -> None:
    reply = merged(state(server="1.1", uptime_s=2.0, total=counts(None, 1)))
    assert reply.shards == [
        m.ShardState(0, "a:1", "running", "1.1", counts(None, 1), 2.0),
        m.ShardState(1, "b:1", "unreachable"),
    ]


def test_a_shard_that_was_never_reached_is_told_by_its_address() -> None:
    found = gathering(m.Status(9), Members({0: "a:1"}, ["b:1"]), Cursors())
    assert found is not None
    found.ask([0])
    reply = found.merged({0: state()})
    assert isinstance(reply, m.DaemonState)
    assert reply.shards[1:] == [m.ShardState(None, "b:1", "unreachable")]
    assert reply.pid == 0


def test_a_process_is_named_only_if_it_is_the_only_one() -> None:
    assert merged(state(), state()).pid == 0
    assert merged(state(), addresses={0: "a:1"}).pid == 7


def test_values_are_counted_over_all_shards() -> None:
    reply = merged(
        state(total=counts(None, 3), by=[counts(1, 1), counts("acme", 2)]),
        state(total=counts(None, 3), by=[counts("acme", 2), counts(None, 1)]),
    )
    assert reply.by == [counts(1, 1), counts("acme", 4), counts(None, 1)]


def test_a_shard_where_nothing_has_the_key_counts_as_without_it() -> None:
    reply = merged(state(total=counts(None, 2), by=[counts("acme", 2)]), state(total=counts(None, 3)))
    assert reply.by == [counts("acme", 2), counts(None, 3)]
    assert merged(state(total=counts(None, 2)), state(total=counts(None, 3))).by == []


def test_submissions_are_counted_by_state() -> None:
    reply = merged(state(states={"open": 1, "failed": 2}), state(states={"open": 3, "completed": 1}))
    assert reply.states == {"open": 4, "failed": 2, "completed": 1}


def test_a_consumer_that_several_shards_know_is_one() -> None:
    reply = merged(
        state(
            consumers=[
                m.ConsumerState("b", True, 1, 2.0, None),
                m.ConsumerState("c", True, 0, 0.0, "Random", True),
            ]
        ),
        state(
            consumers=[m.ConsumerState("a", False, 1, 1.0, None), m.ConsumerState("b", True, 2, 3.0, "Random", True)]
        ),
    )
    assert reply.consumers == [
        m.ConsumerState("a", False, 1, 1.0, None),
        m.ConsumerState("b", True, 3, 3.0, "Random"),
        m.ConsumerState("c", True, 0, 0.0, "Random", True),
    ]


def test_what_holds_work_back_at_several_shards_is_told_once() -> None:
    paused, resume = m.Finding("paused", {"by": "ada", "paused_at": 5, "pairs": "a=1"}), m.Finding("resume")
    reply = merged(
        state(held_back=[paused, resume, m.Finding("some_scheduled", {"submissions": 2, "due_at": 9})]),
        state(
            held_back=[
                m.Finding("paused", {**paused.details, "paused_at": 6}),
                resume,
                m.Finding("some_scheduled", {"submissions": 1, "due_at": 8}),
                m.Finding("paused", {**paused.details, "pairs": "a=2"}),
            ]
        ),
    )
    assert reply.held_back == [
        paused,
        resume,
        m.Finding("some_scheduled", {"submissions": 3, "due_at": 8}),
        m.Finding("paused", {**paused.details, "pairs": "a=2"}),
    ]


def durations(*numbers: int, bounds_s: tuple[float, ...] = (1.0,)) -> m.Durations:
    return m.Durations([*bounds_s], [*numbers], float(sum(numbers)))


def test_measures_are_added() -> None:
    first = m.Measures(1.0, 2, {"failed": 1}, durations(1, 2), durations(3, 4), durations(1, 1), 1)
    second = m.Measures(2.0, 1, {"failed": 2, "lost": 1}, durations(1, 2), durations(3, 4), None, 2)
    assert merged(state(measures=first), state(measures=second)).measures == m.Measures(
        2.0, 2, {"failed": 3, "lost": 1}, durations(2, 4), durations(6, 8), durations(1, 1), 3
    )
    assert merged(state(), state()).measures is None


def test_durations_with_other_bounds_are_left_out() -> None:
    first = m.Measures(0.0, 0, {}, durations(1, 2), durations(3, 4))
    other = durations(1, 1, 1, bounds_s=(1.0, 2.0))
    reply = merged(state(measures=first), state(measures=msgspec.structs.replace(first, waits=other)))
    assert reply.measures is not None
    assert (reply.measures.waits, reply.measures.runs) == (durations(1, 2), durations(6, 8))


def limit(value: int | None, reserved: int | None, busiest: int | None = None) -> m.LimitState:
    return m.LimitState("a", value, 5, None, None, "", 0, reserved, busiest)


def test_the_newest_rules_are_told_with_the_busiest_shard() -> None:
    found = gathering(m.ShowRules(9), Members(ADDRESSES), Cursors())
    assert found is not None
    found.ask([0, 1])
    pause = m.PauseState({}, True, "ada", 0)
    reply = found.merged(
        {
            0: m.RulesState(1, [], [limit(1, 3, 1), limit(2, None)], [], 6),
            1: m.RulesState(1, [pause], [limit(1, 2, 1), limit(None, 1, 4)], [m.WeightState("a", 1, 2.0)], 7),
        }
    )
    weights = [m.WeightState("a", 1, 2.0)]
    assert reply == m.RulesState(9, [pause], [limit(1, 3, 1), limit(None, 1, 4)], weights, 7)
