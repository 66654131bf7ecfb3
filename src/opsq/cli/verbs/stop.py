"""The verb stop: stops the daemon.

It must not know how a daemon is stopped: `opsq.daemon.lifecycle` does.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.output.installation_documents import StopDocument
from opsq.daemon import lifecycle
from opsq.options.setting_options import DRAIN


def stop(caller: Caller, drain_s: float | None = DRAIN) -> None:
    """Stop the daemon: hand out nothing more, wait for reserved chunks, and end it; exits 0 even if none runs."""
    result = lifecycle.stop(caller.settings, drain_s)
    caller.document(StopDocument(result.status))
    caller.remark("The daemon has stopped." if result.status == "stopped" else "No daemon was running.")
