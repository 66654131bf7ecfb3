"""Frames by the hundred thousand, wrong in every way that the grammar has, over both doors and beside other clients.

`OPSQ_TEST_FRAMES` says how many, `OPSQ_TEST_SEED` which; `seed/door/talk` is one talk alone.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from daemons import connected, holder, running, state_of, whole_log, with_client_token
from faults.fuzzing import Live, Talks, sources
from opsq.settings import Settings
from opsq.wire import messages as m
from waiting import wait_until

FRAMES = int(os.environ.get("OPSQ_TEST_FRAMES", "8000"))
SEED = os.environ.get("OPSQ_TEST_SEED", "1")
EPOCH_FRAMES = 20_000
"""After so many all that they made is removed, and the daemon's memory is looked at."""
GROWTH_MB = 5.0
"""Of the daemon's memory from the third quarter to the last, whatever comes: what lives in it does not grow, but a rare
peak makes the allocators of Python and of each thread take 3 MB more, which they never give back."""
LONG_EPOCHS = 50
"""That is asserted from this number on."""
TOKEN = "c" * 32


@pytest.fixture
def settings() -> Iterator[Settings]:
    """A daemon with both doors, which outlives everything and meets no bug."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    state = with_client_token(folder / "state", TOKEN)
    with running(state, listen="127.0.0.1:0", frame_limit_bytes="64K", event_rows="1000") as found:
        pid = holder(found)
        yield found
        assert state_of(found).pid == pid
        log = whole_log(found)
        assert "Traceback" not in log, log
    shutil.rmtree(folder)


class Beside(threading.Thread):
    """Another client, which asks for this and that, and looks how long each answer takes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._settings = settings
        self._is_over = threading.Event()
        self.answers_s: list[float] = []

    def run(self) -> None:
        """Ask until it is over."""
        with connected(self._settings, "beside") as client:
            for number in range(10, 1 << 40):
                if self._is_over.wait(0.005):
                    return
                asked = (m.Heartbeat(number), m.Status(number), m.List(number, limit=5), m.Show(number, 7))[number % 4]
                began_s = time.perf_counter()
                client.ask(asked)
                self.answers_s.append(time.perf_counter() - began_s)

    def quantile_ms(self, share: float) -> float:
        """How long this share of the answers took at most."""
        return sorted(self.answers_s)[int(share * (len(self.answers_s) - 1))] * 1000

    def __enter__(self) -> Beside:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.is_alive(), "another client got no answer"
        self._is_over.set()
        self.join()


def alive(settings: Settings, folder: Path) -> Live:
    """Submissions, chunks that are leased, and a place for backups."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with connected(settings) as client:
        news = [m.NewSubmission(os.urandom(16), count, metadata={"key": 1}) for count in (1, 64, 1000)]
        submitted = client.ask(m.Submit(2, news))
        assert isinstance(submitted, m.Submitted), submitted
        reserved = client.ask(m.Reserve(3, 100, "OldestFirst", 0.0, lease_s=3600.0))
        assert isinstance(reserved, m.Reserved)
        assert reserved.grants, reserved
    held = [
        m.HeldChunks(one.submission_id, one.block, one.mask, reserved.reservation_id, one.attempt, one.mask, one.mac)
        for one in reserved.grants
    ]
    return Live([created.submission_id for created in submitted.created], held, str(folder))


def prune(settings: Settings) -> None:
    """Remove all that there is."""
    numbers = iter(range(10, 1 << 40))
    with connected(settings) as client:

        def ask(kind: type[m.Message], *fields: object, **options: object) -> m.Reply:
            return client.ask(kind(next(numbers), *fields, **options))  # type: ignore[arg-type]

        ask(m.Drain, True)
        rules = ask(m.ShowRules)
        assert isinstance(rules, m.RulesState), rules
        for pause in rules.pauses:
            ask(m.Resume, pause.metadata, by_operator=pause.by_operator)
        for limit in rules.limits:
            ask(m.Unlimit, limit.key, limit.value)
        for weight in rules.weights:
            ask(m.Weight, weight.key, weight.value, 1.0)
        while isinstance(found := ask(m.ShowSchedules), m.Schedules) and found.schedules:
            for one in found.schedules:
                ask(m.RemoveSchedule, one.schedule.name)

        def remove_some() -> bool:
            listed = ask(m.List, limit=100)
            assert isinstance(listed, m.Listed), listed
            for submission in listed.submissions:
                ask(m.Cancel, submission.submission_id)
                ask(m.Remove, submission.submission_id)
            return not listed.submissions

        wait_until(remove_some, what="everything is removed")
        assert isinstance(ask(m.Prune, keep_count=0), m.Changed)
        checked = ask(m.Check)
        assert isinstance(checked, m.Checked), checked
        assert checked.problems == []


def memory_mb(pid: int) -> float:
    """What a process has of its own, without the pages of files."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def test_frames_of_every_kind_harm_nobody(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doors = {"unix": (settings.socket, ""), "tcp": (state_of(settings).settings["listen"], TOKEN)}
    if "/" in SEED:
        seed, door, number = SEED.rsplit("/", 2)
        Talks(*doors[door], alive(settings, tmp_path / "copies"), f"{seed}/{door}").talk(int(number))
        return
    tally: Counter[str] = Counter()
    sizes_mb: list[float] = []
    pool = ProcessPoolExecutor(len(doors), multiprocessing.get_context("spawn"))
    began_s = time.monotonic()
    with Beside(settings) as beside, pool:
        epoch = 0
        while tally["frames"] < FRAMES:
            live = alive(settings, tmp_path / "copies")
            count = min(EPOCH_FRAMES, FRAMES - tally["frames"]) // len(doors) + 1
            first = epoch * EPOCH_FRAMES  # more talks than an epoch has
            parts = [
                pool.submit(sources, *where, live, f"{SEED}/{door}", first, count) for door, where in doors.items()
            ]
            for part in parts:
                tally += part.result()
            prune(settings)
            if Path("/proc/self/status").exists():
                sizes_mb.append(memory_mb(holder(settings)))
            epoch += 1
            with capsys.disabled():
                print(
                    f"\nseed {SEED}: {tally['frames']} frames in {tally['talks']} talks, "
                    f"{time.monotonic() - began_s:.0f} s; the daemon has {sizes_mb[-1:]} MB; others waited "
                    f"p50 {beside.quantile_ms(0.5):.1f} ms, p99 {beside.quantile_ms(0.99):.1f} ms",
                    flush=True,
                )
    with capsys.disabled():
        print(dict(tally))
    if len(sizes_mb) >= LONG_EPOCHS:
        quarter = len(sizes_mb) // 4
        assert median(sizes_mb[-quarter:]) <= median(sizes_mb[-2 * quarter : -quarter]) + GROWTH_MB, sizes_mb
