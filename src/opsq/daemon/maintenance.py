"""What operators ask of a running daemon that the engine does not know: backup, vacuum, check; each in a thread, while work goes on.

Must not know who asks, nor touch the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from opsq.errors import InputUnreadable, OpsqError, UsageError
from opsq.store.database import Database
from opsq.store.integrity import problems
from opsq.wire.messages import Backup, Changed, Check, Checked, ErrorReply, Reply, Vacuum


async def answer(
    request: Backup | Vacuum | Check, database: Database, report: Callable[[Exception], OpsqError]
) -> Reply:
    """Do what is asked for, and say what came of it.

    Args:
        report: logs a mistake of ours, and gives what to tell of it.
    """
    loop = asyncio.get_running_loop()
    try:
        if isinstance(request, Backup):
            path = Path(request.path)
            if not path.is_absolute():
                raise UsageError(f"The path of a backup must be absolute: {request.path!r}.")
            return Changed(request.id, await loop.run_in_executor(None, database.backup, path))
        if isinstance(request, Vacuum):
            return Changed(request.id, await loop.run_in_executor(None, database.vacuum))
        return Checked(request.id, await loop.run_in_executor(None, problems, database))
    except OpsqError as error:
        return ErrorReply.of(request.id, error)
    except OSError as error:
        return ErrorReply.of(request.id, InputUnreadable(f"{type(request).__name__} failed: {error}."))
    except Exception as error:  # noqa: BLE001  # one request's bug must not end everybody's connection
        return ErrorReply.of(request.id, report(error))
