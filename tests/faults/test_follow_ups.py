"""A fan-out and a chain of follow-ups, while consumers and the daemon are killed: every step is there once.

Larger ones are tested with OPSQ_TEST_FAN_OUT, OPSQ_TEST_CHAIN and OPSQ_TEST_KILLS.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import DEADLINE_S, end, kill, settings_of
from opsq.client.sync.queue import Queue
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database
from waiting import wait_until

FAN_OUT = int(os.environ.get("OPSQ_TEST_FAN_OUT", "500"))
CHAIN = int(os.environ.get("OPSQ_TEST_CHAIN", "60"))
KILLS = int(os.environ.get("OPSQ_TEST_KILLS", "20"))
CONSUMERS = 3
LIMIT_S = 300 + FAN_OUT / 5 + CHAIN + 5 * KILLS

PROGRAM = """
import json, sys
chunks, answers = sys.stdin.buffer, sys.stdout.buffer
for line in chunks:
    length, name, attempt, more = line.split(b" ", 3)
    step, number, last = chunks.read(int(length)).decode().split()
    follow = []
    if step == "root":
        follow = [("leaf", n) for n in range(int(last))]
    elif step == "link" and int(number) < int(last):
        follow = [("link", int(number) + 1)]
    with open(json.loads(more)["then"], "a") as then:
        for step, n in follow:
            new = {"chunks": [f"{step} {n} {last}"], "metadata": {"step": step}, "title": f"{step} {n}"}
            print(json.dumps(new | {"max_attempts": 1000, "max_lost": 1000}), file=then)
    answers.write(b"0 0 %b\\n" % name)
    answers.flush()
"""


class Consumers:
    """Processes of `opsq consume`, one of which is killed now and then."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._processes = [self._start() for _ in range(CONSUMERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        words = ("consume", "-j", "2", "--server", "frames", "--", sys.executable, "-c", PROGRAM)
        return subprocess.Popen(
            [sys.executable, "-m", "opsq", *words],
            env=os.environ | {"OPSQ_STATE_DIR": self._settings.state_dir},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, number: int) -> None:
        """Kill one, and start another in its place."""
        self._end(self._processes[number])
        self._processes[number] = self._start()

    def tend(self) -> None:
        """Start one in the place of each that has found no daemon at its start."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self.kill(number)

    def end(self) -> None:
        for process in self._processes:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    found = settings_of(runtime_dir / "s", reservation_s="5", heartbeat_s="0.5")
    assert lifecycle.start(found).status == "started"
    try:
        yield found
    finally:
        end(found)


def steps_of(queue: Queue, step: str) -> Counter[str]:
    """The titles of the submissions of a step."""
    return Counter(state.title or "" for state in queue.submissions(metadata={"step": step}))


@pytest.mark.timeout(int(LIMIT_S) + 60)
def test_every_step_of_a_fan_out_and_a_chain_is_there_once_whatever_is_killed(
    settings: Settings, runtime_dir: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(opsq.connect(settings.socket))
        for first in (f"root 0 {FAN_OUT}", f"link 0 {CHAIN}"):
            queue.submit([first.encode()], max_attempts=1000, max_lost=1000)
        consumers = Consumers(settings, runtime_dir)
        stack.callback(consumers.end)

        def completed_count() -> int:
            consumers.tend()
            return queue.status().total.completed_count

        steps_count = FAN_OUT + CHAIN + 2
        for number in range(KILLS):
            goal = steps_count * number // (KILLS + 1)
            wait_until(lambda goal=goal: completed_count() >= goal, LIMIT_S, f"{goal} are done")
            time.sleep(rng.uniform(0, 0.1))
            if rng.random() < 0.4:
                kill(settings)
                assert lifecycle.start(settings).status == "started"
            else:
                consumers.kill(rng.randrange(CONSUMERS))
        wait_until(lambda: completed_count() >= steps_count, LIMIT_S, "all is done")
        assert steps_of(queue, "leaf") == Counter(f"leaf {number}" for number in range(FAN_OUT))
        assert steps_of(queue, "link") == Counter(f"link {number}" for number in range(1, CHAIN + 1))
        wait_until(lambda: {state.state for state in queue.submissions()} == {"completed"}, DEADLINE_S, "all has ended")
        assert completed_count() == steps_count
    print(f"{steps_count} steps, {KILLS} kills, {time.monotonic() - began:.1f} s")
    end(settings)
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()
