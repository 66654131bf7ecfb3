"""The options of consumers and of their runs, once for all clients.

This file only names them; `Consumer` explains those of a consumer, `Consumer.run_each_chunk` those of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from opsq.client.core.held_block import Lost

OnLost = Callable[[Lost], None]
"""Is given each chunk that was taken away, or whose report was refused."""

Mode = Literal["threads", "processes"]
"""Where a function is called."""

OnInterrupt = Literal["raise", "return"]
"""How a run ends when SIGINT has let the chunks at hand end: KeyboardInterrupt is raised, or it returns."""


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of a consumer, which `Consumer` explains."""

    batch: int | None
    lease_s: float | None
    reconnect_s: float | None
    on_lost: OnLost | None


class AsyncRunOptions(TypedDict, total=False):
    """The keyword arguments of a run on an event loop; `Consumer.run_each_chunk` explains them."""

    jobs: int
    concurrency: int
    until_empty: bool
    until_idle: bool
    max_runtime_s: float | None


class RunOptions(AsyncRunOptions, total=False):
    """The keyword arguments of a run, which `Consumer.run_each_chunk` explains."""

    mode: Mode
    max_memory_bytes: int | None
    grace_s: float | None
    on_interrupt: OnInterrupt
