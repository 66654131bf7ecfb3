"""The verb vacuum: returns unused pages of the database to the file system."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import call_alive
from opsq.cli.output.daemon_documents import VacuumDocument
from opsq.wire.messages import Changed, Vacuum


def vacuum(caller: Caller) -> None:
    """Return unused pages of the database to the file system; work continues while it runs."""
    with caller.connect() as daemon:
        size_bytes = call_alive(daemon, Vacuum(daemon.next_id()), Changed).count
    caller.document(VacuumDocument(size_bytes))
    caller.remark(f"{size_bytes} bytes were returned.")
