"""A server of PostgreSQL in a folder of its own, with the settings that it comes with: it syncs each commit.

It must not know what is in a database; the server of the tests is the same one.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from postgresql import Cluster, programs, running

from rivals.programs import RivalMissingError

__all__ = ["Cluster", "Initdb", "postgresql"]


class Initdb:
    """The program that makes its files; Debian keeps it off PATH."""

    def find(self) -> str:
        """Its full path.

        Raises:
            RivalMissingError: it is not installed.
        """
        found = programs()
        if found is None:
            raise RivalMissingError("PostgreSQL is not installed; try: apt-get install postgresql")
        return str(found / "initdb")


def postgresql(folder: Path) -> AbstractContextManager[Cluster]:
    """It runs meanwhile.

    Args:
        folder: empty, and reachable for the user that it runs as if root runs the benchmark.
    """
    return running(folder, {})
