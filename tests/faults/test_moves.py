"""Two daemons and what moves submissions between them, killed again and again while programs work on the chunks."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from acceptance.starter import PROGRAM
from daemons import end, kill, settings_of
from opsq.daemon import lifecycle
from opsq.ids import from_sql, mask_indexes
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database

KILLS = int(os.environ.get("OPSQ_TEST_MOVES", "6"))
SUBMISSIONS, CHUNKS = 8, 40
LARGE_CHUNKS = 700
PATIENCE = "500ms"


def words(settings: Settings, *rest: str) -> list[str]:
    return [PROGRAM, "--state-dir", settings.state_dir, *rest]


def run(settings: Settings, *rest: str, stdin: bytes | None = None) -> bytes:
    return subprocess.run(words(settings, *rest), input=stdin, capture_output=True, check=True, timeout=120).stdout


@contextlib.contextmanager
def consumer(settings: Settings) -> Iterator[None]:
    """Programs that work on what one daemon has, over its restarts."""
    command = words(settings, "consume", "-j2", "--", "cat")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def start(settings: Settings) -> None:
    lifecycle.start(settings)


def mover(source: Settings, target: Settings) -> subprocess.Popen[bytes]:
    command = words(source, "drain", "--to", target.socket, "--patience", PATIENCE)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def texts(number: int, count: int) -> bytes:
    return b"".join(b"%d/%d\n" % (number, index) for index in range(count))


def completions(settings: Settings) -> Counter[tuple[int, int]]:
    """How often each chunk was completed, by the history, which has moved with the submissions."""
    database = Database.open_read_only(Path(settings.database_path))
    found: Counter[tuple[int, int]] = Counter()
    for submission_id, block, mask in database.reader.execute(
        "SELECT submission_id, block, mask FROM history WHERE event = 'completed'"
    ):
        found.update((submission_id, index) for index in mask_indexes(block, from_sql(mask)))
    database.close()
    return found


def test_killed_moves_lose_nothing_and_do_nothing_twice(runtime_dir: Path) -> None:
    """Each result is there once and in its order, each chunk was completed once, and both files are sound."""
    dice = random.Random(7)
    source = settings_of(runtime_dir / "a", heartbeat_s=0.5)
    target = settings_of(runtime_dir / "b", heartbeat_s=0.5, shard=7, store=source.store)
    start(source)
    start(target)
    try:
        sizes = [*([CHUNKS] * SUBMISSIONS), LARGE_CHUNKS]
        made = [
            run(source, "submit", "-", "--lines", "1", "--max-lost", "1000", stdin=texts(number, size)).decode().strip()
            for number, size in enumerate(sizes)
        ]
        with consumer(source), consumer(target):
            for number in range(KILLS):
                with mover(source, target) as process:
                    time.sleep(dice.uniform(0.02, 0.5))
                    victim = (source, target, None)[number % 3]
                    if victim is not None:
                        kill(victim)
                    process.kill()
                start(source)
                start(target)
            last = mover(source, target)
            _, said = last.communicate(timeout=120)
            assert last.returncode == 0, said
            run(source, "drain", "--wait", "--timeout", "100s")
            run(target, "drain", "--wait", "--timeout", "100s")
        run(source, "drain", "--to", target.socket, "--all")
        for number, (submission, size) in enumerate(zip(made, sizes, strict=True)):
            assert run(target, "results", submission) == texts(number, size)
    finally:
        end(source)
        end(target)
    for settings in (source, target):
        database = Database.open_read_only(Path(settings.database_path))
        assert integrity.problems(database) == []
        database.close()
    assert completions(target) == {
        (int(submission), index): 1 for submission, size in zip(made, sizes, strict=True) for index in range(size)
    }
