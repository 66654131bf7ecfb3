"""A disk that is filled again and again, by us and by others: nothing is lost, and what the hint says makes room.

Each fill ends with the commands that the refusal names, run by a shell, and nothing else; only where it says that the
files of others take the room are those deleted.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from daemons import end, settings_of
from faults.filler import KINDS, Filler, Shell
from opsq.daemon import lifecycle
from opsq.store import integrity
from opsq.store.database import Database

FILLS = int(os.environ.get("OPSQ_TEST_FILLS", "10"))
SEED = int(os.environ.get("OPSQ_TEST_SEED", "1"))
RESTARTS = 0.1
"""The share of the fills in which the daemon is stopped or killed, and started again, while the disk is full."""


def test_every_fill_keeps_what_was_acknowledged_and_ends_by_what_the_hint_says(
    small_disk: Path | None, tmp_path: Path
) -> None:
    if small_disk is None:
        return
    settings = settings_of(small_disk)
    rng = random.Random(SEED)
    shell = Shell(tmp_path, small_disk)
    lifecycle.start(settings)
    try:
        filler = Filler(small_disk, settings, rng, shell)
        ways = [(kind, has_others) for has_others in (False, True) for kind in KINDS]
        for number in range(FILLS):
            if number % len(ways) == 0:
                rng.shuffle(ways)
            kind, has_others = ways[number % len(ways)]
            began_s = time.monotonic()
            if has_others:
                filler.by_others()
            kind(filler)
            filler.check()
            if rng.random() < RESTARTS:
                filler.restart()
                filler.check()
            filler.follow()
            filler.check()
            filler.delete_others()
            taken_s = time.monotonic() - began_s
            print(
                f"fill {number}: {kind.__name__}{' beside others' if has_others else ''}, {taken_s:.1f} s", flush=True
            )
            assert filler.submit(10) is not None, f"there is room again\n{filler.hint}\n{filler.picture()}"
        filler.client.close()
        lifecycle.stop(settings)
    finally:
        end(settings)
        shell.close()
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()
