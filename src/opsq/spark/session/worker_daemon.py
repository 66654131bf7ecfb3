"""The process that forks the Python workers of a local session, run by Spark in place of `pyspark.daemon`.

It differs in three ways. A worker whose JVM has hung up, as at the end of a session, cannot deliver its last bytes:
over a Unix socket it learns that at once, and Spark's own process would print a traceback, where this one lets it go.
After each task a worker searches all its objects for garbage; here it leaves out those that modules brought with them.
And on Linux, from the second worker on, as after one that has died, workers find loaded what the first took a second to
load; on macOS, libraries that are loaded before a fork may not work after it.

Run as `python -m opsq.spark.session.worker_daemon WORKER_MODULE`.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from itertools import count
from types import ModuleType, SimpleNamespace

from pyspark import daemon

_TASKS = "pyspark.worker"
"""The module of workers that run tasks; others help to plan."""
_LOADED = (_TASKS, "pandas", "pyarrow.parquet", "opsq.spark.source.batch_writer", "opsq.spark.source.batch_reader")

_serve, _fork = daemon.worker, os.fork
_forks = count(1)
_modules_counts: set[int] = set()
"""The numbers of modules after which garbage was searched for among all objects."""


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Serve a task as `pyspark.daemon.worker` does; 0: the worker waits for another, else it ends."""
    code = _serve(sock, authenticated)
    if len(sys.modules) not in _modules_counts:
        _modules_counts.add(len(sys.modules))
        gc.collect()
        gc.freeze()
    return code


def hush(module: ModuleType) -> None:
    """Let the workers of this `pyspark.daemon` end without a word if their JVM has hung up, from the task in hand on.

    Its last lines print what was raised and end the process at once, so nothing else tries to deliver the rest.
    """
    module.traceback = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)  # type: ignore[attr-defined]


def _print_exc() -> None:
    if not isinstance(sys.exception(), (BrokenPipeError, ConnectionResetError)):
        traceback.print_exc()


def fork() -> int:
    """Fork a worker; the second time, load before that what tasks need: the first worker need not wait for it.

    Not a hook of `os.register_at_fork`, since modules that are loaded there may have such hooks of their own.
    """
    if next(_forks) == 2:
        for module in _LOADED:
            with suppress(ImportError):  # which the task that needs it will tell
                import_module(module)
        gc.collect()
        gc.freeze()
    with warnings.catch_warnings():  # Python's about the thread of Arrow's jemalloc, which knows of forks
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = _fork()
    if not pid:
        os.fork = _fork
    return pid


if __name__ == "__main__":
    hush(daemon)
    daemon.worker = serve
    if sys.argv[1:] == [_TASKS] and sys.platform == "linux":
        os.fork = fork
    daemon.manager()
