"""Worst-case backlogs, for which a strategy would scan, sort or retry most: each fills an engine and closes its gates.

It measures nothing. Whatever is closed is held by a consumer that never ends, or paused, for as long as the engine
lives.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from opsq.wire.messages import Cancel, Fail, Failure, HeldChunks, Limit, Pause, Release, Reserve, Reserved
from ours import loads
from ours.engine import EngineAlone
from ours.mill import Metadata, hold

CAP = 100
"""More than two mills ever hold, so that only what is closed on purpose is closed."""
READY_CHUNKS = 100_000
_FAR_S = 1e8

Before = Callable[[], None] | None


class Adversary(NamedTuple):
    """What stands in the way, and the strategies (used in turn) that must not mind.

    `fill` is given the engine and the count of submissions in front; what it returns is called before each reserve.
    `is_plain` says that
    the rival, OldestFirst, is measured on a queue with nothing in the way: here it would be measured against itself.
    """

    name: str
    strategies: tuple[str, ...]
    fill: Callable[[EngineAlone, int], Before]
    is_plain: bool = False


def fill_plain(engine: EngineAlone) -> None:
    """Nothing that lasts blocks the work."""
    _submit(engine, 1, READY_CHUNKS, lambda _: {"tenant": "open", "kind": "a"})


def _submit(
    engine: EngineAlone, count: int, chunks_count: int, metadata_of: Callable[[int], Metadata], priority: int = 0
) -> list[int]:
    return list(engine.submit(count, chunks_count, [metadata_of(number) for number in range(count)], priority=priority))


def _owner(engine: EngineAlone, count: int) -> None:
    """One tenant owns 99.99 % of the chunks: all but ten submissions of 1000."""
    _submit(engine, count, 1000, lambda _: {"tenant": "big"})
    _submit(engine, 10, 1000, lambda number: {"tenant": f"small{number}"})
    hold(engine, "SelectOnly(tenant=big, OldestFirst)", CAP)


def _closed_tenants(engine: EngineAlone, count: int) -> None:
    tenants = 100
    _submit(engine, count, 10, lambda number: {"tenant": f"closed{number % tenants}"})
    for number in range(tenants):
        hold(engine, f"SelectOnly(tenant=closed{number}, OldestFirst)", CAP)
    fill_plain(engine)


def _lone_tenants(engine: EngineAlone, count: int) -> None:
    """As many tenants as submissions; the first tenth are closed."""
    _submit(engine, count, 10, lambda number: {"tenant": number})
    peer = engine.connect("holder")
    for number in range(count // 10):
        engine.ask(Reserve(number, 1, "MaxSimultaneous(tenant, 1, OldestFirst)"), peer)


def _two_gates(engine: EngineAlone, count: int) -> None:
    """Two keys with two values each, one of each closed: one submission in four may be served.

    They are small, so that the walk goes on.
    """
    _submit(engine, count, 4, lambda number: {"tenant": number % 2, "region": number // 2 % 2})
    hold(engine, "SelectOnly(tenant=0, SelectOnly(region=0, OldestFirst))", CAP)


def _closed_lane(engine: EngineAlone, count: int) -> None:
    """Half belongs to the lane that is asked for, all of a closed tenant; the other half is nobody's business."""
    _submit(engine, count, 10, lambda number: {"kind": "ab"[number % 2], "tenant": "closed"})
    hold(engine, "SelectOnly(tenant=closed, OldestFirst)", CAP)
    fill_plain(engine)


def _intersection(engine: EngineAlone, count: int) -> None:
    _submit(engine, count // 2, 10, lambda _: {"left": 1})
    _submit(engine, count // 2, 10, lambda _: {"right": 1})
    _submit(engine, 1, READY_CHUNKS, lambda _: {"left": 1, "right": 1})


def _rare(engine: EngineAlone, count: int) -> None:
    """Ten rare submissions of different tenants behind others of higher priority."""
    _submit(engine, count, 10, lambda number: {"tenant": number % 1000}, priority=9)
    _submit(engine, 10, READY_CHUNKS // 10, lambda number: {"tenant": number, "rare": 1})


def _dry_arm(engine: EngineAlone, count: int) -> None:
    """All that the first arm asks for is reserved."""
    _submit(engine, count, 1, lambda _: {"kind": "dry"})
    hold(engine, "SelectOnly(kind=dry, OldestFirst)", count)
    fill_plain(engine)


def _no_such_key(engine: EngineAlone, count: int) -> None:
    _submit(engine, count, 1, lambda number: {"tenant": number % 1000})


def _not_yet(engine: EngineAlone, count: int) -> None:
    """Half scheduled, a quarter expired, a quarter cancelled, and ten times as many chunks in back-off."""
    engine.submit(count // 2, 10, delay_s=_FAR_S)
    engine.submit(count // 4, 10, expires_s=5.0)
    for submission_id in engine.submit(count // 4, 10):
        engine.ask(Cancel(1, submission_id))
    engine.pass_time(10.0)
    engine.submit(count // 100, 1000)
    peer = engine.connect("failing")
    for _ in range(count // 100):
        (reserved,) = engine.ask(Reserve(1, 1000, "OldestFirst"), peer)
        if not isinstance(reserved, Reserved) or loads.chunks_of(reserved) != 1000:
            raise RuntimeError(f"1000 chunks were to fail; the engine gave {reserved}")
        engine.ask(
            Fail(1, [Failure(loads.held(reserved.reservation_id, grant), delay_s=_FAR_S) for grant in reserved.grants]),
            peer,
        )
    fill_plain(engine)


def _one_by_one(engine: EngineAlone, count: int) -> Before:
    """Ten times as many chunks reserved at the front; one of them is given back before each reserve."""
    _submit(engine, count // 100, 1000, lambda _: {"tenant": "open", "kind": "a"})
    held = hold(engine, "OldestFirst", count * 10)
    fill_plain(engine)
    singles = [
        (number, bit)
        for number, (_, grant) in enumerate(held)
        for bit in range(grant.mask.bit_length())
        if grant.mask >> bit & 1
    ]
    random.Random(1).shuffle(singles)

    def give_back() -> None:
        number, bit = singles.pop()
        reservation_id, grant = held[number]
        engine.ask(Release(1, [msgspec.structs.replace(loads.held(reservation_id, grant), mask=1 << bit)]))

    return give_back


def _reopened(engine: EngineAlone, count: int) -> Before:
    """Before each reserve the limit on all that is behind opens and closes; now and then something better comes in."""
    engine.ask(Limit(1, "tenant", "limited", 1))
    _submit(engine, count, 2, lambda _: {"tenant": "limited"})
    fill_plain(engine)
    peer = engine.connect("holder")
    held: list[HeldChunks] = []
    turns = itertools.count()

    def reopen() -> None:
        if held:
            engine.ask(Release(1, [held.pop()]), peer)
        if next(turns) % 4 == 0:
            _submit(engine, 1, 2, lambda _: {"tenant": "limited"})
        (reserved,) = engine.ask(Reserve(1, 1, "SelectOnly(tenant=limited, NewestFirst)"), peer)
        if not isinstance(reserved, Reserved) or loads.chunks_of(reserved) != 1:
            raise RuntimeError(f"the limit was to close again; the engine gave {reserved}")
        held.append(loads.held(reserved.reservation_id, reserved.grants[0]))

    return reopen


def _three_caps(engine: EngineAlone, count: int) -> None:
    """A hundred consumers are there; one tenant has half of all submissions, in front."""
    _submit(engine, count // 2, 10, lambda _: {"tenant": "big"})
    _submit(engine, count // 2, 10, lambda number: {"tenant": number % 1000})
    for number in range(100):
        engine.ask(Reserve(number, 1, "NewestFirst"), engine.connect(f"consumer{number}"))
    engine.pass_time(2.0)


def _paused(engine: EngineAlone, count: int) -> None:
    _submit(engine, count, 10, lambda _: {"tenant": "paused"})
    engine.ask(Pause(1, {"tenant": "paused"}))
    fill_plain(engine)


ADVERSARIES: Sequence[Adversary] = (
    Adversary(
        "one tenant owns 99.99 % of the chunks and is closed", (f"MaxSimultaneous(tenant, {CAP}, OldestFirst)",), _owner
    ),
    Adversary(
        "one tenant owns 99.99 % and is closed, in the shuffled deck",
        (f"MaxSimultaneous(tenant, {CAP}, Random)",),
        _owner,
    ),
    Adversary(
        "all submissions in front are of closed tenants",
        (f"MaxSimultaneous(tenant, {CAP}, OldestFirst)",),
        _closed_tenants,
    ),
    Adversary(
        "all submissions in front are of closed tenants, preferred only",
        (f"PreferDistinct(tenant, {CAP}, OldestFirst)",),
        _closed_tenants,
    ),
    Adversary(
        "a tenant for each submission, a tenth of them closed",
        ("MaxSimultaneous(tenant, 1, OldestFirst)",),
        _lone_tenants,
    ),
    Adversary(
        "two nested gates, each closing half",
        (f"MaxSimultaneous(tenant, {CAP}, MaxSimultaneous(region, {CAP}, OldestFirst))",),
        _two_gates,
    ),
    Adversary(
        "a closed lane under SelectOnly on another key",
        (f"SelectOnly(kind=a, MaxSimultaneous(tenant, {CAP}, OldestFirst))",),
        _closed_lane,
    ),
    Adversary(
        "two lanes of half the submissions whose intersection is one",
        ("SelectOnly(left=1, SelectOnly(right=1, OldestFirst))",),
        _intersection,
    ),
    Adversary("SelectOnly(rare=1, CustomPriority) behind all others", ("SelectOnly(rare=1, CustomPriority)",), _rare),
    Adversary("SelectOnly(rare=1, Fair(tenant)) behind all others", ("SelectOnly(rare=1, Fair(tenant))",), _rare),
    Adversary(
        "an OrElse whose first arm is always dry", ("OrElse(SelectOnly(kind=dry, OldestFirst), OldestFirst)",), _dry_arm
    ),
    Adversary("a key that no submission has, selected", ("OrElse(SelectOnly(nobody=1), OldestFirst)",), _no_such_key),
    Adversary("a key that no submission has, as a gate", ("MaxSimultaneous(nobody, 1, OldestFirst)",), _no_such_key),
    Adversary("a key that no submission has, shared fairly", ("Fair(nobody)",), _no_such_key),
    Adversary("scheduled, expired, cancelled and back-off in front", ("OldestFirst",), _not_yet, is_plain=True),
    Adversary("scheduled, expired, cancelled and back-off around", ("Random",), _not_yet),
    Adversary("scheduled, expired, cancelled and back-off, shared fairly", ("Fair(tenant)",), _not_yet),
    Adversary("reserved chunks in front, given back one by one", ("OldestFirst",), _one_by_one, is_plain=True),
    Adversary(
        "a limit that opens and closes while better ones are set aside", ("NewestFirst",), _reopened, is_plain=True
    ),
    Adversary(
        "one key with max 1, 5 and 50 % at once",
        tuple(f"MaxSimultaneous(tenant, {most}, OldestFirst)" for most in ("1", "5", "50%")),
        _three_caps,
    ),
    Adversary("all submissions in front are paused", ("OldestFirst",), _paused, is_plain=True),
)
