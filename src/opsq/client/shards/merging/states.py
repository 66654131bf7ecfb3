"""The state of all shards as that of one daemon, and their rules as those of one.

It must not word what holds work back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from opsq.client.shards.merging.gathering import Gathering
from opsq.wire import messages as m

T = TypeVar("T", int, float)

_STATES = ("running", "draining", "full")
"""Of daemons, the worst last."""
_ADDED = ("submissions",)
"""What a finding counts at each shard; of its other numbers the least is told: what comes next."""


class State(Gathering[m.Status, m.DaemonState]):
    """What all shards are doing."""

    def answer(self, answers: dict[int, m.DaemonState]) -> m.DaemonState:
        """Sums, and of ages the highest; `shards` has each alone, also those that did not answer."""
        states = list(answers.values())
        total = _counts(None, [state.total for state in states])
        shards = [self._shard(shard, answers.get(shard)) for shard in sorted({*self.members.addresses, *answers})]
        shards += [m.ShardState(None, address, m.UNREACHABLE) for address in self.members.unreached]
        return m.DaemonState(
            self.request.id,
            server=states[0].server,
            pid=states[0].pid if len(shards) == 1 else 0,
            state=max((state.state for state in states), key=_badness),
            uptime_s=min(state.uptime_s for state in states),
            total=total,
            by=_by_value([counts for state in states for counts in state.by], total),
            states=_sums(state.states for state in states),
            consumers=_consumers([consumer for state in states for consumer in state.consumers]),
            parked_count=sum(state.parked_count for state in states),
            connections_count=sum(state.connections_count for state in states),
            oldest_reservation_s=max(state.oldest_reservation_s for state in states),
            unfolded_count=sum(state.unfolded_count for state in states),
            file_bytes=sum(state.file_bytes for state in states),
            free_bytes=sum(state.free_bytes for state in states),
            wal_bytes=sum(state.wal_bytes for state in states),
            settings=states[0].settings,
            unmatched_count=_known_sum([state.unmatched_count for state in states]),
            backlog_limit=_known_sum([state.backlog_limit for state in states]),
            room_waiting_count=sum(state.room_waiting_count for state in states),
            disk_free_bytes=min((n for state in states if (n := state.disk_free_bytes) is not None), default=None),
            wal_kept_s=max(state.wal_kept_s for state in states),
            removable=next((state.removable for state in states if state.removable), {}),
            held_back=_findings([finding for state in states for finding in state.held_back]),
            measures=_measures([state.measures for state in states if state.measures is not None]),
            shards=shards,
            takes_new=any(state.takes_new for state in states),
            departed_count=sum(state.departed_count for state in states),
            arriving_count=sum(state.arriving_count for state in states),
            arriving_from=[each for state in states for each in state.arriving_from],
            replica=max(
                (state.replica for state in states if state.replica is not None), key=_backwardness, default=None
            ),
        )

    def _shard(self, shard: int, state: m.DaemonState | None) -> m.ShardState:
        address = self.members.addresses.get(shard, "")
        if state is None:
            return m.ShardState(shard, address, m.UNREACHABLE)
        return m.ShardState(shard, address, state.state, state.server, state.total, state.uptime_s, state.takes_new)


class Rules(Gathering[m.ShowRules, m.RulesState]):
    """The rules of all shards, which should be the same."""

    def answer(self, answers: dict[int, m.RulesState]) -> m.RulesState:
        """Those of the newest revision; how much is reserved under a limit is told of the busiest shard."""
        newest = max(answers.values(), key=lambda rules: rules.revision)
        busiest: dict[tuple[str, type, object], m.LimitState] = {}
        for rules in answers.values():
            for limit in rules.limits:
                known = busiest.setdefault(_subject(limit), limit)
                if (limit.reserved_count or 0) > (known.reserved_count or 0):
                    busiest[_subject(limit)] = limit
        limits = [
            replace(limit, reserved_count=most.reserved_count, busiest=most.busiest)
            for limit in newest.limits
            for most in (busiest[_subject(limit)],)
        ]
        return replace(newest, id=self.request.id, limits=limits)


def _subject(limit: m.LimitState) -> tuple[str, type, object]:
    return limit.key, type(limit.value), limit.value


def _badness(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _backwardness(replica: m.ReplicaState) -> tuple[bool, bool, float]:
    """The higher, the worse."""
    return not replica.is_owner, bool(replica.error), replica.lag_s


def _known_sum(numbers: Sequence[int | None]) -> int | None:
    """None if one of them is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def _added(rows: Iterable[Sequence[T]]) -> list[T]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _counts(value: int | str | None, parts: Sequence[m.Counts]) -> m.Counts:
    return m.Counts(value, *_added(_numbers(part) for part in parts))


def _numbers(counts: m.Counts) -> tuple[int, ...]:
    return tuple(getattr(counts, name) for name in m.Counts.__struct_fields__[1:])


def _by_value(parts: Sequence[m.Counts], total: m.Counts) -> list[m.Counts]:
    """Of each value, numbers first; last, with None for a value, of what has none, also where no value is known."""
    by_value: dict[tuple[bool, int | str], list[m.Counts]] = {}
    for part in parts:
        if part.value is not None:
            by_value.setdefault((isinstance(part.value, str), part.value), []).append(part)
    found = [_counts(by_value[key][0].value, by_value[key]) for key in sorted(by_value)]
    rest = [all_count - sum(known) for all_count, *known in zip(_numbers(total), *map(_numbers, found), strict=True)]
    return [*found, m.Counts(None, *rest)] if found and rest[0] else found


def _consumers(parts: Sequence[m.ConsumerState]) -> list[m.ConsumerState]:
    """By name: one that several shards know has a connection to each, or a lease."""
    by_name: dict[str, list[m.ConsumerState]] = {}
    for part in parts:
        by_name.setdefault(part.consumer, []).append(part)
    return [_consumer(name, by_name[name]) for name in sorted(by_name)]


def _consumer(name: str, parts: Sequence[m.ConsumerState]) -> m.ConsumerState:
    reserved_count = sum(part.reserved_count for part in parts)
    return m.ConsumerState(
        name,
        any(part.is_connected for part in parts),
        reserved_count,
        max(part.oldest_reservation_s for part in parts),
        next((part.waiting_strategy for part in parts if part.waiting_strategy is not None), None),
        any(part.is_unmatched for part in parts) and not reserved_count,
    )


def _findings(parts: Sequence[m.Finding]) -> list[m.Finding]:
    """Each once: those that differ in numbers alone are one."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], m.Finding] = {}
    for part in parts:
        texts = tuple(sorted((name, value) for name, value in part.details.items() if isinstance(value, str)))
        known = found.get((part.code, texts))
        found[part.code, texts] = part if known is None else m.Finding(part.code, _details(known, part))
    return list(found.values())


def _details(known: m.Finding, other: m.Finding) -> dict[str, m.Detail]:
    details = {**known.details}
    for name, value in other.details.items():
        before = details.setdefault(name, value)
        if isinstance(before, str) or isinstance(value, str):
            continue
        details[name] = before + value if name in _ADDED else min(before, value)
    return details


def _measures(parts: Sequence[m.Measures]) -> m.Measures | None:
    """Each consumer counts once: it has a connection to each shard."""
    if not parts:
        return None
    return m.Measures(
        max(part.oldest_waiting_s for part in parts),
        max(part.consumers_count for part in parts),
        _sums(part.events for part in parts),
        _all_durations([part.waits for part in parts]) or parts[0].waits,
        _all_durations([part.runs for part in parts]) or parts[0].runs,
        _all_durations([part.commits for part in parts]),
        sum(part.overlooked_count for part in parts),
        _all_durations([part.reserves for part in parts]),
    )


def _all_durations(parts: Sequence[m.Durations | None]) -> m.Durations | None:
    """Those with the bounds of the first."""
    known = [part for part in parts if part is not None]
    alike = [part for part in known if part.bounds_s == known[0].bounds_s]
    if not alike:
        return None
    return m.Durations(alike[0].bounds_s, _added(part.counts for part in alike), sum(part.sum_s for part in alike))
