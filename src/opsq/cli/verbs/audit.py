"""The verb audit: what operators did, by the file that the daemon writes."""

from __future__ import annotations

import time

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.options.option import COUNT, option
from opsq.cli.output.daemon_documents import AuditDocument
from opsq.daemon.audit_file import acts
from opsq.errors import InputUnreadable


def audit(caller: Caller, limit: int = option("-n, --limit N", "List at most N acts.", COUNT, 100)) -> None:
    """List administrative acts, newest first: time, who, origin, connection, request, fields.

    Pauses, limits, weights, cancelled and removed submissions, requeued and dropped chunks, stops, backups and the like
    are kept across restarts. Run the verb on the daemon's machine; no daemon needs to be running.
    """
    refuse_address(caller.settings)
    try:
        found = acts(caller.settings.audit_path)[-limit:][::-1]
    except OSError as error:
        raise InputUnreadable(f"Cannot read the audit {caller.settings.audit_path}: {error.strerror}.") from error
    caller.document(AuditDocument(found))
    caller.table(
        ("at", "who", "from", "connection", "act", "what"),
        [
            (
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(a.at // 1000)),
                a.who,
                a.origin,
                a.connection,
                a.act,
                a.what,
            )
            for a in found
        ],
    )
