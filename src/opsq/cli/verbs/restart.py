"""The verb restart: stops the daemon and starts it again, with the options that are given.

It must not know how a daemon is started: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

from typing import Any

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.started_daemon import report_started
from opsq.daemon import lifecycle
from opsq.options.setting_options import DRAIN, SETTING_OPTIONS


def restart(caller: Caller, drain_limit_s: float | None = DRAIN, settings: Any = SETTING_OPTIONS) -> None:
    """Stop the daemon, if one runs, and start it again: consumers reconnect and keep what they hold."""
    found = caller.settings_with(settings)
    refuse_address(found)
    report_started(caller, found, lifecycle.restart(found, drain_limit_s))
