"""A disk that is filled again and again, by us and by others: nothing is lost, and what the hint says makes room.

Each fill ends with the commands that the refusal names, run by a shell, and nothing else; only where it says that the
files of others take the room are those deleted.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemons import Client, kill, settings_of
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database
from opsq.wire.messages import (
    Backup,
    Changed,
    Complete,
    Completed,
    Completion,
    ErrorReply,
    Fail,
    Failure,
    HeldChunks,
    NewSubmission,
    Request,
    Reserve,
    Reserved,
    Show,
    Shown,
    Status,
    Submit,
    Submitted,
)
from waiting import wait_until

FILLS = int(os.environ.get("OPSQ_TEST_FILLS", "1"))
SEED = int(os.environ.get("OPSQ_TEST_SEED", "1"))
FULL = {"storage_full", "no_room"}
COMMAND = re.compile(r"`([^`]*opsq [^`]*)`")
OTHERS = "not opsq's"


class Filler:
    """Fills one disk, and knows what was acknowledged."""

    def __init__(self, disk: Path, settings: Settings, rng: random.Random, programs: Path) -> None:
        self.disk = disk
        self.removals = programs / "removals"
        opsq = programs / "opsq"
        opsq.write_text(
            f'#!/bin/sh\nif [ "$1" = rm ]; then echo "$*" | cut -c4- >> {self.removals}; fi\n'
            f'exec {Path(sys.executable).with_name("opsq")} "$@"\n'
        )
        opsq.chmod(0o755)
        self.settings = settings
        self.rng = rng
        self.client = self._connect()
        self.completed: dict[int, int] = {}
        """Of each submission, how many chunks are surely completed."""
        self.hint = ""
        self.ids = iter(range(10, 1 << 40))

    def _connect(self) -> Client:
        client = Client(self.settings.socket)
        client.greet("filler")
        return client

    # --- what fills ---

    def ask(self, request: Request) -> object:
        """The reply; None if there was no room, and then `hint` says what to do."""
        reply = self.client.ask(request)
        if isinstance(reply, ErrorReply):
            assert reply.code in FULL, reply
            self.hint = reply.error().hint
            assert self.hint, reply
            return None
        return reply

    def submit(self, size_bytes: int, chunks_count: int = 1) -> int | None:
        new = NewSubmission(
            self.rng.randbytes(16), chunks_count, content=self.rng.randbytes(size_bytes), max_attempts=10_000
        )
        reply = self.ask(Submit(next(self.ids), [new]))
        if reply is None:
            return None
        assert isinstance(reply, Submitted)
        number = reply.created[0].submission_id
        self.completed[number] = 0
        self.key = new.request_key
        return number

    def reserve(self, count: int) -> list[HeldChunks] | None:
        reply = self.ask(Reserve(next(self.ids), count, "NewestFirst"))
        if reply is None:
            return None
        assert isinstance(reply, Reserved)
        return [
            HeldChunks(g.submission_id, g.block, g.mask, reply.reservation_id, g.attempt, g.mask, g.mac)
            for g in reply.grants
        ]

    def complete(self, held: HeldChunks, size_bytes: int) -> bool:
        result = msgspec.Raw(msgspec.msgpack.encode([self.rng.randbytes(size_bytes)] * held.mask.bit_count()))
        reply = self.ask(Complete(next(self.ids), [Completion(held, result)]))
        if reply is None:
            return False
        assert reply == Completed(next_id(reply)), reply
        self.completed[held.submission_id] += held.mask.bit_count()
        return True

    def by_submissions(self) -> None:
        size = self.rng.choice([0, 100, 5_000, 60_000])
        while self.submit(size) is not None:
            size = max(size, 1_000)

    def by_content(self) -> None:
        """Files in the store, as a producer writes them, until one does not fit."""
        while True:
            number = self.submit(100)
            if number is None:
                return
            folder = self.disk / "content" / self.key.hex()
            try:
                folder.mkdir(parents=True)
                (folder / "0.part").write_bytes(self.rng.randbytes(self.rng.choice([200_000, 1_000_000])))
            except OSError:
                self.by_submissions()
                return

    def by_results(self) -> None:
        while True:
            if self.submit(10, 64) is None:
                return
            while held := self.reserve(self.rng.choice([1, 8])):
                if not self.complete(held[0], self.rng.choice([100, 4_000])):
                    return

    def by_history(self) -> None:
        self.submit(10, 1)
        while True:
            held = self.reserve(1)
            if held is None:
                return
            if not held and self.submit(10, 1) is None:
                return
            for one in held:
                failure = Failure(one, "x" * self.rng.choice([50, 16_000]), delay_s=0.0)
                if self.ask(Fail(next(self.ids), [failure])) is None:
                    return

    def by_backup(self) -> None:
        while True:
            if self.submit(60_000) is None:
                return
            path = self.disk / f"{self.rng.random()}.backup"
            reply = self.client.ask(Backup(next(self.ids), str(path)))
            if isinstance(reply, ErrorReply):
                assert reply.code in FULL, reply
                assert not path.exists()
                self.by_submissions()
                return
            assert isinstance(reply, Changed)

    def by_others(self) -> None:
        """Somebody else's file takes all but a few blocks, or all."""
        path = self.disk / "somebody's"
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(path, max(path.stat().st_size - 4096 * self.rng.choice([0, 0, 1, 7, 40]), 0))
        self.rng.choice([self.by_submissions, self.by_results, self.by_history, self.by_content])()

    # --- what makes room ---

    def follow(self) -> None:
        """Do what the hint says, and nothing else, until there is room."""
        for _ in range(40):
            with contextlib.suppress(TimeoutError, AssertionError):
                wait_until(self.is_running, 4, "there is room")
                return
            assert self.ask(Reserve(next(self.ids), 1)) is None, "it says that it is full"
            commands = COMMAND.findall(self.hint)
            if OTHERS in self.hint:
                for path in self.disk.iterdir():
                    if path.name == "somebody's" or path.suffix == ".backup":
                        path.unlink()
            else:
                assert commands, f"{self.hint}\n{self.picture()}"
            for command in commands:
                self.shell(command)
            removed = self.removals.read_text().split() if self.removals.exists() else []
            for number in map(int, removed):
                if number in self.completed and isinstance(self.client.ask(Show(next(self.ids), number)), ErrorReply):
                    del self.completed[number]
            self.removals.unlink(missing_ok=True)
        raise AssertionError(f"there is no way out: {self.hint} {self.picture()}")

    def shell(self, command: str) -> None:
        """Run a command as somebody would who reads it in a hint; what `opsq rm` is given is written down."""
        environment = os.environ | {
            "OPSQ_STATE_DIR": str(self.disk),
            "PATH": f"{self.removals.parent}:{os.environ['PATH']}",
        }
        self.client.close()  # it sends no heartbeats meanwhile
        run = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=120)
        self.client = self._connect()
        # Refused once more (by xargs: 123), it says so, and is sent again. Some of it may be done: not found, then.
        assert run.returncode in {0, 3, 6, 123}, (command, self.hint, run)

    def picture(self) -> str:
        """What lies on the disk."""
        listing = subprocess.run(["du", "-a", str(self.disk)], capture_output=True, text=True, check=False).stdout
        log = Path(self.settings.log_path).read_text()[-3_000:]
        return f"{self.client.ask(Status(next(self.ids)))}\n{listing[-3_000:]}\n{log}"

    def is_running(self) -> bool:
        reply = self.client.ask(Reserve(next(self.ids), 1, "SelectOnly(nothing=1)"))
        return not isinstance(reply, ErrorReply)

    def check(self) -> None:
        """What was acknowledged is there."""
        for number, count in self.completed.items():
            reply = self.client.ask(Show(next(self.ids), number))
            assert isinstance(reply, Shown), reply
            assert reply.submission.completed_count >= count, (number, count)

    def restart(self) -> None:
        """While the disk is full: as an operator does it, or by a kill."""
        self.client.close()
        if self.rng.random() < 0.5:
            lifecycle.stop(self.settings)
        else:
            kill(self.settings)
        lifecycle.start(self.settings)
        self.client = self._connect()

    def clear(self) -> None:
        """Give the next fill a disk that is mostly empty."""
        for path in self.disk.iterdir():
            if path.name == "somebody's" or path.suffix == ".backup":
                path.unlink()


def next_id(reply: object) -> int:
    return int(getattr(reply, "id", 0))


def test_every_fill_keeps_what_was_acknowledged_and_ends_by_what_the_hint_says(
    small_disk: Path | None, tmp_path: Path
) -> None:
    if small_disk is None:
        return
    kinds: list[Callable[[Filler], None]] = [
        Filler.by_submissions,
        Filler.by_content,
        Filler.by_results,
        Filler.by_history,
        Filler.by_backup,
        Filler.by_others,
        Filler.by_others,
    ]
    settings = settings_of(small_disk)
    lifecycle.start(settings)
    try:
        filler = Filler(small_disk, settings, random.Random(SEED), tmp_path)
        for number in range(FILLS):
            kind = kinds[number % len(kinds)]
            print(f"fill {number}: {kind.__name__}", flush=True)
            kind(filler)
            filler.check()
            if filler.rng.random() < 0.4:
                filler.restart()
                filler.check()
            filler.follow()
            filler.check()
            filler.clear()
            assert filler.submit(10) is not None, "there is room again"
        filler.client.close()
        lifecycle.stop(settings)
    finally:
        if lifecycle.is_locked(settings.lock_path):
            kill(settings)
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()
