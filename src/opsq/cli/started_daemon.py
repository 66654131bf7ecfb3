"""What `start` and `restart` say of the daemon that runs now, and that it has no room if that is so.

It must not start or stop anything: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

import sys

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.output.error_report import error_text
from opsq.cli.output.folding import folded
from opsq.cli.output.installation_documents import StartDocument
from opsq.daemon.control_connection import fetch_state, full_disk
from opsq.daemon.lifecycle import ANSWER_S, StartResult
from opsq.settings import Settings
from opsq.wire.messages import DaemonState


def report_started(caller: Caller, settings: Settings, result: StartResult) -> DaemonState:
    """Print what `lifecycle.start` found or did; returns the state of the daemon."""
    state = fetch_state(replace(settings, address=""), ANSWER_S)
    caller.document(StartDocument(result.status, result.pid, result.socket, state.state))
    verb = "is already running" if result.status == "already_running" else "is ready"
    caller.remark(f"The daemon {verb}: pid {result.pid}, socket {result.socket}.")
    if state.state == "full" and not caller.is_quiet:
        print(folded(error_text(full_disk(state)), sys.stderr), file=sys.stderr)
    return state
