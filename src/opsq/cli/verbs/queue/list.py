"""The verb queue list: the queues of records that were created."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.queue_text import document, fields
from opsq.documents.queues import QueuesDocument
from opsq.gateway.records import queue_defaults


def list_(caller: Caller) -> None:
    """List the queues that were created, and what holds for each; `opsq status --by queue` counts their records."""
    refuse_address(caller.settings)
    found = queue_defaults.read(queue_defaults.path_in(caller.settings.state_dir))
    shapes = [document(name, defaults) for name, defaults in sorted(found.items())]
    caller.document(QueuesDocument(shapes))
    if not shapes:
        caller.remark("No queue was created. Every name is one, with the defaults.")
        return
    names = [name for name, _ in fields(shapes[0])]
    caller.table(names, [[text for _, text in fields(shape)] for shape in shapes])
