"""The verb weight: how often a value of a key is served in Fair."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.rule_match import warn_of_unmatched
from opsq.errors import UsageError
from opsq.options.option import argument
from opsq.options.rule_options import key_and_value, weight_of
from opsq.units import format_number
from opsq.wire.messages import Changed, Weight


def weight(
    caller: Caller,
    pair: str = argument("KEY=VALUE", "The value."),
    number: float = argument("N", "0.001 to 1000; the default is 1.", weight_of),
) -> None:
    """Set the weight in Fair of a value of a key: 3 is served three times as often as 1, from its next turn on."""
    key, value = key_and_value(pair)
    if value is None:
        raise UsageError(f"{pair}: write KEY=VALUE.")
    with caller.connect() as daemon:
        count = daemon.call(Weight(daemon.next_id(), key, value, number), Changed).count
        warn_of_unmatched(caller, daemon, {key: value})
    caller.changed(count)
    caller.remark(f"{pair} has the weight {format_number(number)} in Fair({key}) from its next turn on.")
