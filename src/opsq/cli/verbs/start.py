"""The verb start: starts the daemon, or becomes the daemon for a service manager.

It must not know how a daemon is started: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

import sys
from typing import Any

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import connect, refuse_address
from opsq.cli.options.option import option
from opsq.cli.options.setting_options import SETTING_OPTIONS
from opsq.cli.output.daemon_documents import StartDocument
from opsq.cli.output.error_report import Exit
from opsq.daemon import lifecycle
from opsq.daemon.temporary_daemon import write_marker
from opsq.settings import SETTINGS, Settings
from opsq.wire.messages import DaemonState, Status


def start(
    caller: Caller,
    foreground: bool = option(
        "--foreground", "Be the daemon in this process, for a service manager; log to stderr too."
    ),
    settings: Any = SETTING_OPTIONS,
) -> None:
    """Start the daemon and return when it is ready; does nothing, with exit 0, if one is already running."""
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
    is_old = result.status == "already_running"
    differing = _differing(found, settings) if is_old else []
    caller.document(StartDocument(result.status, result.pid, result.socket))
    verb = "is already running" if is_old else "is ready"
    caller.remark(f"The daemon {verb}: pid {result.pid}, socket {result.socket}.")
    if differing and not caller.is_quiet:
        print(
            f"opsq: The daemon is already running, with a different {', '.join(differing)};"
            " `opsq restart` applies these options.",
            file=sys.stderr,
        )


def _differing(found: Settings, options: dict[str, object]) -> list[str]:
    """The options on the command line whose setting is another in the daemon that runs."""
    given = [setting for setting in SETTINGS if setting.name in options and found.source(setting.name) == setting.flag]
    if not given:
        return []
    with connect(replace(found, address="")) as daemon:
        running = daemon.call(Status(daemon.next_id()), DaemonState).settings
    texts = found.texts()
    return [setting.flag for setting in given if running.get(setting.name) != texts[setting.name]]
