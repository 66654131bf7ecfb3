"""A notifier without room says so, and keeps what it had."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from daemons import settings_of
from opsq.cli.notify_file import claimed, deliveries
from opsq.errors import AlreadyRunning, StorageFull


def test_full_disk_is_said_in_words(runtime_dir: Path) -> None:
    settings = settings_of(runtime_dir)
    with pytest.raises(StorageFull, match="what is to be delivered is kept"), deliveries(settings):
        raise apsw.FullError("database or disk is full")


def test_only_one_process_delivers(runtime_dir: Path) -> None:
    settings = settings_of(runtime_dir)
    with claimed(settings), pytest.raises(AlreadyRunning), claimed(settings):
        pass
    with claimed(settings):
        pass
