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
import warnings
from contextlib import suppress
from importlib import import_module
from itertools import count

from pyspark import daemon

_TASKS = "pyspark.worker"
"""The module of workers that run tasks; others help to plan."""
_LOADED = (_TASKS, "pandas", "pyarrow.parquet", "opsq.spark.source.batch_writer", "opsq.spark.source.batch_reader")

_serve, _fork = daemon.worker, os.fork
_forks = count(1)
_modules_counts: set[int] = set()
"""The numbers of modules after which garbage was searched for among all objects."""


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Serve a task as `pyspark.daemon.worker` does; 0: the worker waits for another, else it ends.

    Effects: ends this process if the JVM has hung up.
    """
    try:
        code = _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # at once, or Python tries to deliver the rest as it frees the file, and prints that it could not
    if len(sys.modules) not in _modules_counts:
        _modules_counts.add(len(sys.modules))
        gc.collect()
        gc.freeze()
    return code


def serve_here() -> None:
    """In a worker that `pyspark.daemon` forked: serve the tasks after this one as above.

    Spark plans with such workers, whatever its settings are.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == daemon.__name__:
        main.worker = serve  # type: ignore[attr-defined]


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
    daemon.worker = serve
    if sys.argv[1:] == [_TASKS] and sys.platform == "linux":
        os.fork = fork
    daemon.manager()
