"""Many consumers of one daemon come, go and are stopped amid their work: nothing is done twice, nothing is left over.

What was handed to whom is read from what the programs themselves wrote down.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import DEADLINE_S, running
from opsq.client.sync.queue import Queue
from opsq.settings import Settings
from waiting import wait_until

CONSUMERS_COUNT = 50
CHUNKS_COUNT = 100_000
RECORDER = 'exec tee -a "seen.$$"'
"""A server whose answer is what it was asked; a file of its own keeps it."""
SAID = (
    rb"(opsq: Waiting up to 3600 s for 1 running program\."
    rb" Press Ctrl-C again, or send another signal, to stop now\.\n)?"
)
"""What SIGTERM makes `opsq consume` say: nothing, unless it comes amid a chunk."""
UNTIL_GO = "cat > started.$$; while [ ! -e go ]; do sleep 0.01; done; cat started.$$; rm started.$$"


@pytest.fixture
def settings(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Settings]:
    """A daemon; how often its consumers have to show that they live may be given."""
    with running(runtime_dir / "s", heartbeat_s=getattr(request, "param", "5")) as found:
        yield found


@pytest.fixture
def queue(settings: Settings) -> Iterator[Queue]:
    with opsq.connect(settings.socket) as found:
        yield found


@contextlib.contextmanager
def consuming(settings: Settings, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """An `opsq consume` that is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "opsq", "consume", "-j", "1", *words],
        env=os.environ | {"OPSQ_STATE_DIR": settings.state_dir},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(600)
def test_fifty_consumers_restarted_one_by_one_do_each_of_a_hundred_thousand_chunks_once(
    queue: Queue, settings: Settings, runtime_dir: Path
) -> None:
    """No chunk is handed to two of them, none is failed, none stays reserved."""
    content = b"".join(b"%d\n" % number for number in range(CHUNKS_COUNT))
    submission = queue.submit(content.splitlines(keepends=True))
    words = ("--grace", "1h", "--server", "records", "--", "sh", "-c", RECORDER)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(consuming(settings, runtime_dir, *words)) for _ in range(CONSUMERS_COUNT)]
        wait_until(lambda: queue.status().connections_count > CONSUMERS_COUNT, DEADLINE_S * 5, "all are connected")
        others = []
        for at, consumer in enumerate(first):
            goal = CHUNKS_COUNT * at // (CONSUMERS_COUNT + 5)
            wait_until(lambda goal=goal: submission.state().completed_count >= goal, DEADLINE_S * 5, f"{goal} are done")
            consumer.terminate()
            _, said = consumer.communicate(timeout=DEADLINE_S)
            assert consumer.returncode == 0
            assert re.fullmatch(SAID, said), said
            others.append(stack.enter_context(consuming(settings, runtime_dir, "--until-empty", *words)))
        assert submission.wait(DEADLINE_S * 5).state == "completed"
        for consumer in others:
            _, said = consumer.communicate(timeout=DEADLINE_S)
            assert (consumer.returncode, said) == (0, b"")
    seen = [int(line) for path in runtime_dir.glob("seen.*") for line in path.read_bytes().splitlines()]
    assert len(seen) == CHUNKS_COUNT
    assert len(set(seen)) == CHUNKS_COUNT
    assert b"".join(submission.results()) == content
    assert queue.status().total.reserved_count == 0


@pytest.mark.parametrize("settings", ["0.5"], indirect=True)
@pytest.mark.parametrize("is_taken", [True, False])
def test_consumer_that_was_stopped_for_long_says_what_it_has_lost_and_goes_on(
    queue: Queue, settings: Settings, runtime_dir: Path, is_taken: bool
) -> None:
    """Ctrl-Z, or a machine that slept: its chunk is free meanwhile.

    If another took it, its program is ended; if not, it is ours again.
    """
    submission = queue.submit([b"x"])
    with consuming(settings, runtime_dir, "--grace", "0", "--", "sh", "-c", UNTIL_GO) as consumer:
        wait_until(lambda: list(runtime_dir.glob("started.*")), DEADLINE_S, "a program runs")
        (path,) = runtime_dir.glob("started.*")
        consumer.send_signal(signal.SIGSTOP)
        wait_until(lambda: submission.state().reserved_count == 0, DEADLINE_S, "the daemon has given it up")
        with queue.consumer() as other:
            reservation = other.reserve(1) if is_taken else None
            consumer.send_signal(signal.SIGCONT)
            if reservation is not None:
                wait_until(lambda: not is_alive(int(path.suffix[1:])), DEADLINE_S, "the program has ended")
                reservation.release()
        wait_until(lambda: submission.state().reserved_count == 1, DEADLINE_S, "it has a chunk again")
        (runtime_dir / "go").touch()
        assert submission.wait(DEADLINE_S).state == "completed"
        consumer.terminate()
        _, said = consumer.communicate(timeout=DEADLINE_S)
    assert consumer.returncode == 0
    assert said.decode().count(f"The reservation of chunk {submission.id}/0 was lost") == is_taken


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")
