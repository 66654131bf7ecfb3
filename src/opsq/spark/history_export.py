"""Finds an exported history, without PySpark.

It must not read the history; Spark does.
"""

from __future__ import annotations

import os

from opsq.errors import NotFound


def exported_place(folder: str | os.PathLike[str]) -> str:
    """The folder of Parquet files, or the one file, as a path for Spark; a URL is returned as it is.

    Raises:
        NotFound: there is no such file.
    """
    path = os.fspath(folder)
    if "://" in path:
        return path
    is_folder = os.path.isdir(path)
    if not (any(name.endswith(".parquet") for name in os.listdir(path)) if is_folder else os.path.isfile(path)):
        raise NotFound(
            f"{path} has no history in Parquet.",
            hint=f"`opsq history export --format parquet --output {path}` writes it to an existing folder.",
        )
    return os.path.abspath(path)
