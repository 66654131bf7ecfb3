"""The verb queue rm: queues have the defaults again."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.errors import NotFound
from opsq.gateway.records import queue_defaults
from opsq.options.option import argument


def rm(caller: Caller, names: list[str] = argument("NAME...", "As `opsq queue list` lists them.")) -> None:
    """Remove queues from the list; records that they have stay, and the defaults hold for new ones."""
    refuse_address(caller.settings)
    path = queue_defaults.path_in(caller.settings.state_dir)
    existing = queue_defaults.read(path)
    if missing := next((name for name in names if name not in existing), None):
        raise NotFound(f"There is no queue {missing}.", hint="`opsq queue list` shows the existing ones.")
    with queue_defaults.changing(path) as found:
        count = sum(found.pop(name, None) is not None for name in names)
    caller.changed(count)
