"""Where a local Spark is at home: the installed PySpark, without the archive of its Python sources.

Spark puts that archive, `python/lib/pyspark.zip`, before all else on the path of its Python workers. There is no bytecode in it, so each
kind of worker (a write needs four) compiles PySpark anew, 1.3 s of processor time instead of 0.3. A home without it, a folder of links
in the user's cache, leaves them the installed package, which is the same code: the first write of a session took 3.6 s, not 7.4.
"""

from __future__ import annotations

import os
import shutil
import site
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from opsq.spark.session.user_cache import cache_folder

_VARIABLE = "SPARK_HOME"
_PARTS = ("bin", "conf", "data", "jars", "sbin")
"""Of a home, but for its Python. `conf` is not there before somebody makes it."""
_starting = threading.Lock()


@contextmanager
def light_home(python: str) -> Iterator[None]:
    """A JVM that is started meanwhile by this process spares its Python workers the archive, where they find the same code without it.

    Args:
        python: the program that workers will run.

    Effects: makes the folder if it is not there, and sets SPARK_HOME meanwhile; one thread at a time. Neither where somebody set
        SPARK_HOME or PYTHONPATH, where workers are of another Python or PySpark is not one that they find by themselves, or where there
        is no cache to write in or Java cannot read its name.
    """
    with _starting:
        home = None if _VARIABLE in os.environ or "PYTHONPATH" in os.environ else _home_for(python)
        if home is None:
            yield
            return
        os.environ[_VARIABLE] = str(home)
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


def _home_for(python: str) -> Path | None:
    spec = find_spec("pyspark")
    if python != sys.executable or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if (
        str(package.parent) not in (*site.getsitepackages(), site.getusersitepackages())
        or not (package / "jars").is_dir()
    ):
        return None
    with suppress(OSError):
        home = cache_folder("spark", str(package))
        if str(home).isascii() and os.pathsep not in str(
            home
        ):  # the class path of a JVM holds no other, whatever the locale
            return _linked(home, package)
    return None


def _linked(home: Path, package: Path) -> Path:
    """The folder of links to this package; who comes at the same time sees all of them or none."""
    if _is_whole(home, package):
        return home
    beside = home.with_name(f"{home.name}.{os.getpid()}.new")
    beside.mkdir(mode=0o700, parents=True)
    try:
        for part in _PARTS:
            (beside / part).symlink_to(package / part)
        if _is_ours(home) and not _is_whole(home, package):
            shutil.rmtree(home)
        beside.rename(home)
    except OSError:
        shutil.rmtree(beside)
        if not _is_whole(home, package):  # else another process was faster
            raise
    return home


def _is_ours(home: Path) -> bool:
    """Whether the folder is this user's alone: what lies in it is run."""
    try:
        found = home.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _is_whole(home: Path, package: Path) -> bool:
    """Whether the folder is ours, and all that we would make it."""
    try:
        return _is_ours(home) and all((home / part).readlink() == package / part for part in _PARTS)
    except OSError:
        return False
