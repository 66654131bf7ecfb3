"""The verb reserve: leases chunks to a shell loop.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import call_alive, with_restart
from opsq.cli.options.option import COUNT, duration, option, positive_duration
from opsq.errors import InvalidStrategy, NothingFree
from opsq.ids import Handle, SubmissionId, Token, mask_indexes
from opsq.wire.messages import Reserve, Reserved


def reserve(
    caller: Caller,
    count: int = option("-n, --count N", "Reserve at most N chunks.", COUNT, 1),
    strategy: str = option("-s, --strategy STRATEGY", "Which chunks come first; see `opsq explain`.", default="Random"),
    lease_s: float | None = option(
        "--lease D",
        "Length of the lease, for example 90, 10m, 2h; by default that of the submission.",
        positive_duration,
    ),
    wait_s: float = option("-w, --wait D", "Wait up to this long for the first chunk.", duration, 0.0),
) -> None:
    """Reserve chunks as leases; prints one handle per line, exits 3 when nothing is free."""
    with caller.connect() as daemon:
        request = Reserve(daemon.next_id(), count, strategy, wait_s=wait_s, lease_s=lease_s or 0.0)
        try:
            reply = call_alive(daemon, request, Reserved)
        except InvalidStrategy as error:
            raise with_restart(error, caller.settings, strategy) from None
    if not reply.grants:
        raise NothingFree(f"No chunk that {strategy} may serve is free.")
    handles = [
        (grant, Handle(SubmissionId(grant.submission_id), index, token))
        for grant in reply.grants
        for token in (Token(reply.reservation_id, grant.attempt, grant.mask, grant.mac),)
        for index in mask_indexes(grant.block, grant.mask)
    ]
    if caller.is_json:
        from opsq.cli.output.submission_documents import ReservedChunk, ReserveDocument

        chunks = [ReservedChunk(str(h), str(h.submission_id), h.index, grant.attempt) for grant, h in handles]
        caller.document(ReserveDocument(chunks, reply.deadline_s))
    caller.lines([str(handle) for _, handle in handles])
