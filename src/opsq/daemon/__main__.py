"""`python -m opsq.daemon STATE_DIR [temporary]`: the background daemon, as `opsq start` runs it.

It must not be run by hand: it reads its settings from stdin, detaches from its parent, reports on stdout that it is
ready or why it cannot start, and then keeps none of its caller's descriptors open.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from opsq.quick_imports import load_msgspec

if TYPE_CHECKING:
    from opsq.daemon.lifecycle import Ready


def main() -> None:
    """Run the daemon until it is stopped."""
    gc.disable()  # nothing worth collecting is made while modules load; the daemon enables it once it is ready
    load_msgspec()
    import msgspec

    from opsq.daemon.daemon_process import EXIT_BUG, run
    from opsq.daemon.lifecycle import Ready
    from opsq.errors import OpsqError
    from opsq.settings import Settings

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    os.chdir("/")  # only now: a relative PYTHONPATH has been resolved
    if os.fork():
        os._exit(0)  # the daemon becomes an orphan, and not a session leader, so it can never acquire a terminal
    try:
        status = run(settings, _report, is_temporary=sys.argv[2:] == ["temporary"])
    except OpsqError as error:
        _report(Ready(code=error.code, message=error.message, hint=error.hint))
        status = error.exit_status
    except BaseException:  # noqa: BLE001  # the traceback is all that the caller can get
        if sys.stderr is not None:
            import traceback

            traceback.print_exc()
        status = EXIT_BUG
    sys.exit(status)


def _report(ready: Ready) -> None:
    """Answer the caller and close its pipes."""
    import msgspec

    os.write(1, msgspec.json.encode(ready))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main()
