"""The verb queue create: what holds for the records of a queue."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.errors import UsageError
from opsq.gateway.records import queue_defaults
from opsq.gateway.records.queue_defaults import QueueDefaults
from opsq.options import values
from opsq.options.option import Whole, argument, option, positive_duration
from opsq.store.state_folder import make_state_dir
from opsq.strategy.text import parse
from opsq.units import format_number
from opsq.wire.messages import RESERVATION_MIN_S, Backoff

_USUAL = QueueDefaults()


def create(
    caller: Caller,
    name: str = argument("NAME", "The queue, as it stands in paths: /queues/NAME/record."),
    strategy: str = option("-s, --strategy STRATEGY", "Which records come first.", default=_USUAL.strategy),
    lease_s: float = option(
        "--lease D",
        "How long a consumer may take before its record is offered again.",
        positive_duration,
        _USUAL.lease_s,
    ),
    max_attempts: int | None = option(
        "--max-attempts N",
        "Attempts until a record is dead.",
        Whole(1, 1 << 31),
        shown="the setting max_attempts",
    ),
    backoff: Backoff | None = option(
        "--backoff BASE,FACTOR,MAX",
        "Delays between attempts, such as 1s,2,5m.",
        values.backoff,
        shown="the settings backoff_…",
    ),
    expires_s: float | None = option(
        "--expires D", "Give a record up that is unfinished this long after it came.", positive_duration
    ),
    limit: int | None = option("--limit N", "Refuse records while N are unfinished.", Whole(1, 1 << 53)),
) -> None:
    """Create a queue of records, or replace what holds for one; running gateways notice.

    Every name is a queue without this, too; it has the defaults.
    """
    refuse_address(caller.settings)
    queue_defaults.checked_name(name)
    if lease_s < RESERVATION_MIN_S:
        raise UsageError(f"--lease {format_number(lease_s)}: the shortest lease is {RESERVATION_MIN_S:g} seconds.")
    parse(strategy)
    make_state_dir(caller.settings.state_dir, is_shared=caller.settings.is_shared)
    with queue_defaults.changing(queue_defaults.path_in(caller.settings.state_dir)) as found:
        found[name] = QueueDefaults(
            strategy=strategy,
            lease_s=lease_s,
            max_attempts=max_attempts,
            backoff=backoff,
            expires_s=expires_s,
            limit=limit,
        )
    caller.changed(1)
