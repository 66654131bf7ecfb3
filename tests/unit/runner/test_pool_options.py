"""The pool against a scripted daemon.

How many chunks, for how long, what is told of it, and a name for one consumer alone.

How these look to a shell user is in tests/acceptance/test_consume_options.py.
"""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.client.sync import consumer, link
from opsq.errors import NameTaken
from opsq.runner import chunk_input, deadlines, polled_consumer, pool, stopping, verdict
from opsq.runner.pool import Outcome
from opsq.runner.process.supervisor import Child, Range, Supervisor
from opsq.runner.progress import PoolProgress
from opsq.wire.messages import (
    ChunkMask,
    Claim,
    Complete,
    CompleteAndReserve,
    Release,
    Reply,
    Request,
    Reserve,
    Revoked,
)
from scripted_pool import COUNTS, SUBMISSION, Daemon, Witness, failures_of, mask_of, reserved_counts


@pytest.fixture
def pool_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the pool and its endings take for the time; the test moves it."""
    now = [1000.0]
    for module in (pool, deadlines, stopping):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


# --- how many, how long -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_no_more_is_reserved_than_may_still_be_run(jobs: int) -> None:
    daemon = Daemon([b"exit 0", b"exit 1"] * 20)
    outcome = daemon.consume("sh", jobs=jobs, max_chunks=11)
    assert (outcome.completed_count + outcome.failed_count, outcome.released_count, daemon.next) == (11, 0, 11)
    assert max(reserved_counts(daemon)) <= 11


def test_chunk_that_is_taken_away_does_not_count_towards_the_chunks_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon([b"", b"a", b"b"])
    real = verdict.VerdictGiver.give_verdict

    def judge(self: verdict.VerdictGiver, finished: Any, chunk: Any, log: Any, why: Any, lost_code: str) -> bool:
        return real(self, finished, chunk, log, why, "cancelled" if chunk.index == 0 else lost_code)

    monkeypatch.setattr(verdict.VerdictGiver, "give_verdict", judge)
    assert daemon.consume("cat", max_chunks=1) == Outcome(1, 0, 0, 0)
    assert mask_of(daemon.completions()) == 0b10


def test_after_the_time_to_stop_nothing_is_begun_and_what_runs_is_completed(
    pool_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Supervisor.start

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        pool_clock[0] += 60.0
        return real(self, *words, **named)

    monkeypatch.setattr(Supervisor, "start", start)
    daemon = Daemon([b"a"] * 10)
    assert daemon.consume("cat", jobs=2, stop_after_s=100.0) == Outcome(2, 0, 0, 0)
    assert daemon.next <= 6


def test_program_that_runs_too_long_is_terminated_then_killed_and_has_failed(
    pool_clock: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    events: list[tuple[str, float]] = []
    for name in ("terminate", "kill"):
        real = getattr(Supervisor, name)
        monkeypatch.setattr(
            Supervisor,
            name,
            lambda self, child, real=real, name=name: (events.append((name, pool_clock[0] - 1000)), real(self, child))[
                1
            ],
        )
    real_poll = Supervisor.poll

    def poll(self: Supervisor, timeout_s: float | None = None) -> Any:
        """Wait for nothing but the program's own start: time passes as the pool says that it will wait."""
        while len(self) and not (tmp_path / "deaf").exists():
            real_poll(self, 0.01)
        if len(self) and not any(name == "kill" for name, _ in events):
            pool_clock[0] += timeout_s or 0.0
            return real_poll(self, 0.0)
        return real_poll(self, timeout_s)

    monkeypatch.setattr(Supervisor, "poll", poll)
    daemon = Daemon([b""])
    script = f"trap '' TERM; : > {tmp_path}/deaf; while :; do sleep 0.01; done"
    assert daemon.consume("sh", "-c", script, max_runtime_s=90.0, grace_s=7.0) == Outcome(0, 1, 0, 0, child_status=137)
    (failure,) = failures_of(daemon)
    assert (failure.reason, failure.signal) == ("ran longer than 90s", 9)
    first = dict(reversed(events))
    assert 90 <= first["terminate"] < 91
    assert first["kill"] - first["terminate"] == 7.0


def test_chunk_that_is_taken_away_lets_its_program_end_if_that_was_asked_for(tmp_path: Any) -> None:
    """A completion that comes late is taken as long as nobody else has finished the chunk."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    daemon = Daemon([b"a"])

    def take_away() -> None:
        fifo.read_bytes()
        assert daemon.wire is not None
        daemon.wire.push(Revoked([ChunkMask(SUBMISSION, 0, 1)], "reservation_lost"))
        while not daemon.witness.sentences:
            os.sched_yield()
        (tmp_path / "go").touch()

    thread = threading.Thread(target=take_away)
    thread.start()
    script = f"echo > {fifo}; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; cat"
    assert daemon.consume("sh", "-c", script, on_lost="finish") == Outcome(1, 0, 0, 0)
    thread.join()
    assert mask_of(daemon.completions()) == 0b1


# --- how soon ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_chunks", [2, None])
def test_verdict_is_held_for_others_to_travel_with_but_no_longer_than_50_ms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, max_chunks: int | None
) -> None:
    """Not at all if a slot waits for a chunk, for which it may make room under a limit.

    The clock of the pool moves only while it waits, by as much as it would wait.
    """
    now = [1000.0]
    for module in (pool, deadlines, link, consumer, polled_consumer):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen: dict[str, float] = {}
    real_poll, real_answer = Supervisor.poll, Daemon.answer

    def poll(self: Supervisor, timeout_s: float | None = None) -> Any:
        """While a program might still end by itself, wait for it; then let the time pass."""
        ended = real_poll(self, 0.0)
        while not ended and len(self) and "ended" not in seen:
            ended = real_poll(self, 0.01)
        if ended:
            seen.setdefault("ended", now[0])
        elif "sent" in seen:
            return real_poll(self, timeout_s)
        elif "ended" in seen:
            now[0] += timeout_s or 0.0
        return ended

    def answer(self: Daemon, request: Request) -> list[Reply]:
        if isinstance(request, Complete | CompleteAndReserve) and "sent" not in seen:
            seen["sent"] = now[0]
            (tmp_path / "go").touch()  # the other program runs until then
        return real_answer(self, request)

    monkeypatch.setattr(Supervisor, "poll", poll)
    monkeypatch.setattr(Daemon, "answer", answer)
    daemon = Daemon([b"true", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done".encode()])
    assert daemon.consume("sh", jobs=2, max_chunks=max_chunks) == Outcome(2, 0, 0, 0)
    held_s = seen["sent"] - seen["ended"]
    assert held_s == 0 if max_chunks is None else 0 < held_s <= 0.05


def test_what_is_due_does_not_wait_until_many_slots_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_start, real_poll = Supervisor.start, polled_consumer.PolledConsumer.poll

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        events.append("start")
        return real_start(self, *words, **named)

    def poll(self: polled_consumer.PolledConsumer) -> None:
        events.append("poll")
        real_poll(self)

    monkeypatch.setattr(Supervisor, "start", start)
    monkeypatch.setattr(polled_consumer.PolledConsumer, "poll", poll)
    monkeypatch.setattr(
        polled_consumer.PolledConsumer, "next_poll_s", lambda self: 0.0 if events[-2:] == ["start", "start"] else 1.0
    )
    daemon = Daemon([b""] * 9)
    assert daemon.consume("true", jobs=9) == Outcome(9, 0, 0, 0)
    assert "start start start" not in " ".join(events)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_viewer_is_given_what_programs_say_and_how_each_ended() -> None:
    daemon = Daemon([b"echo oh >&2", b"exit 4"])
    daemon.consume("sh")
    assert b"".join(piece for name, piece in daemon.witness.stderr if name == f"{SUBMISSION}/0") == b"oh\n"
    assert [(end.index, end.outcome, end.exit_status) for end in daemon.witness.ends] == [
        (0, "completed", 0),
        (1, "failed", 4),
    ]


def test_nothing_is_begun_while_nobody_reads_and_what_was_reserved_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that comes back finds the work going on."""
    answers = [True] * 3
    monkeypatch.setattr(Witness, "is_congested", property(lambda self: bool(answers) and answers.pop()))
    daemon = Daemon([b"a", b"b", b"c", b"d"])
    real = Daemon.answer
    begun: list[int] = []

    def answer(self: Daemon, request: Request) -> list[Reply]:
        """What comes for a reserve comes when nobody reads any more."""
        if isinstance(request, Reserve) and not begun:
            begun.append(request.count)
            answers.extend([True] * 3)
        return real(self, request)

    monkeypatch.setattr(Daemon, "answer", answer)
    assert daemon.consume("cat", jobs=2) == Outcome(2, 0, 0, 0)
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b11
    assert mask_of(daemon.completions()) == 0b1100


def test_looks_come_with_what_the_daemon_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    daemon = Daemon([b"x\ny\n"])
    daemon.witness.look_s = 0.01

    def look(self: Witness, view: PoolProgress) -> None:
        if view.running_count:
            self.views.append(view)
            (tmp_path / "seen").touch()

    monkeypatch.setattr(Witness, "look", look)
    daemon.consume("sh", "-c", f"while [ ! -e {tmp_path}/seen ]; do sleep 0.01; done")
    seen = daemon.witness.views[0]
    assert (seen.counts, seen.running_count, seen.submissions) == (COUNTS, 1, [(SUBMISSION, {})])


@pytest.mark.parametrize(
    ("content", "separator", "count"),
    [
        (b"", b"\n", 0),
        (b"a\nb\n", b"\n", 2),
        (b"a\nb", b"\n", 2),
        (b"a--b--", b"--", 2),
        (b"a--b--c", b"--", 3),
        (b"\n", b"\n", 1),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 1 << 18])
def test_operations_are_counted_alike_in_memory_and_in_a_file(
    content: bytes, separator: bytes, count: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(chunk_input, "_READ_BYTES", piece_bytes)
    assert chunk_input.operations_count(content, separator) == count
    path = tmp_path / "content"
    path.write_bytes(b"xx" + content + b"yy")
    with path.open("rb") as file:
        assert chunk_input.operations_count(Range(file.fileno(), 2, len(content)), separator) == count


# --- a name for one consumer alone ------------------------------------------------------------------------------------


def test_name_that_another_has_at_the_start_ends_it_with_nothing_done() -> None:
    daemon = Daemon([b"a"])
    daemon.taken_after = 0
    assert daemon.consume("cat", claim="nightly") == Outcome(0, 0, 0, 0, is_taken=True)
    assert not daemon.sent


def test_name_that_another_took_while_the_daemon_was_away_ends_it_and_its_programs(tmp_path: Any) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    daemon = Daemon([b"a"])
    daemon.taken_after = 1

    def go_away() -> None:
        fifo.read_bytes()  # the program runs
        assert daemon.wire is not None
        daemon.wire.cut()

    thread = threading.Thread(target=go_away)
    thread.start()
    with pytest.raises(NameTaken):
        daemon.consume("sh", "-c", f"echo > {fifo}; while :; do sleep 0.01; done", claim="nightly")
    thread.join()
    first, second = daemon.claims
    assert first == second == Claim("nightly", first.key if first else b"")
