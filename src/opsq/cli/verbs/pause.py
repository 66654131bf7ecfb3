"""The verb pause: hands out nothing more of some submissions.

It must not stop what is already reserved.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.rule_match import warn_of_unmatched
from opsq.client.core.administration import caller_name
from opsq.documents.submission_text import pairs_text
from opsq.options.rule_options import ALL, OPERATOR, PAIRS, rule_metadata
from opsq.wire.messages import Changed, Pause


def pause(caller: Caller, pairs: list[str] = PAIRS, every: bool = ALL, operator: bool = OPERATOR) -> None:
    """Stop handing out some submissions until they are resumed; reserved chunks continue.

    A pause applies to every strategy and consumer, also after a restart, and also to later submissions.
    """
    metadata = rule_metadata("pause", pairs, every=every)
    with caller.connect() as daemon:
        count = daemon.call(Pause(daemon.next_id(), metadata, operator, caller_name()), Changed).count
        if metadata:
            warn_of_unmatched(caller, daemon, metadata)
    caller.changed(count)
    on = pairs_text(metadata) or "everything"
    caller.remark(f"Paused: {on}." if count else f"It was already paused: {on}.")
