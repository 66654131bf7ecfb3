"""opsq notify and its daemon, killed at random: each event reaches each target, and each subject's in order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import opsq
from daemons import kill, running
from opsq.daemon import lifecycle
from opsq.documents.event_cursor import EventCursor
from opsq.settings import Settings
from waiting import wait_until

KILLS = 12
SUBJECTS = 5
CONFIG = """
[on]
paused = ["sh", "-c", "cat >> {log}"]
resumed = ["sh", "-c", "cat >> {log}"]

[[webhook]]
name = "down"
url = "http://127.0.0.1:1/"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
events = ["paused"]
"""


def notify(settings: Settings, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A notifier in a process of its own."""
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir, "XDG_CONFIG_HOME": str(folder / "config")}
    command = [sys.executable, "-m", "opsq", "notify", "run", "--attempts", "1000", "--backoff", "20ms", *words]
    return subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def change_pauses(settings: Settings, is_over: threading.Event) -> None:
    """Pause and resume, one subject after the other, whatever becomes of the daemon."""
    with opsq.connect(settings.socket, reconnect_s=None) as queue:
        number = 0
        while not is_over.is_set():
            change = queue.pause if number // SUBJECTS % 2 == 0 else queue.resume
            change({"tenant": number % SUBJECTS})
            number += 1
            is_over.wait(0.005)


def told(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_every_event_is_delivered_in_order_whatever_is_killed(runtime_dir: Path) -> None:
    rng = random.Random(7)
    folder, log = runtime_dir / "n", runtime_dir / "log"
    (folder / "config" / "opsq").mkdir(parents=True)
    (folder / "config" / "opsq" / "opsq.toml").write_text(CONFIG.format(log=log))
    with running(runtime_dir / "s") as settings:
        is_over = threading.Event()
        changing = threading.Thread(target=change_pauses, args=(settings, is_over))
        notifier = notify(settings, folder, "--since", "oldest")
        changing.start()
        try:
            for number in range(KILLS):
                seen = len(told(log))
                wait_until(lambda: len(told(log)) > seen + rng.randrange(5))  # noqa: B023  # called at once
                if number % 3:
                    notifier.kill()
                    notifier.wait()
                else:
                    kill(settings)
                    lifecycle.start(settings)
                if notifier.poll() is not None:
                    notifier = notify(settings, folder)
        finally:
            is_over.set()
            changing.join()
            notifier.kill()
            notifier.wait()
        with opsq.connect(settings.socket) as queue:
            events = list(queue.events())
        assert notify(settings, folder, "--once").wait() == 0
    wanted = [(str(EventCursor(event.seq, event.at)), f"pause tenant={event.metadata['tenant']}") for event in events]
    found = [(line["cursor"], line["subject"]) for line in told(log)]
    assert set(found) == set(wanted)
    for subject in {subject for _, subject in wanted}:
        first = list(dict.fromkeys(cursor for cursor, of in found if of == subject))
        assert first == [cursor for cursor, of in wanted if of == subject]
