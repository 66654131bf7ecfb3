"""The verb restart: stops the daemon and starts it again, with the options of its start and those that are given.

It must not know how a daemon is started: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

from typing import Any

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.started_daemon import report_started
from opsq.daemon import lifecycle
from opsq.daemon.start_options import start_in_use
from opsq.errors import Conflict
from opsq.options.setting_options import DRAIN, SETTING_OPTIONS
from opsq.settings import SETTINGS


def restart(caller: Caller, drain_limit_s: float | None = DRAIN, settings: Any = SETTING_OPTIONS) -> None:
    """Stop the daemon, if one runs, and start it again: consumers reconnect and keep what they hold.

    It keeps the options and variables of its start, but for those given now.
    """
    found = caller.settings_with(settings)
    refuse_address(found)
    note = start_in_use(found)
    if note.restart_command:
        raise Conflict("A service manager runs this daemon.", hint=f"Run: {note.restart_command}")
    kept = note.options
    found = caller.settings_with(settings, kept)
    if names := [
        one.flag for one in SETTINGS if one.name in kept and found.source(one.name) not in (one.flag, one.variable)
    ]:
        caller.remark(f"Kept from its last start: {', '.join(names)}.")
    report_started(caller, found, lifecycle.restart(found, drain_limit_s))
