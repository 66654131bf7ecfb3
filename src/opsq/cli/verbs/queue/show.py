"""The verb queue show: what holds for the records of a queue."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.queue_text import document, fields
from opsq.gateway.records import queue_defaults
from opsq.gateway.records.queue_defaults import QueueDefaults
from opsq.options.option import argument


def show(caller: Caller, name: str = argument("NAME", "The queue.")) -> None:
    """Show what holds for a queue, whether it was created or not."""
    refuse_address(caller.settings)
    found = queue_defaults.read(queue_defaults.path_in(caller.settings.state_dir))
    shape = document(queue_defaults.checked_name(name), found.get(name, QueueDefaults()))
    caller.document(shape)
    caller.table(("", ""), fields(shape))
