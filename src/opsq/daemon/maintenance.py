"""Performs backup, vacuum and check for operators, each in a thread, while work continues.

This file must not know who asks, nor touch the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from opsq.errors import InputUnreadable, OpsqError, UsageError
from opsq.store.database import Database
from opsq.store.integrity import problems
from opsq.wire.messages import Backup, Changed, Check, Checked, ErrorReply, Reply, Vacuum


async def perform(
    request: Backup | Vacuum | Check, database: Database, report: Callable[[Exception], OpsqError]
) -> Reply:
    """Perform the request and return the reply.

    Args:
        report: logs an internal error and returns the error to send.
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
    except Exception as error:  # noqa: BLE001  # a bug in one request must not close every connection
        return ErrorReply.of(request.id, report(error))
