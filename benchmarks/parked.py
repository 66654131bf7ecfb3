"""Ten thousand waiting consumers with fifty strategies: their cost while idle, and how soon a submission reaches all.

The others that ask meanwhile live in a process of their own, so that they do not wait for the consumers of this one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import selectors
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from harness import Benchmark, Context, Row, at_most, main, median, quantile
from opsq.wire.messages import (
    Alive,
    Complete,
    Completed,
    Completion,
    Heartbeat,
    NewSubmission,
    Reply,
    Reserve,
    Reserved,
    Show,
    Shown,
    Submit,
    Submitted,
)
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon, raise_descriptor_limit
from ours.engine import EngineAlone
from ours.named import fifty, metadata_of

_OWN_DESCRIPTORS = 200
_WATCHED_S = 60
_DEADLINE_S = 60.0


def measure(context: Context) -> Iterator[Row]:
    """First the engine alone, where statements can be counted; then the daemon."""
    consumers_count = context.size(10_000, 1000)
    what = f"{consumers_count} parked consumers, 50 strategies"
    context.say(f"{what}: statements while nothing happens")
    folder = context.folder("engines")
    parked = _statements(folder / "parked.sqlite", consumers_count)
    alone = _statements(folder / "alone.sqlite", 0)
    note = f"with heartbeats and ticks, in {_WATCHED_S} s of its clock; {alone} with nobody parked"
    yield Row(
        f"{what}: statements that they cost before the submit",
        "statements",
        parked - alone,
        at_most(0, "statements"),
        note=note,
    )

    raise_descriptor_limit()
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(Daemon(context.folder("opsq"), connection_limit="20000", heartbeat_s="600"))
        producer = opened.enter_context(connect(daemon))
        ours, theirs = multiprocessing.Pipe()
        asker = multiprocessing.get_context("spawn").Process(
            target=_ask_on, args=(daemon.state_dir, theirs), daemon=True
        )
        asker.start()
        opened.callback(asker.terminate)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        context.say(f"{what}: connecting")
        consumers = [opened.enter_context(connect(daemon)) for _ in range(min(consumers_count, most))]
        taken, others, used = [], [], []
        for number in range(context.pairs + 1):
            context.say("submit")
            started, ended, asked, used_s = _round(daemon, producer, consumers, consumers_count, ours)
            if number:  # the first one warms up
                used.append(used_s)
                taken.append(ended - started)
                others += [
                    answered_at - asked_at
                    for asked_at, answered_at in asked
                    if asked_at < ended and answered_at > started
                ]
    note = (
        f"{len(consumers)} connections; from {min(taken):.2f} to {max(taken):.2f} s;"
        f" processor time of the daemon {median(used):.2f} s"
    )
    yield Row(
        f"{what}: submit of {consumers_count} chunks until the last has one",
        "s",
        median(taken),
        at_most(1.0, "s"),
        note=note,
        samples={"ours": taken},
    )
    note = f"{len(others)} requests, p50 {quantile(others, 0.5) * 1e3:.1f} ms, longest {max(others) * 1e3:.1f} ms"
    yield Row(f"{what}: other requests meanwhile, p99", "s", quantile(others, 0.99), at_most(0.050, "s"), note=note)


# --- the engine alone ---------------------------------------------------------------------------------------


def _statements(path: Path, consumers_count: int) -> int:
    """How many statements an engine runs in an idle minute, with heartbeats every five seconds."""
    engine = EngineAlone(path, is_durable=False)
    # Everything is reserved, so each strategy has fronts that must not be walked again.
    engine.submit(1, 100, [metadata_of(0)])
    engine.ask(Reserve(1, 100), engine.connect("holder"))
    strategies = fifty()
    peers = [engine.connect("parked") for _ in range(consumers_count)]
    for number, peer in enumerate(peers):
        if engine.ask(Reserve(1, 1, strategies[number % len(strategies)], wait_s=None), peer):
            raise RuntimeError("a consumer was to be parked and was answered")
    engine.pass_time(2.0)
    with engine.traced() as statements:
        for second in range(_WATCHED_S):
            engine.pass_time(1.0)
            for peer in peers if second % 5 == 0 else ():
                engine.ask(Heartbeat(2), peer)
    engine.close()
    return len(statements)


# --- the daemon ---------------------------------------------------------------------------------------------


def _round(
    daemon: Daemon, producer: Client, consumers: list[Client], calls_count: int, asker: Pipe
) -> tuple[float, float, list[tuple[float, float]], float]:
    """Park, submit, complete: when the submit was sent, when the last consumer had a chunk, and processor time."""
    strategies = fifty()
    for number in range(calls_count):
        consumer = consumers[number % len(consumers)]
        consumer.send([Reserve(consumer.next_id(), 1, strategies[number % len(strategies)], wait_s=None)])
    for consumer in consumers:
        consumer.call(Heartbeat(consumer.next_id()), Alive)  # answered: the daemon has read the reserve before it
    asker.send("begin")
    asker.recv()
    cpu_before_s = daemon.cpu_s()
    started = time.perf_counter()
    producer.send([Submit(producer.next_id(), [NewSubmission(os.urandom(16), calls_count, metadata=metadata_of(0))])])
    came = _gather(consumers, calls_count)
    ended = time.perf_counter()
    used_s = daemon.cpu_s() - cpu_before_s
    producer.await_one(Submitted)
    asker.send("end")
    asked = asker.recv()
    for consumer, reply in came:
        if not isinstance(reply, Reserved) or loads.chunks_of(reply) != 1:
            raise RuntimeError(f"one chunk was to come; the daemon sent {reply}")
        consumer.send([Complete(consumer.next_id(), [Completion(loads.held(reply.reservation_id, reply.grants[0]))])])
    for _, reply in _gather(consumers, calls_count):
        if not isinstance(reply, Completed) or reply.refusals:
            raise RuntimeError(f"a completion was refused: {reply}")
    return started, ended, asked, used_s


def _gather(consumers: list[Client], count: int) -> list[tuple[Client, Reply]]:
    """The next `count` replies on these connections."""
    came: list[tuple[Client, Reply]] = []
    deadline = time.monotonic() + _DEADLINE_S
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer, selectors.EVENT_READ, consumer)
        while len(came) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count - len(came)} of {count} replies have not come within {_DEADLINE_S:g} s")
            for key, _ in selector.select(1.0):
                came += [(key.data, reply) for reply in key.data.receive(0.0)]
    return came


def _ask_on(state_dir: Path, pipe: Pipe) -> None:
    """Submit and show, one request after the other, from each `begin` to its `end`.

    Then tell when each was asked and answered.
    """
    daemon = Daemon(state_dir)
    with Client.open(str(daemon.socket_path), name="asker") as client:
        while pipe.recv() == "begin":
            asked: list[tuple[float, float]] = []
            pipe.send("begun")
            while not pipe.poll():
                started = time.perf_counter()
                made = client.call(Submit(client.next_id(), [NewSubmission(os.urandom(16), 0)]), Submitted).created[0]
                asked.append((started, time.perf_counter()))
                started = time.perf_counter()
                client.call(Show(client.next_id(), made.submission_id), Shown)
                asked.append((started, time.perf_counter()))
            pipe.recv()
            pipe.send(asked)


BENCHMARK = Benchmark("parked", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
