"""The verb limit: how many chunks of a value may be reserved at once, or start per unit of time."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.rule_match import warn
from opsq.cli.shard_options import are_sharded, count_shards, divided, need_shards
from opsq.client.core.administration import caller_name
from opsq.errors import NotFound, UsageError
from opsq.options import values
from opsq.options.option import COUNT, argument, option
from opsq.options.rule_options import key_and_value, rate
from opsq.wire.messages import Changed, Limit, Unlimit


def limit(
    caller: Caller,
    what: str = argument("KEY[=VALUE]", "One value of a key, or each value of it."),
    concurrency: int | None = option("-c, --concurrency N", "Maximum number of concurrent chunks.", COUNT),
    rate: tuple[float, float] | None = option("-r, --rate N/D", "Chunks started per time: 10/s, 100/m, 5/15m.", rate),
    burst: int | None = option(
        "--burst N", "With --rate: chunks that may start at once after idling.", COUNT, shown="one second's worth"
    ),
    split: bool = option("--split", "Over several shards: divide N and the rate among them."),
    lift: bool = option("--lift", "Remove the limit."),
) -> None:
    """Limit concurrent chunks per value, or how many start per unit of time; for every strategy and consumer.

    It replaces the limit for the same KEY or KEY=VALUE. Where several limits apply to a chunk, all of them hold.

    Each of several shards has the whole limit, or its part of it with --split.
    """
    values.exclude(lift=lift, concurrency=concurrency)
    values.exclude(lift=lift, rate=rate)
    values.exclude(lift=lift, burst=burst)
    values.exclude(lift=lift, split=split)
    key, value = key_and_value(what)
    if not lift and concurrency is None and rate is None:
        raise UsageError("opsq limit needs --concurrency, --rate or --lift.", hint="`opsq limit --help` explains it.")
    if burst is not None and rate is None:
        raise UsageError("--burst needs --rate.")
    if split:
        need_shards(caller, "--split")
    rate_per_s, rate_span_s = rate or (None, 1.0)
    shards_count = 1
    with caller.connect() as daemon:
        if lift:
            request: Unlimit | Limit = Unlimit(daemon.next_id(), key, value)
        else:
            request = Limit(daemon.next_id(), key, value, concurrency, rate_per_s, burst, caller_name(), rate_span_s)
            if are_sharded(caller):
                shards_count = count_shards(daemon)
                request = divided(request, shards_count) if split else request
        try:
            changed = daemon.call(request, Changed)
        except NotFound as error:
            error.message = f"There is no limit of {what}."
            raise
    if changed.is_matched is False:
        warn(caller, what)
    caller.changed(changed.count)
    if lift:
        caller.remark(f"The limit of {what} was removed.")
    else:
        place = f" at each of {shards_count} shards" if shards_count > 1 else ""
        caller.remark(f"The limit holds from now on{place}; {what} keeps what it has reserved.")
