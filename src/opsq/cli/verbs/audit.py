"""The verb audit: what operators did, by the file that the daemon writes."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.installation_documents import AuditDocument
from opsq.cli.output.long_list import DEFAULT_TEXT, Listing, print_list
from opsq.daemon.audit_file import Act, acts
from opsq.errors import InputUnreadable
from opsq.options.option import COUNT, option


def audit(
    caller: Caller, limit: int | None = option("-n, --limit N", f"List at most N acts; {DEFAULT_TEXT}.", COUNT)
) -> None:
    """List administrative acts, newest first: time, who, origin, connection, request, fields.

    Pauses, limits, weights, cancelled and removed submissions, requeued and dropped chunks, stops, backups and the like
    are kept across restarts. Run the verb on the daemon's machine; no daemon needs to be running.
    """
    refuse_address(caller.settings)
    try:
        found = acts(caller.settings.audit_path)[::-1]
    except OSError as error:
        raise InputUnreadable(f"Cannot read the audit {caller.settings.audit_path}: {error.strerror}.") from error
    print_list(caller, [found], _LISTING, limit)


def _row(caller: Caller, act: Act) -> list[object]:
    return [caller.instant(act.at), act.who, act.origin, act.connection, act.act, act.what]


_LISTING = Listing(
    document=AuditDocument,
    columns=("at", "who", "from", "connection", "act", "what"),
    right=frozenset(),
    shape=lambda act: act,
    row=_row,
    instant="at",
)
