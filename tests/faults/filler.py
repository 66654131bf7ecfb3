"""Fills one small disk, in every way that takes room there, and makes room again as a refusal says.

Knows what was acknowledged; must not make room in any other way than what the refusals name, run by a shell.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from acceptance import starter
from daemons import Client, kill
from opsq.daemon import lifecycle
from opsq.settings import Settings
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
    List,
    Listed,
    NewSubmission,
    Pause,
    Request,
    Reserve,
    Reserved,
    Resume,
    Status,
    Submit,
    Submitted,
)
from waiting import wait_until

FULL = {"storage_full", "no_room"}
COMMAND = re.compile(r"`([^`]*)`")
RETURNING = "is giving back"
OTHERS = "not opsq's"
ROUNDS = 40
SETTLE_S = 4.0
"""For how long there may be no room after what was to make some was done; then it is done again."""
NEAR_BYTES = 700 << 10
"""Up to here a disk is filled fast, and from there slowly."""
LINE = b"2026-11-29T00:00:00.000Z INFO " + b"x" * 480 + b"\n"

OPSQ = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1] == "rm":
    with open({removals!r}, "a") as file:
        print(*sys.argv[2:], file=file)
ours, theirs = socket.socketpair()
control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
control.connect({place!r})
socket.send_fds(control, [b"!"], [theirs.fileno(), 0, 1, 2])
theirs.close()
ours.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), True]).encode() + b"\\n")
pid, status = ours.makefile().read().split()
sys.exit(int(status))
"""
"""`opsq` for the shell: has `acceptance.starter` fork the command line, and writes down what `opsq rm` is given."""


class Shell:
    """Runs the commands that a refusal names.

    Args:
        programs: a folder for `opsq`.
        state_dir: the state folder that it is to use.
    """

    def __init__(self, programs: Path, state_dir: Path) -> None:
        self._removals = programs / "removals"
        self._environ = os.environ | {"OPSQ_STATE_DIR": str(state_dir), "PATH": f"{programs}:{os.environ['PATH']}"}
        place = str(programs / "starter.sock")
        program = programs / "opsq"
        program.write_text(OPSQ.format(python=sys.executable, removals=str(self._removals), place=place))
        program.chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
            control.bind(place)
            command = [sys.executable, "-P", starter.__file__, str(control.fileno())]
            self._starter = subprocess.Popen(command, pass_fds=[control.fileno()], stdin=subprocess.DEVNULL)

    def run(self, command: str) -> None:
        """Run one; refused once more, it says so."""
        run = subprocess.run(command, shell=True, env=self._environ, capture_output=True, text=True, timeout=120)
        # Refused (by xargs: 123), it is sent again. Some of it may be done: not found, then.
        assert run.returncode in {0, 3, 6, 123}, (command, run)

    def take_removals(self) -> Iterable[int]:
        """The submissions that `opsq rm` was given."""
        words = self._removals.read_text().split() if self._removals.exists() else []
        self._removals.unlink(missing_ok=True)
        return map(int, words)

    def close(self) -> None:
        """End what forks."""
        self._starter.kill()
        self._starter.wait()


class Filler:
    """Fills one disk, and knows what was acknowledged."""

    def __init__(self, disk: Path, settings: Settings, rng: random.Random, shell: Shell) -> None:
        self.disk = disk
        self.settings = settings
        self.rng = rng
        self.shell = shell
        self.client = self._connect()
        self.completed: dict[int, int] = {}
        """Of each submission, how many chunks are surely completed."""
        self.hint = ""
        self.ids = iter(range(10, 1 << 40))

    def _connect(self) -> Client:
        client = Client(self.settings.socket)
        client.greet("filler")
        return client

    def free_bytes(self) -> int:
        """What is left on the disk."""
        left = os.statvfs(self.disk)
        return left.f_bavail * left.f_frsize

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
        assert isinstance(reply, Completed), reply
        self.completed[held.submission_id] += held.mask.bit_count()
        return True

    def size(self, *sizes: int) -> int:
        """One of some sizes of what is to be written; the largest as long as there is much room."""
        return self.rng.choice(sizes) if self.free_bytes() < NEAR_BYTES else max(sizes)

    def by_submissions(self) -> None:
        while self.submit(self.size(0, 100, 5_000, 60_000)) is not None:
            pass

    def by_content(self) -> None:
        """Files in the store, as a producer writes them, until one does not fit."""
        while True:
            number = self.submit(100)
            if number is None:
                return
            folder = self.disk / "content" / self.key.hex()
            try:
                folder.mkdir(parents=True)
                (folder / "0.part").write_bytes(self.rng.randbytes(self.size(200_000, 1_000_000)))
            except OSError:
                self.by_submissions()
                return

    def by_results(self) -> None:
        while True:
            if self.submit(10, 64) is None:
                return
            while held := self.reserve(8 if self.free_bytes() > NEAR_BYTES else self.rng.choice([1, 8])):
                if not self.complete(held[0], self.size(100, 4_000)):
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
                failure = Failure(one, "x" * self.size(50, 16_000), delay_s=0.0)
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

    def by_log(self) -> None:
        """Years of records, and then acts, which are logged and audited."""
        self._write_log(self.rng.choice(["opsq.log", "opsq.log.1"]))

    def by_audit(self) -> None:
        self._write_log(self.rng.choice(["audit.jsonl", "audit.jsonl.1"]))

    def _write_log(self, name: str) -> None:
        with contextlib.suppress(OSError), (self.disk / name).open("ab", buffering=0) as file:
            for _ in range(max(self.free_bytes() - NEAR_BYTES, 0) // (64 * len(LINE))):
                file.write(LINE * 64)
        while True:
            pairs = {"nothing": "x" * self.rng.choice([10, 900])}
            for request in (Pause(next(self.ids), pairs), Resume(next(self.ids), pairs)):
                if self.ask(request) is None:
                    return
            if self.free_bytes() < 8192:
                self.by_submissions()
                return

    def by_others(self) -> None:
        """Somebody else's file takes all but a few blocks, or all."""
        path = self.disk / "somebody's"
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(path, max(path.stat().st_size - 4096 * self.rng.choice([0, 0, 1, 7, 40]), 0))

    # --- what makes room ---

    def follow(self) -> None:
        """Do what the hint says, and nothing else, until there is room."""
        for _ in range(ROUNDS):
            if self.is_running():
                return
            commands = COMMAND.findall(self.hint)
            if OTHERS in self.hint:
                self.delete_others()
            else:
                assert commands or RETURNING in self.hint, f"{self.hint}\n{self.picture()}"
            self.client.close()  # it sends no heartbeats meanwhile
            for command in commands:
                self.shell.run(command)
            self.client = self._connect()
            removed = [number for number in self.shell.take_removals() if number in self.completed]
            there = self.counts() if removed else {}
            for number in removed:
                if number not in there:
                    del self.completed[number]
            with contextlib.suppress(AssertionError):
                wait_until(self.is_running, SETTLE_S, "there is room")
        raise AssertionError(f"there is no way out: {self.hint} {self.picture()}")

    def delete_others(self) -> None:
        """What is not opsq's goes."""
        for path in self.disk.iterdir():
            if path.name == "somebody's" or path.suffix == ".backup":
                path.unlink()

    def picture(self) -> str:
        """What lies on the disk."""
        listing = subprocess.run(["du", "-a", str(self.disk)], capture_output=True, text=True, check=False).stdout
        log = Path(self.settings.log_path).read_text()[-3_000:]
        return f"{self.client.ask(Status(next(self.ids)))}\n{listing[-3_000:]}\n{log}"

    def is_running(self) -> bool:
        return self.ask(Reserve(next(self.ids), 1, "SelectOnly(nothing=1)")) is not None

    def counts(self) -> dict[int, int]:
        """Of each submission that is there, how many chunks are completed."""
        found: dict[int, int] = {}
        before: int | None = None
        while True:
            reply = self.client.ask(List(next(self.ids), before=before, limit=10_000))
            assert isinstance(reply, Listed), reply
            found |= {one.submission_id: one.completed_count for one in reply.submissions}
            before = reply.next_before
            if before is None:
                return found

    def check(self) -> None:
        """What was acknowledged is there."""
        there = self.counts()
        lost = [
            f"{number}: {count} {there.get(number)}"
            for number, count in self.completed.items()
            if there.get(number, -1) < count
        ]
        assert lost == []

    def restart(self) -> None:
        """While the disk is full: as an operator does it, or by a kill."""
        self.client.close()
        if self.rng.random() < 0.5:
            lifecycle.stop(self.settings)
        else:
            kill(self.settings)
        lifecycle.start(self.settings)
        self.client = self._connect()


KINDS: list[Callable[[Filler], None]] = [
    Filler.by_submissions,
    Filler.by_content,
    Filler.by_results,
    Filler.by_history,
    Filler.by_backup,
    Filler.by_log,
    Filler.by_audit,
]
"""Each way to fill a disk, and each is what is being done when others fill it."""
