"""A function of the fleet, packed for a process of its own, with what PySpark shows to the functions of a task.

That is the context of the task, its files, broadcast variables and accumulators: parts of PySpark that are not public
are used here only. How such a process is started, watched and replaced, `opsq.client` knows.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from opsq.client.core.outcome import Done, is_awaited
from opsq.spark.fleet.chunk_function import ChunkFunction, Frames

if TYPE_CHECKING:
    import pyarrow as pa

_PRELOADED = [
    "opsq.client.core.awaiting_worker",
    "opsq.client.core.worker_process",
    "opsq.content.chunk_reader",
    "opsq.content.store_kinds",
    "opsq.spark.fleet.function_process",
    "opsq.spark.formats.decoder",
    "opsq.spark.formats.encoder",
    "opsq.spark.formats.result_types",
    "opsq.spark.formats.schemas",
]
"""What each process would otherwise load anew; nothing here starts threads, and no function of a user is called."""
_LIKELIER_VICTIM = 500
"""What a function's process adds to its OOM score: the kernel is to end it before the executor or its Python worker."""


def pickled(function: Callable[[Any], Any]) -> bytes:
    """A function as Spark pickles it; a broadcast variable in it is noted for the job that is planned next."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]


def pack(function: Callable[[Any], Any] | bytes, frames: Frames, schema: pa.Schema | None = None) -> bytes:
    """A function, pickled or not, for `worker_process.main`, with the state of PySpark in this task.

    Effects: the fork server, if it does not run yet, will load what such processes need.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    packed = function if isinstance(function, bytes) else pickled(function)
    return pickle.dumps(_Packed(packed, frames, schema, _state_of_task()))


def add_accumulated(aside: bytes) -> int:
    """Add to the accumulators of this task what a function has added in its process; the rows that it has done."""
    rows_count, added = pickle.loads(aside)  # noqa: S301  # of a process of ours
    if added:
        from pyspark.accumulators import _deserialize_accumulator

        for number, value, param in added:
            _deserialize_accumulator(number, param.zero(value), param).add(value)
    return int(rows_count)


class _State(NamedTuple):
    """What functions of a task can see of PySpark.

    Attributes:
        context: of the task.
        files_dir: where `SparkFiles` are.
        broadcasts: the path of each variable, or the variable itself where the JVM has decrypted it.
    """

    context: Any
    files_dir: str | None
    broadcasts: dict[int, tuple[str, Any]]


class _Packed:
    """Unpickled in its process it is the function of chunks."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


class _FunctionOfTask(ChunkFunction):
    """A function of chunks that says aside how many rows it has done, and what it has added to accumulators."""

    def aside(self) -> bytes | None:
        """What is new since the last call; accumulators are at zero then."""
        rows_count, self.rows_count = self.rows_count, 0
        found = getattr(sys.modules.get("pyspark.accumulators"), "_accumulatorRegistry", None) or {}
        added = [(number, each._value, each.accum_param) for number, each in found.items()]
        for each in found.values():
            each._value = each.accum_param.zero(each._value)
        return pickle.dumps((rows_count, added)) if rows_count or added else None


class _AwaitedOfTask(_FunctionOfTask):
    """The same, awaited."""

    async def __call__(self, chunk: Any) -> bytes | Done:  # type: ignore[override]  # whoever calls it, looks
        return await self.awaited(chunk.view)


def _unpack(function: bytes, frames: Frames, schema: pa.Schema | None, state: _State | None) -> ChunkFunction:
    os.setpgid(0, 0)  # what the function starts is killed with it, here or by the guard
    _offer_to_oom_killer()
    if state is not None:
        _restore(state)
    called = pickle.loads(function)  # noqa: S301  # as Spark does
    return (_AwaitedOfTask if is_awaited(called) else _FunctionOfTask)(called, frames, schema)


def _state_of_task() -> _State | None:
    context = getattr(sys.modules.get("pyspark.taskcontext"), "TaskContext", None)
    if context is None or context.get() is None:
        return None
    from pyspark.core.broadcast import _broadcastRegistry
    from pyspark.core.files import SparkFiles

    broadcasts = {
        number: (getattr(each, "_path", ""), None if hasattr(each, "_path") else each.value)
        for number, each in _broadcastRegistry.items()
    }
    return _State(context.get(), SparkFiles._root_directory, broadcasts)


def _restore(state: _State) -> None:
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry
    from pyspark.core.files import SparkFiles
    from pyspark.taskcontext import TaskContext

    TaskContext._setTaskContext(state.context)
    SparkFiles._root_directory = state.files_dir
    SparkFiles._is_running_on_worker = True
    for number, (path, value) in state.broadcasts.items():
        broadcast: Broadcast[Any] = Broadcast(path=path)
        if not path:
            broadcast._value = value
        _broadcastRegistry[number] = broadcast


def _offer_to_oom_killer() -> None:
    """Only Linux can be told."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = min(int(file.read()) + _LIKELIER_VICTIM, 1000)
        file.seek(0)
        file.write(str(score))
