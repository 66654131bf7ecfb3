"""A thousand shards on paper: messages a chunk takes, how evenly values fall, full shards, a loss, few free consumers.

The real `Parking`, `Placing` and `rendezvous` work over simulated shards, on a clock that the simulation moves. The
first rows check the simulation against 16 real daemons. Of 100,000 consumers every tenth is simulated; 10⁹ submissions
are weights of the values that they have.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence

from harness import Benchmark, Context, Must, Row, at_most, main, median, paired_row, quantile, ratio_at_most, reported
from opsq.client.shards.parking import PARKED_AT, PROBE_S
from opsq.client.shards.shard_order import rendezvous
from ours.filled_shards import FilledShards
from ours.shards import Parked, counted_messages, running
from ours.simulated_shards import World

_ALIKE = Must("0.9× to 1.1×", "ratio", low=0.9, high=1.1)
_TARGET_S = 0.050
_SUBMISSIONS = 1e9
_PATIENCE_S = 3600.0


def measure(context: Context) -> Iterator[Row]:
    """The check, and then what it is for."""
    gc.disable()
    yield from _checks(context)
    yield from _messages(context)
    yield from _evenness(context)
    yield from _full_shards(context)
    yield from _few_consumers(context)
    yield _loss(context)


# --- messages a chunk takes -----------------------------------------------------------------------------------

SPARSE = "a chunk now and then"
AT_ONCE = "a chunk at each shard at once"
BUSY = "200 chunks at each shard"


def simulated(shards_count: int, consumers_count: int, chunks_count: int) -> dict[str, float]:
    """Messages per chunk in each situation, by simulation."""
    world = World(shards_count, consumers_count)
    world.park()
    found = {}
    found[SPARSE] = _per_chunk(world, [[world.random.randrange(shards_count)] for _ in range(chunks_count)])
    found[AT_ONCE] = _per_chunk(world, [range(shards_count)])
    found[BUSY] = _per_chunk(world, [[shard for shard in range(shards_count) for _ in range(200)]], run_s=60.0)
    return found


def _per_chunk(world: World, turns: Sequence[Sequence[int]], run_s: float = 0.02) -> float:
    world.forget()
    for shards in turns:
        for shard in shards:
            world.submit(shard)
        world.clock.run(run_s)
    world.clock.run(0.02)
    count = sum(map(len, turns))
    if len(world.waits_s) != count:
        raise RuntimeError(f"{len(world.waits_s)} chunks were taken of {count}")
    return world.messages_count / count


def counted(context: Context, shards_count: int, consumers_count: int, chunks_count: int) -> dict[str, float]:
    """Messages per chunk in each situation, with real daemons."""
    with contextlib.ExitStack() as opened:
        shards = opened.enter_context(running(context.folder("shards"), shards_count, heartbeat_s="600"))
        producers = shards.connect_each(opened)
        count = opened.enter_context(counted_messages())
        parked = Parked(producers, [opened.enter_context(shards.connect()) for _ in range(consumers_count)])

        def per_chunk(turns: Sequence[Sequence[int]], size: int = 1) -> float:
            before = count()
            for turn in turns:
                for shard in turn:
                    producers[shard].submit(1, size)
                parked.take(len(turn) * size)
                parked.wait_parked()
            return (count() - before) / sum(len(turn) * size for turn in turns)

        return {
            SPARSE: per_chunk([[random.randrange(shards_count)] for _ in range(chunks_count)]),
            AT_ONCE: per_chunk([range(shards_count)] * 3),
            BUSY: per_chunk([range(shards_count)], 200),
        }


def _checks(context: Context) -> Iterator[Row]:
    context.say("16 daemons, 20 consumers: messages")
    real, model = counted(context, 16, 20, 50), simulated(16, 20, 50)
    for what, measured in real.items():
        yield paired_row(
            f"messages a chunk takes, 16 shards, 20 consumers, {what}: simulated, against daemons",
            "messages",
            [model[what]],
            [measured],
            _ALIKE,
            rival_name="counted",
        )


def _messages(context: Context) -> Iterator[Row]:
    consumers_count = context.size(10_000, 2000)
    context.say(f"1000 shards, {consumers_count} consumers: messages")
    few, many = World(16, 160), World(1000, consumers_count)
    for world in (few, many):
        world.park()
    rates = [
        _per_chunk(world, [[world.random.randrange(len(world.served))] for _ in range(1000)], run_s=0.0001)
        for world in (few, many)
    ]
    note = f"{many.given_back_count} of 1000 chunks were granted twice and given back"
    yield paired_row(
        f"messages a chunk takes, 1000 shards, {consumers_count} consumers, {SPARSE}",
        "messages",
        rates[1:],
        rates[:1],
        ratio_at_most(1.1),
        rival_name="16 shards",
        note=note,
    )


# --- where submissions go -------------------------------------------------------------------------------------


def _evenness(context: Context) -> Iterator[Row]:
    """The fullest shard; a rendezvous hash must be as good as dice."""
    for shards_count, values_count in ((16, 20), (16, context.size(20_000, 5000)), (1000, context.size(4000, 2000))):
        context.say(f"{shards_count} shards, {values_count} values: the fullest")
        hashed = [rendezvous(value, range(shards_count))[0] for value in range(values_count)]
        dice = [random.choices(range(shards_count), k=values_count) for _ in range(25)]
        for what, skew in (("alike", 0.0), ("Zipf", 1.0)):
            weights = [_SUBMISSIONS / rank**skew for rank in range(1, values_count + 1)]
            thrown = [_fullest(shards_count, weights, places) for places in dice]
            ours = _fullest(shards_count, weights, hashed)
            yield Row(
                f"10⁹ submissions, {shards_count} shards, {values_count} values, {what}: the fullest, of the mean",
                "×",
                ours,
                Must("≤ 1.5×", "ratio", high=1.5),
                rival=median(thrown),
                rival_name="dice",
                ratio=ours / median(thrown),
                ratio_reads="ours/rival",
                note=f"the value with most has {weights[0] / sum(weights):.2%} of all submissions; by dice"
                f" {min(thrown):.3g} to {max(thrown):.3g}",
                samples={"ours": [ours], "dice": thrown},
            )


def _fullest(shards_count: int, weights: Sequence[float], places: Sequence[int]) -> float:
    """What the fullest shard has, of the mean of all."""
    loads = [0.0] * shards_count
    for place, weight in zip(places, weights, strict=True):
        loads[place] += weight
    return max(loads) * shards_count / sum(loads)


def _full_shards(context: Context) -> Iterator[Row]:
    """Room for a tenth more than there is, and values that are not alike: what is too much goes to the next."""
    for shards_count, each in ((16, context.size(500, 100)), (100, context.size(50, 20))):
        context.say(f"{shards_count} shards that fill up")
        total = shards_count * each
        values = random.Random(1).choices(range(1000), [1 / rank for rank in range(1, 1001)], k=total)
        free, full = FilledShards(shards_count, total), FilledShards(shards_count, each + each // 10)
        for value in values:
            free.submit(value)
        elsewhere = sum(full.submit(value) for value in values)
        yield paired_row(
            f"messages a submission takes, {shards_count} shards, Zipf, filled to 1/1.1 of their room",
            "messages",
            [full.messages_count / total],
            [free.messages_count / total],
            reported(),
            rival_name="without bound",
            note=f"{elsewhere / total:.0%} went elsewhere; the fullest has {_most(full)} submissions, without bound"
            f" {_most(free)}, and the mean is {each}",
        )


def _most(shards: FilledShards) -> int:
    return max(shard.count for shard in shards)


# --- waits ----------------------------------------------------------------------------------------------------


def _few_consumers(context: Context) -> Iterator[Row]:
    """A chunk now and then at a thousand shards, for ever fewer consumers, which each wait at some of them."""
    shards_count, turns = 1000, context.size(200, 100)
    for consumers_count in (2000, 1000, 300, 100, 30):
        context.say(f"{shards_count} shards, {consumers_count} free consumers: waits")
        world = World(shards_count, consumers_count)
        world.park()
        world.forget()
        for _ in range(turns):
            world.submit(world.random.randrange(shards_count))
            world.clock.run(0.05)
        while len(world.waits_s) < turns and world.clock.now_s < _PATIENCE_S:
            world.clock.run(1.0)
        waits = world.waits_s
        yield Row(
            f"{shards_count} shards, {consumers_count} free consumers at {PARKED_AT} each: longest wait",
            "s",
            max(waits),
            at_most(_TARGET_S, "s") if consumers_count >= shards_count else reported(),
            note=f"{len(waits)} of {turns} chunks were taken; p50 {quantile(waits, 0.5) * 1e3:.1f} ms,"
            f" p99 {quantile(waits, 0.99):.2f} s, in {sum(wait > _TARGET_S for wait in waits)} cases over 50 ms",
        )


def _loss(context: Context) -> Row:
    """Work at 16 shards for 20 s, with a shard that falls silent, and without."""
    context.say("a shard falls silent")
    work_s, run_s = 0.1, 20.0

    def taken(*, is_one_silent: bool) -> float:
        world = World(16, 100, work_s=work_s)
        for shard in range(16):
            world.submit(shard, 2000)
        world.park()
        world[5].is_silent = is_one_silent
        world.forget()
        world.clock.run(run_s)
        return float(len(world.waits_s))

    return paired_row(
        f"chunks taken in {run_s:g} s by 100 consumers, 16 shards, one of them silent and not known to be away",
        "chunks",
        [taken(is_one_silent=True)],
        [taken(is_one_silent=False)],
        Must("≥ 0.9×", "ratio", low=0.9),
        rival_name="none is silent",
        note=f"each consumer waits {PROBE_S:g} s once for the one that is silent",
    )


BENCHMARK = Benchmark("scale_model", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
