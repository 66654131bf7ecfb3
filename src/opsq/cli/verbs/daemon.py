"""The verbs that begin and end the daemon: start, stop, restart."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import connect
from opsq.cli.options import values
from opsq.cli.output.daemon_documents import StartDocument, StopDocument
from opsq.cli.output.failure import Exit
from opsq.daemon import lifecycle
from opsq.daemon.lifecycle import StartResult
from opsq.daemon.temporary_daemon import write_marker
from opsq.errors import UsageError
from opsq.settings import SETTINGS, Settings
from opsq.wire.messages import DaemonState, Status

_DRAIN_HELP = "How long to wait for what is reserved; by default the setting drain_s."


def start(
    caller: Caller,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="Be the daemon in this process, for a service manager; log to stderr too."),
    ] = False,
    **settings: object,
) -> None:
    """Start the daemon and return when it is ready; one that runs already is left alone, with exit 0."""
    found = caller.settings_with(settings)
    if found.address and found.source("address") == "--address":
        raise UsageError(
            "opsq start starts a daemon on this machine.", hint="--listen HOST:PORT makes it listen on TCP."
        )
    if foreground:
        sys.stdout.flush()
        from opsq.daemon.daemon_process import run

        status = run(found)
        if status:
            raise Exit(status)
        return
    result = lifecycle.start(found)
    write_marker(found, is_temporary=False)  # one that `opsq run` has started stays from now on
    waiting = _unlike(found, settings) if result.status == "already_running" else []
    _say_started(caller, result)
    if waiting and not caller.is_quiet:
        print(
            f"opsq: The daemon runs already, with another {', '.join(waiting)}; `opsq restart` takes these options.",
            file=sys.stderr,
        )


def stop(
    caller: Caller, drain: Annotated[str | None, typer.Option("--drain", metavar="D", help=_DRAIN_HELP)] = None
) -> None:
    """Stop the daemon: it hands out nothing more, waits for what is reserved, and ends; exit 0 also when none runs."""
    result = lifecycle.stop(caller.settings, values.duration("--drain", drain))
    caller.document(StopDocument(result.status))
    caller.remark("The daemon has stopped." if result.status == "stopped" else "No daemon was running.")


def restart(
    caller: Caller,
    drain: Annotated[str | None, typer.Option("--drain", metavar="D", help=_DRAIN_HELP)] = None,
    **settings: object,
) -> None:
    """Stop the daemon, if one runs, and start it again: consumers reconnect and keep what they hold."""
    _say_started(caller, lifecycle.restart(caller.settings_with(settings), values.duration("--drain", drain)))


def _unlike(found: Settings, options: dict[str, object]) -> list[str]:
    """The options on the command line whose setting is another in the daemon that runs."""
    given = [setting for setting in SETTINGS if setting.name in options and found.source(setting.name) == setting.flag]
    if not given:
        return []
    with connect(replace(found, address="")) as daemon:
        running = daemon.call(Status(daemon.next_id()), DaemonState).settings
    texts = found.texts()
    return [setting.flag for setting in given if running.get(setting.name) != texts[setting.name]]


def _say_started(caller: Caller, result: StartResult) -> None:
    caller.document(StartDocument(result.status, result.pid, result.socket))
    verb = "runs already" if result.status == "already_running" else "is ready"
    caller.remark(f"The daemon {verb}: pid {result.pid}, socket {result.socket}.")
