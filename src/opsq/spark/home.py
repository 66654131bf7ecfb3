"""Where a local Spark is at home: the installed PySpark, without the archive of its Python sources.

Spark puts that archive, `python/lib/pyspark.zip`, before all else on the path of its Python workers. There is no bytecode in it, so each
kind of worker (a write needs four) compiles PySpark anew, 1.3 s of processor time instead of 0.3. A home without it, a folder of links
in the user's cache, leaves them the installed package, which is the same code: the first write of a session took 3.6 s, not 7.4.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from opsq.spark.cache import cache_folder

_VARIABLE = "SPARK_HOME"
_PARTS = ("bin", "conf", "data", "jars", "sbin")
"""Of a home, but for its Python. `conf` is not there before somebody makes it."""


@contextmanager
def light_home(python: str) -> Iterator[None]:
    """A JVM that is started meanwhile by this process spares its Python workers the archive, where that is sure to change nothing else.

    Args:
        python: the program that workers will run.

    Effects: makes the folder the first time, and sets SPARK_HOME meanwhile; neither where somebody set SPARK_HOME, where workers are of
        another Python or PySpark is not one that they find by themselves, or where there is no cache to write in.
    """
    home = None if _VARIABLE in os.environ else _home_for(python)
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
    if str(package.parent) not in (*site.getsitepackages(), site.getusersitepackages()) or not (package / "jars").is_dir():
        return None
    with suppress(OSError):
        return _linked(package)
    return None


def _linked(package: Path) -> Path:
    """The folder of links to this package; who comes at the same time sees all of them or none."""
    home = cache_folder("spark", str(package))
    if home.exists():
        return home
    beside = home.with_name(f"{home.name}.{os.getpid()}.new")
    beside.mkdir(mode=0o700, parents=True)
    try:
        for part in _PARTS:
            (beside / part).symlink_to(package / part)
        beside.rename(home)
    except OSError:
        shutil.rmtree(beside)
        if not home.exists():  # else another process was faster
            raise
    return home
