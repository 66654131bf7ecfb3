"""The verb resume: ends a pause."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.documents.submission_text import pairs_text
from opsq.errors import NotFound
from opsq.options.rule_options import ALL, OPERATOR, PAIRS, rule_metadata
from opsq.wire.messages import Changed, Resume


def resume(caller: Caller, pairs: list[str] = PAIRS, every: bool = ALL, operator: bool = OPERATOR) -> None:
    """End a pause, named by the same pairs; exits 3 if there is none, 7 when an operator set it and --operator is
    missing.
    """
    metadata = rule_metadata("resume", pairs, every=every)
    on = pairs_text(metadata) or "everything"
    with caller.connect() as daemon:
        count = daemon.call(Resume(daemon.next_id(), metadata, operator), Changed).count
    if not count:
        raise NotFound(f"There is no pause of exactly this: {on}.", hint="`opsq limits` lists pauses.")
    caller.changed(count)
    caller.remark(f"Resumed: {on}.")
