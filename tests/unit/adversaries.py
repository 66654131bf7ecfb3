"""Backlogs made to hurt a strategy, each of a size that the caller chooses.

What they have in front is of no use to whoever asks.

Each builds a queue in a rig and says which strategy then has to stay flat. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from opsq.queue.state import EngineState
from opsq.wire import messages as m
from unit.model.rig import Rig

BATCH = 2_000


class Adversary(NamedTuple):
    """A strategy, and how its worst backlog is made: `build` with a rig and a size."""

    name: str
    strategy: str
    build: Callable[[Rig, int], None]


class CountingState(EngineState):
    """Counts what is taken from `rows_left`.

    The rows visited, submissions passed over and chunks given by all calls so far.
    """

    _left = 0
    visited_count = 0

    @property
    def rows_left(self) -> int:  # type: ignore[override]  # an attribute there
        return self._left

    @rows_left.setter
    def rows_left(self, value: int) -> None:
        self.visited_count += max(self._left - value, 0)
        self._left = value

    def charge(self, rows_count: int) -> None:
        """What costs a turn time is no row."""
        self._left -= rows_count


def counting(rig: Rig) -> CountingState:
    """Have the engine of a rig count."""
    state = rig.engine._state
    left = state.__dict__.pop("rows_left", 0)
    state.__class__ = CountingState
    assert isinstance(state, CountingState)
    state._left = left
    return state


def submit(rig: Rig, rows: Iterable[dict[str, Any]], chunks_count: int = 1, **options: Any) -> None:
    """Submit one submission for each metadata, in order."""
    peer = rig.connect("producer")
    waiting = [m.NewSubmission(rig.request_key(), chunks_count, metadata=metadata, **options) for metadata in rows]
    while waiting:
        rig.ask(peer, m.Submit(next(rig.ids), waiting[:BATCH]))
        del waiting[:BATCH]


def hold(rig: Rig, count: int, strategy: str = "OldestFirst") -> list[m.HeldChunks]:
    """Have somebody reserve, and keep for ever."""
    peer = rig.connect("holder")
    held = []
    while count:
        tickets = rig.reserve(peer, min(count, 1000), strategy)
        found = [ticket.held([index]) for ticket in tickets for index in ticket.indexes]
        assert found, "there is not so much to hold"
        held += found
        count -= len(found)
    return held


def one_tenant_owns_nearly_all_and_is_closed(rig: Rig, size: int) -> None:
    submit(rig, [{"tenant": "big"}] * size, 10)
    submit(rig, [{"tenant": f"t{n}"} for n in range(max(2, size // 10))], 100)
    hold(rig, 1)


def closed_tenants_in_front(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n % 10}"} for n in range(size)), 2)
    submit(rig, [{"tenant": "open"}], 100_000)
    hold(rig, 10, "PreferDistinct(tenant, 1, OldestFirst)")


def many_tenants_a_tenth_of_them_closed(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n}"} for n in range(size)), 2)
    hold(rig, size // 10, "PreferDistinct(tenant, 1, OldestFirst)")


def two_nested_gates_close_half_each(rig: Rig, size: int) -> None:
    pairs = [("closed", "open"), ("open", "closed"), ("closed", "closed")]
    submit(rig, ({"tenant": pairs[n % 3][0], "site": pairs[n % 3][1]} for n in range(size)), 2)
    submit(rig, ({"tenant": f"t{n}", "site": f"s{n}"} for n in range(max(2, size // 10))), 100)
    hold(rig, 2)


def closed_lane_under_another_key(rig: Rig, size: int) -> None:
    submit(rig, ({"kind": "x", "tenant": "closed"} for _ in range(size)), 2)
    submit(rig, ({"kind": "x", "tenant": f"t{n}"} for n in range(max(2, size // 10))), 100)
    hold(rig, 1)


def two_wide_lanes_with_a_narrow_intersection(rig: Rig, size: int) -> None:
    submit(rig, ({"a": 1} if n % 2 else {"b": 1} for n in range(size)))
    submit(rig, [{"a": 1, "b": 1}], 100_000)


def rare_behind_many(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n % 100}"} for n in range(size)), priority=9)
    submit(rig, ({"tenant": f"t{n}", "rare": 1} for n in range(10)), 100_000)


def first_arm_always_dry(rig: Rig, size: int) -> None:
    submit(rig, ({"kind": "dry" if n % 2 else "wet"} for n in range(size)))
    submit(rig, [{"kind": "wet"}], 100_000)
    hold(rig, size // 2, "SelectOnly(kind=dry, OldestFirst)")


def key_that_nobody_has(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n % 10}"} for n in range(size)), 100)


def nothing_ready_in_front(rig: Rig, size: int) -> None:
    """Scheduled, expired and cancelled submissions, and chunks in back-off."""
    submit(rig, [{"tenant": "later"}] * (size // 3), delay_s=1e6)
    submit(rig, [{"tenant": "late"}] * (size // 3), expires_s=1.0)
    submit(rig, [{"tenant": "gone"}] * 10)
    submit(rig, [{"tenant": "failed"}], size, max_attempts=5)
    rig.advance(2.0)
    peer = rig.connect()
    for state in rig.only(peer, m.List(next(rig.ids), metadata={"tenant": "gone"}), m.Listed).submissions:
        rig.ask(peer, m.Cancel(next(rig.ids), state.submission_id))
    while tickets := rig.reserve(peer, 1000):
        rig.fail(peer, *(ticket.held() for ticket in tickets), delay_s=1e6)
    submit(rig, [{"tenant": "ready"}], 100_000)


def many_reserved_in_front(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n % 10}"} for n in range(max(1, size // 100))), 100)
    submit(rig, [{"tenant": "open"}], 100_000)
    hold(rig, max(1, size // 100) * 100)


def one_key_with_several_maxima(rig: Rig, size: int) -> None:
    submit(rig, ({"tenant": f"t{n % 100}"} for n in range(size)), 10)
    hold(rig, 100, "MaxSimultaneous(tenant, 1, OldestFirst)")
    hold(rig, 300, "MaxSimultaneous(tenant, 5, OldestFirst)")


CLOSED = "MaxSimultaneous(tenant, 1, {})"
IN_EVERY_ORDER = {closed_tenants_in_front, rare_behind_many, nothing_ready_in_front}
ADVERSARIES = [
    *(
        Adversary(f"{build.__name__}-{order}", strategy.format(order), build)
        for order in ("OldestFirst", "NewestFirst", "CustomPriority", "Random")
        for build, strategy in (
            (one_tenant_owns_nearly_all_and_is_closed, CLOSED),
            (closed_tenants_in_front, CLOSED),
            (many_tenants_a_tenth_of_them_closed, CLOSED),
            (many_tenants_a_tenth_of_them_closed, "PreferDistinct(tenant, 1, {})"),
            (two_nested_gates_close_half_each, "MaxSimultaneous(tenant, 1, MaxSimultaneous(site, 1, {}))"),
            (closed_lane_under_another_key, "SelectOnly(kind=x, MaxSimultaneous(tenant, 1, {}))"),
            (two_wide_lanes_with_a_narrow_intersection, "SelectOnly(a=1, SelectOnly(b=1, {}))"),
            (rare_behind_many, "SelectOnly(rare=1, {})"),
            (first_arm_always_dry, "OrElse(SelectOnly(kind=dry, {0}), {0})"),
            (key_that_nobody_has, "OrElse(SelectOnly(nobody=1, {0}), PreferDistinct(nobody, 1, Fair(nobody, {0})))"),
            (nothing_ready_in_front, "{}"),
            (many_reserved_in_front, "{}"),
            (one_key_with_several_maxima, "MaxSimultaneous(tenant, 5, {})"),
            (one_key_with_several_maxima, "PreferDistinct(tenant, 50%, {})"),
        )
        if order in {"OldestFirst", "Random"} or build in IN_EVERY_ORDER
    ),
    *(
        Adversary(f"{build.__name__}-{strategy}", strategy, build)
        for build, strategy in (
            (one_tenant_owns_nearly_all_and_is_closed, "MaxSimultaneous(tenant, 1, Fair(tenant))"),
            (many_tenants_a_tenth_of_them_closed, "MaxSimultaneous(tenant, 1, Fair(tenant))"),
            (many_tenants_a_tenth_of_them_closed, "Fair(tenant, MaxSimultaneous(tenant, 1, Random))"),
            (many_tenants_a_tenth_of_them_closed, "Fair(submission)"),
            (rare_behind_many, "SelectOnly(rare=1, Fair(tenant))"),
            (nothing_ready_in_front, "Fair(tenant)"),
            (nothing_ready_in_front, "MaxSimultaneous(submission, 1, OldestFirst)"),
            (many_reserved_in_front, "Fair(tenant)"),
            (key_that_nobody_has, "Fair(nobody)"),
        )
    ),
]
