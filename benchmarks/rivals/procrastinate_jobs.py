"""Jobs in PostgreSQL by procrastinate: put in by the transaction of the program, done by one of its workers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CONCURRENCY = 20


@contextmanager
def deferring(url: str) -> Iterator[Any]:
    """Its task, to be put in by `task.configure(connection=…).defer(n=…)`."""
    import procrastinate

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))

    @app.task(name="work")
    def work(n: int) -> None:
        """Do nothing."""

    with app.open():
        yield work


def make_tables(url: str) -> None:
    """Put its tables into a database."""
    import procrastinate

    with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url)).open() as app:
        app.schema_manager.apply_schema()


def work_off(url: str) -> float:
    """Have a worker do all jobs; the seconds that it takes."""
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="work")
    async def work(n: int) -> None:
        """Do nothing."""

    async def run() -> float:
        async with app.open_async():
            started = time.perf_counter()
            await app.run_worker_async(
                wait=False, concurrency=_CONCURRENCY, listen_notify=False, install_signal_handlers=False
            )
            return time.perf_counter() - started

    return asyncio.run(run())
