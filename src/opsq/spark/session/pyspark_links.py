"""Lets the Python workers of a local session import the installed PySpark, not the archive of its sources.

Spark puts `python/lib/pyspark.zip` of its home first on the path of Python workers. The archive has no bytecode, so
each kind of worker (a write starts four) compiles PySpark again. A home of links without that archive leaves them the
installed package, which is the same code.
"""

from __future__ import annotations

import atexit
import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

_VARIABLE = "SPARK_HOME"
_PARTS = ("bin", "conf", "data", "jars", "sbin")
"""What a home has beside its Python; `conf` does not exist before a user makes it."""


@contextmanager
def light_home(python: str) -> Iterator[None]:
    """Give a JVM that is started in this context a home without the archive, if its workers do not need it.

    Args:
        python: the program that workers will run.

    Effects: sets SPARK_HOME for that time, to a temporary folder that is deleted when this process exits; not if
        SPARK_HOME or PYTHONPATH is set already, if workers use another Python or do not find PySpark by themselves, or
        if there is no usable temporary folder.
    """
    home = None if _VARIABLE in os.environ or "PYTHONPATH" in os.environ else _home_for(python)
    if home is None:
        yield
        return
    os.environ[_VARIABLE] = home
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def _home_for(python: str) -> str | None:
    spec = find_spec("pyspark")
    if python != sys.executable or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    is_found = str(package.parent) in (*site.getsitepackages(), site.getusersitepackages())
    if not is_found or not (package / "jars").is_dir():
        return None
    with suppress(OSError):
        home = _linked(package)
        if home.isascii() and os.pathsep not in home:  # a JVM's class path can hold no other, whatever the locale
            return home
    return None


@cache
def _linked(package: Path) -> str:
    """A folder of links to this package; the JVM needs it as long as this process lives."""
    home = folder_of_process("opsq-spark-home-")
    for part in _PARTS:
        Path(home, part).symlink_to(package / part)
    return home


def folder_of_process(prefix: str) -> str:
    """A temporary folder that only this user can enter, deleted when this process exits.

    Raises:
        OSError: it cannot be made.
    """
    folder = mkdtemp(prefix=prefix)
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder
