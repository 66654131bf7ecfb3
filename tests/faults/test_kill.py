"""A daemon killed under load keeps what it acknowledged, and never hands out completed chunks again."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

from daemons import Client, end, kill, settings_of
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database
from opsq.wire.messages import (
    VERSION,
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    Fail,
    Failure,
    Grant,
    HeldChunks,
    Hello,
    NewSubmission,
    Reply,
    Request,
    Reserve,
    Reserved,
    Shown,
    Submit,
    Submitted,
    Wait,
    Welcome,
)
from waiting import wait_until

KILLS = 50
STRATEGIES = ("Random", "OldestFirst", "NewestFirst", "Fair(tenant)", "MaxSimultaneous(tenant, 40, OldestFirst)")


class Ledger:
    """What the daemon has acknowledged, whatever happened to it since."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.submitted: dict[int, int] = {}
        self.completed: set[tuple[int, int]] = set()
        self.offered_again: list[tuple[int, int]] = []
        self.is_over = threading.Event()


def chunks_of(grants: list[Grant]) -> Iterator[tuple[int, int]]:
    """The chunks of grants, one by one."""
    for grant in grants:
        for bit in range(64):
            if grant.mask >> bit & 1:
                yield grant.submission_id, grant.block * 64 + bit


def held(reserved: Reserved, grant: Grant) -> HeldChunks:
    return HeldChunks(
        grant.submission_id, grant.block, grant.mask, reserved.reservation_id, grant.attempt, grant.mask, grant.mac
    )


class Link:
    """A client that goes on with a new connection whenever the daemon has died."""

    def __init__(self, settings: Settings, ledger: Ledger, name: str) -> None:
        self._settings, self._ledger, self._name = settings, ledger, name
        self._client: Client | None = None
        self._number = 1

    def next_id(self) -> int:
        self._number += 1
        return self._number

    def ask(self, request: Request, count: int = 1) -> list[Reply] | None:
        """The replies to a request; None when the daemon died, or is not there yet."""
        try:
            if self._client is None:
                self._client = Client(self._settings.socket)
                self._client.send(Hello(1, VERSION, self._name))
                if not isinstance(self._client.receive(), Welcome):
                    raise ConnectionError
            self._client.send(request)
            replies: list[Reply] = []
            while len(replies) < count:
                reply = self._client.receive()
                if reply is None:
                    raise ConnectionError
                if getattr(reply, "id", None) == getattr(request, "id", 0):
                    replies.append(reply)
        except OSError:
            self.close()
            self._ledger.is_over.wait(0.01)
            return None
        return replies

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def produce(settings: Settings, ledger: Ledger, seed: int) -> None:
    """Submit; what was not answered is sent again under the same key, and must not be stored twice."""
    rng = random.Random(seed)
    link = Link(settings, ledger, "producer")
    while not ledger.is_over.is_set():
        new = NewSubmission(
            rng.randbytes(16), rng.choice((1, 3, 64, 65, 300)), metadata={"tenant": rng.randrange(4)}, max_attempts=1000
        )
        replies = None
        while replies is None and not ledger.is_over.is_set():
            replies = link.ask(Submit(link.next_id(), [new]))
        if replies and isinstance(replies[0], Submitted):
            with ledger.lock:
                ledger.submitted[replies[0].created[0].submission_id] = new.chunks_count
    link.close()


def consume(settings: Settings, ledger: Ledger, seed: int, until_empty: bool = False) -> None:
    """Reserve and complete; sometimes fail, sometimes forget what was reserved."""
    rng = random.Random(seed)
    link = Link(settings, ledger, "consumer")
    request: Reserve | CompleteAndReserve | None = None
    done: list[tuple[int, int]] = []
    while until_empty or not ledger.is_over.is_set():
        strategy = "Random" if until_empty else rng.choice(STRATEGIES)
        if request is None:
            done = []
            request = Reserve(link.next_id(), rng.choice((1, 10, 200)), strategy, 0.2, until_empty=until_empty)
        replies = link.ask(request, 1 if isinstance(request, Reserve) else 2)
        if replies is None:
            if until_empty:
                raise AssertionError("the daemon is gone")
            request = None
            continue
        if isinstance(request, CompleteAndReserve) and isinstance(replies[0], Completed) and not replies[0].refusals:
            with ledger.lock:
                ledger.completed.update(done)
        reserved = replies[-1]
        assert isinstance(reserved, Reserved), reserved
        if reserved.is_empty:
            break
        done = list(chunks_of(reserved.grants))
        with ledger.lock:
            ledger.offered_again += [chunk for chunk in done if chunk in ledger.completed]
        if not done:
            request = None
        elif not until_empty and rng.random() < 0.1:
            link.ask(
                Fail(
                    link.next_id(),
                    [Failure(held(reserved, grant), "on purpose", delay_s=0.1) for grant in reserved.grants],
                )
            )
            request = None
        elif not until_empty and rng.random() < 0.05:
            request = None
        else:
            completions = [Completion(held(reserved, grant)) for grant in reserved.grants]
            request = CompleteAndReserve(
                link.next_id(), completions, rng.choice((1, 10, 200)), strategy, 0.2, until_empty=until_empty
            )
    link.close()


def test_daemon_killed_fifty_times_under_load_loses_nothing_acknowledged(runtime_dir: Path) -> None:
    """Producers and consumers go on through every death.

    In the end all that was acknowledged is completed, each chunk once.
    """
    settings = settings_of(runtime_dir, reservation_s="30", heartbeat_s="1")
    ledger = Ledger()
    rng = random.Random()
    seed = rng.randrange(1 << 32)
    print(f"seed {seed}")
    rng.seed(seed)
    workers = [threading.Thread(target=produce, args=(settings, ledger, rng.random())) for _ in range(2)]
    workers += [threading.Thread(target=consume, args=(settings, ledger, rng.random())) for _ in range(3)]
    assert lifecycle.start(settings).status == "started"
    try:
        for worker in workers:
            worker.start()
        for _ in range(KILLS):
            before = len(ledger.completed)
            wait_until(lambda before=before: len(ledger.completed) > before, 180, "work goes on")
            ledger.is_over.wait(rng.uniform(0, 0.15))
            kill(settings)
            assert lifecycle.start(settings).status == "started"
    finally:
        ledger.is_over.set()
        for worker in workers:
            worker.join()
    try:
        with contextlib.ExitStack() as stack:
            consume(settings, ledger, 1, until_empty=True)
            client = stack.enter_context(Client(settings.socket))  # it sends no heartbeats
            client.greet("checker")
            assert ledger.offered_again == []
            for number, (submission_id, chunks_count) in enumerate(ledger.submitted.items(), 100):
                shown = client.ask(Wait(number, submission_id))
                assert isinstance(shown, Shown), shown
                state = shown.submission
                assert (state.state, state.completed_count, state.chunks_count) == (
                    "completed",
                    chunks_count,
                    chunks_count,
                )
        assert ledger.completed, "no completion was acknowledged: the load was no load"
    finally:
        end(settings)
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()


def test_first_submit_after_the_death_of_an_empty_daemon_works(runtime_dir: Path) -> None:
    """`kill -9` on an empty queue, restart, submit."""
    settings = settings_of(runtime_dir)
    assert lifecycle.start(settings).status == "started"
    kill(settings)
    try:
        assert lifecycle.start(settings).status == "started"
        with Client(settings.socket) as client:
            client.greet()
            reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)]))
            assert isinstance(reply, Submitted), reply
    finally:
        end(settings)


def test_completion_sent_twice_around_a_death_is_answered_as_done(runtime_dir: Path) -> None:
    """A client that resends a completion with the same token causes no conflict."""
    settings = settings_of(runtime_dir)
    assert lifecycle.start(settings).status == "started"
    try:
        with Client(settings.socket) as client:
            client.greet()
            client.ask(Submit(2, [NewSubmission(os.urandom(16), 70)]))
            reserved = client.ask(Reserve(3, 70))
            assert isinstance(reserved, Reserved)
            complete = Complete(4, [Completion(held(reserved, grant)) for grant in reserved.grants])
            assert client.ask(complete) == Completed(4)
        kill(settings)
        assert lifecycle.start(settings).status == "started"
        with Client(settings.socket) as client:
            client.greet()
            assert client.ask(complete) == Completed(4)
    finally:
        end(settings)
