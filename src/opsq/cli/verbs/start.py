"""The verb start: starts the daemon, or becomes the daemon for a service manager.

It must not know how a daemon is started: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

import sys
from typing import Any

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.error_report import Exit
from opsq.cli.started_daemon import report_started
from opsq.daemon import lifecycle
from opsq.daemon.temporary_daemon import write_marker
from opsq.options.option import option
from opsq.options.setting_options import SETTING_OPTIONS
from opsq.settings import SETTINGS, Settings


def start(
    caller: Caller,
    foreground: bool = option("--foreground", "Run in the foreground, for a service manager; also log to stderr."),
    settings: Any = SETTING_OPTIONS,
) -> None:
    """Start the daemon and return when it is ready; if one is already running, do nothing and exit 0."""
    found = caller.settings_with(settings)
    refuse_address(found)
    if foreground:
        sys.stdout.flush()
        from opsq.daemon.daemon_process import run

        status = run(found)
        if status:
            raise Exit(status)
        return
    result = lifecycle.start(found)
    write_marker(found, is_temporary=False)  # one that `opsq run` has started stays from now on
    state = report_started(caller, found, result)
    differing = _differing(found, settings, state.settings) if result.status == "already_running" else []
    if differing and not caller.is_quiet:
        print(
            f"opsq: The daemon is already running, with a different {', '.join(differing)};"
            " `opsq restart` applies these options.",
            file=sys.stderr,
        )


def _differing(found: Settings, options: dict[str, object], running: dict[str, str]) -> list[str]:
    """The options on the command line whose setting is another in the daemon that runs."""
    given = [setting for setting in SETTINGS if setting.name in options and found.source(setting.name) == setting.flag]
    texts = found.texts()
    return [setting.flag for setting in given if running.get(setting.name) != texts[setting.name]]
