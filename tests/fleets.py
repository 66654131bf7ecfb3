"""Several daemons as one queue, for tests: each is killed, stopped and started by its number.

It must not hide which of them a client reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from daemons import end, holder, kill, settings_of
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database


class Fleet:
    """Shards 0 … `count` - 1 with one content store.

    Args:
        folder: has a folder for each, and the store.
        flags: settings of all.
    """

    def __init__(self, folder: Path, count: int, **flags: object) -> None:
        self.folder = folder
        self._flags = flags
        self.settings = [self._settings_of(number) for number in range(count)]

    @property
    def address(self) -> str:
        """Of all."""
        return ",".join(settings.socket for settings in self.settings)

    @property
    def client_settings(self) -> Settings:
        """Of a client of all."""
        return settings_of(self.folder / "client", address=self.address)

    def add(self) -> int:
        """One shard more; its number."""
        self.settings.append(self._settings_of(len(self.settings)))
        self.start(len(self.settings) - 1)
        return len(self.settings) - 1

    def start(self, number: int) -> None:
        """Start a shard."""
        assert lifecycle.start(self.settings[number]).status == "started"

    def kill(self, number: int) -> None:
        """Kill a shard, and wait until it is gone."""
        kill(self.settings[number])

    @contextlib.contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """A shard that hangs: its connections stay, and it says nothing."""
        pid = holder(self.settings[number])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End all."""
        for settings in self.settings:
            end(settings)

    def problems(self) -> list[str]:
        """What `opsq check` finds at all of them; they are stopped."""
        found = []
        for settings in self.settings:
            lifecycle.stop(settings, drain_s=0)
            database = Database.open(Path(settings.database_path))
            try:
                found += [f"{settings.shard}: {problem}" for problem in integrity.problems(database)]
            finally:
                database.close()
        return found

    def _settings_of(self, number: int) -> Settings:
        place = self.folder / f"shard{number}"
        return settings_of(place, shard=number, store=str(self.folder / "store"), **self._flags)


@contextlib.contextmanager
def fleet_in(folder: Path, count: int = 3, **flags: object) -> Iterator[Fleet]:
    """A fleet that is gone afterwards, whatever the test did."""
    fleet = Fleet(folder, count, **flags)
    try:
        for number in range(count):
            fleet.start(number)
        yield fleet
    finally:
        fleet.stop()
