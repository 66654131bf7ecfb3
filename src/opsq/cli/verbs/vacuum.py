"""The verb vacuum: returns unused pages of the database to the file system."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.installation_documents import VacuumDocument
from opsq.units import counted
from opsq.wire.messages import Changed, Vacuum


def vacuum(caller: Caller) -> None:
    """Return unused pages of the database to the file system; work continues while it runs."""
    with LastingConnection(caller) as daemon:
        size_bytes = daemon.call(Vacuum(daemon.next_id()), Changed).count
    caller.document(VacuumDocument(size_bytes))
    caller.remark(f"Returned {counted(size_bytes, 'byte')}.")
