"""Where an exported history lies. PySpark is not needed to look.

It must not read it; that is Spark's.
"""

from __future__ import annotations

import os

from opsq.errors import NotFound


def exported_place(folder: str | os.PathLike[str]) -> str:
    """The folder of Parquet files, or the one file, as Spark is told of it; a URL stays as it is.

    Raises:
        NotFound: there is no such file.
    """
    path = os.fspath(folder)
    if "://" in path:
        return path
    if not (
        any(name.endswith(".parquet") for name in os.listdir(path)) if os.path.isdir(path) else os.path.isfile(path)
    ):
        raise NotFound(
            f"{path} holds no history in Parquet.",
            hint=f"`opsq history export --format parquet --output {path}` writes it into a folder that is there.",
        )
    return os.path.abspath(path)
