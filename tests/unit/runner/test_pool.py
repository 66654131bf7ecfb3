"""The parts of the pool one by one, and the pool against a scripted daemon.

What is ordered, when, and what each end means.

Real programs under a real daemon are in tests/acceptance and tests/faults.
"""

from __future__ import annotations

import os
import signal
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.client.core import consumer_base
from opsq.client.core.prefetch import SLOTS_AHEAD_LIMIT_COUNT, SlotPrefetch
from opsq.client.sync import verdict_sender
from opsq.content.manifest import Content, Part, pack_numbers
from opsq.errors import ContentChanged, ContentMissing, InvalidStrategy, Refused
from opsq.runner import polled_consumer, pool, stop_signals, verdict
from opsq.runner.pending_failures import PendingFailures
from opsq.runner.pool import Outcome
from opsq.runner.process.supervisor import Child, Supervisor
from opsq.runner.progress import ChunkEnd
from opsq.runner.stop_signals import StopSignals
from opsq.runner.tally import Tally
from opsq.wire.messages import (
    Attachment,
    ChunkMask,
    Completed,
    Dead,
    DeadChunk,
    ErrorReply,
    Fail,
    GetAttachment,
    Refusal,
    Release,
    Reply,
    Request,
    Revoked,
    Started,
)
from scripted_pool import SUBMISSION, Daemon, Witness, failures_of, mask_of

DEADLINE_S = 20
"""When a test gives up waiting."""

# --- ahead ------------------------------------------------------------------------------------------------------------


def test_first_order_fills_the_slots_and_no_more() -> None:
    assert SlotPrefetch(4).next_count(free_count=4, ready_count=0) == 4


def test_long_chunks_are_ordered_only_for_free_slots() -> None:
    """Nothing waits at a busy consumer that another one could work on."""
    prefetch = SlotPrefetch(2)
    prefetch.note_run(30.0)
    assert prefetch.next_count(free_count=0, ready_count=0) == 0
    assert prefetch.next_count(free_count=1, ready_count=0) == 1


def test_short_chunks_are_ordered_ahead_in_doubling_steps() -> None:
    prefetch = SlotPrefetch(2)
    prefetch.note_run(0.001)
    counts = [prefetch.next_count(free_count=2, ready_count=0) for _ in range(4)]
    assert counts == [6, 14, 30, 62]


def test_nothing_is_ordered_while_more_than_half_of_it_is_there() -> None:
    prefetch = SlotPrefetch(1)
    for _ in range(20):
        prefetch.note_run(0.01)
        prefetch.next_count(free_count=1, ready_count=0)
    assert prefetch.next_count(free_count=0, ready_count=13) == 0
    assert prefetch.next_count(free_count=0, ready_count=12) > 0


@given(
    st.integers(1, 4096),
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 4096), st.integers(0, 2000)), max_size=30),
)
def test_order_is_never_above_the_slots_and_the_limit_ahead(jobs: int, steps: list[tuple[float, int, int]]) -> None:
    """And whoever has a free slot and nothing ready always orders something."""
    prefetch = SlotPrefetch(jobs)
    for run_s, free_count, ready_count in steps:
        prefetch.note_run(run_s)
        count = prefetch.next_count(min(free_count, jobs), ready_count)
        assert 0 <= count <= jobs + SLOTS_AHEAD_LIMIT_COUNT
        assert count or ready_count or not free_count


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What `stopping` takes for the time; the test moves it."""
    now = [100.0]
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_signals_are_counted_wake_up_and_have_their_old_meaning_afterwards(clock: list[float]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.count, signals.last) == (1, signal.SIGTERM)
        assert os.read(signals.fileno, 10)
        clock[0] += 1
        os.kill(os.getpid(), signal.SIGINT)
        assert (signals.count, signals.last) == (2, signal.SIGINT)
        signals.drain()
        signals.drain()  # empty, and still no wait
    assert signal.getsignal(signal.SIGTERM) == before


def test_who_does_not_wait_in_poll_is_told_of_each_signal_that_counts(clock: list[float]) -> None:
    told: list[int] = []
    with StopSignals(lambda: told.append(1)):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += 1
        os.kill(os.getpid(), signal.SIGINT)
    assert len(told) == 2


def test_echo_of_a_signal_counts_as_nothing(clock: list[float]) -> None:
    with StopSignals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            clock[0] += stop_signals.ECHO_S / 4
        assert signals.count == 1
        clock[0] += stop_signals.ECHO_S
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.count == 2


def test_second_hang_up_counts_as_nothing(clock: list[float]) -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        clock[0] += 60
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.count == 1


def test_signal_that_the_caller_ignores_stays_ignored() -> None:
    """As under nohup, or in the background of a script."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_each_chunk_is_completed_once_and_the_outcome_counts_them() -> None:
    daemon = Daemon([b"a", b"b", b"c"])
    assert daemon.consume("cat", jobs=2, name="mill") == Outcome(3, 0, 0, 0)
    assert mask_of(daemon.completions()) == 0b111
    assert {one.exit_status for one in daemon.completions()} == {0}
    assert daemon.names == {"mill"}
    assert not daemon.of(Dead)


def test_nothing_to_do_starts_nothing() -> None:
    assert Daemon([]).consume("no-such-program-anywhere") == Outcome(0, 0, 0, 0)


def test_failures_carry_status_signal_and_reason_and_the_dead_are_asked_for() -> None:
    """What died under others, or failed here and lives, is not counted."""
    daemon = Daemon([b"exit 3", b"echo oh >&2; kill -9 $$", b"true"])
    daemon.dead = [DeadChunk(SUBMISSION, index, 1, 0, 0, "", None, None) for index in (1, 2, 60)]
    assert daemon.consume("sh") == Outcome(1, 2, 1, 0, child_status=3)
    failures = {failure.held.mask: failure for request in daemon.of(Fail) for failure in request.failures}
    assert (failures[1].exit_status, failures[1].signal, failures[1].reason) == (3, None, "exit status 3")
    assert (failures[2].exit_status, failures[2].signal, failures[2].reason) == (None, 9, "killed by SIGKILL: oh")


def test_refused_reserve_is_asked_again_although_nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of anything."""
    for module in (consumer_base, polled_consumer):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    daemon = Daemon([b"a"])
    daemon.refusals = [ErrorReply(0, "storage_full", "full"), ErrorReply(0, "storage_full", "full")]
    assert daemon.consume("cat") == Outcome(1, 0, 0, 0)


def test_refused_strategy_ends_the_consumer() -> None:
    daemon = Daemon([b"a"])
    daemon.refusals = [ErrorReply(0, "invalid_strategy", "no")]
    with pytest.raises(InvalidStrategy):
        daemon.consume("cat", strategy="Best")


def test_chunk_without_room_for_its_program_waits_for_another_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    real = Supervisor.start

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        starts.append(len(self))
        if len(self) >= 1:
            raise Refused("no room")
        return real(self, *words, **named)

    monkeypatch.setattr(Supervisor, "start", start)
    daemon = Daemon([b"a", b"b", b"c"])
    assert daemon.consume("cat", jobs=3) == Outcome(3, 0, 0, 0)
    assert not daemon.of(Fail)
    assert max(starts) == 1


def test_program_starts_when_its_attachment_has_arrived_which_is_asked_for_once() -> None:
    daemon = Daemon([b"a", b"b", b"c"])
    daemon.has_attachment = True
    usual = daemon.answer

    def answer(request: Request) -> list[Reply]:
        replies = usual(request)
        return [Attachment(request.id, b"shared")] if isinstance(request, GetAttachment) else replies

    daemon.answer = answer  # type: ignore[method-assign]
    assert daemon.consume("sh", "-c", 'test "$(cat "$OPSQ_ATTACHMENT")" = shared', jobs=2) == Outcome(3, 0, 0, 0)
    assert len(daemon.of(GetAttachment)) == 1


def test_signal_is_heeded_while_an_attachment_does_not_arrive() -> None:
    """As when the daemon is away."""
    daemon = Daemon([b"a", b"b"])
    daemon.has_attachment = True
    usual = daemon.answer
    late: list[threading.Timer] = []

    def answer(request: Request) -> list[Reply]:
        if isinstance(request, GetAttachment) and not late:
            wire = daemon.wire
            assert wire is not None
            late.append(threading.Timer(DEADLINE_S, lambda: wire.push(Attachment(request.id, b"too late"))))
            late[0].start()
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(request)

    daemon.answer = answer  # type: ignore[method-assign]
    try:
        outcome = daemon.consume("cat")
        assert not late[0].finished.is_set()
    finally:
        late[0].cancel()
    assert outcome.completed_count == 0
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b1


def test_no_room_for_even_one_program_ends_the_consumer_and_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> Child:
        raise Refused("no room")

    monkeypatch.setattr(Supervisor, "start", start)
    daemon = Daemon([b"a", b"b"])
    with pytest.raises(Refused):
        daemon.consume("cat", jobs=2)
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b11
    assert not daemon.of(Fail)


def test_what_ended_well_beside_a_fatal_end_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ends of one turn are judged before the consumer ends with 127."""
    daemon = Daemon([b"exit 127", b"exit 0"])
    real = Supervisor.poll

    def poll(self: Supervisor, timeout_s: float | None = None) -> Any:
        """Tell both ends in one turn, the fatal one first, whichever came first."""
        ended = real(self, timeout_s)
        while len(self):
            ended += real(self, 1.0)
        return sorted(ended, key=lambda one: -(one.exit_status or 0))

    monkeypatch.setattr(Supervisor, "poll", poll)
    with pytest.raises(pool.CommandNotFound, match="7/0"):
        daemon.consume("sh", jobs=2)
    assert mask_of(daemon.completions()) == 0b10
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b01


def test_no_room_for_an_output_ends_the_consumer_and_costs_no_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(polled_consumer.PolledConsumer, "store_folder", str(tmp_path / "gone"))
    monkeypatch.setattr(pool, "MEMORY_LIMIT_BYTES", 1)
    daemon = Daemon([b"longer than that"])
    with pytest.raises(Refused, match="cannot be kept"):
        daemon.consume("cat")
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b1
    assert not daemon.of(Fail)


def test_unreadable_chunk_fails_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pool.ChunkInputs.content_of

    def content(inputs: Any, chunk: Any) -> Any:
        if chunk.index == 0:
            raise pool.ContentMissing("gone")
        return real(inputs, chunk)

    monkeypatch.setattr(pool.ChunkInputs, "content_of", content)
    daemon = Daemon([b"a", b"b"])
    assert daemon.consume("cat") == Outcome(1, 1, 0, 0, child_status=1)
    assert [failure.reason for request in daemon.of(Fail) for failure in request.failures] == ["gone"]


@pytest.mark.parametrize("code", ["reservation_lost", "already_finished", "cancelled"])
def test_chunk_that_is_taken_away_ends_its_program_and_gets_no_verdict(code: str, tmp_path: Any) -> None:
    """Its program exits 0 when it is told to end: that is no result."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    daemon = Daemon([b"a"])

    def take_away() -> None:
        fifo.read_bytes()  # the program runs
        assert daemon.wire is not None
        daemon.wire.push(Revoked([ChunkMask(SUBMISSION, 0, 1)], code))

    thread = threading.Thread(target=take_away)
    thread.start()
    script = f"trap 'exit 0' TERM; echo > {fifo}; while :; do sleep 0.01; done"
    assert daemon.consume("sh", "-c", script) == Outcome(0, 0, 0, 0)
    thread.join()
    assert not daemon.completions()
    assert not daemon.of(Fail)


def test_deaf_program_of_a_chunk_that_is_taken_away_is_killed_and_frees_its_slot(tmp_path: Any) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    daemon = Daemon([f"trap '' TERM; echo > {fifo}; while :; do sleep 0.01; done".encode(), b"true"])

    def take_away() -> None:
        fifo.read_bytes()
        assert daemon.wire is not None
        daemon.wire.push(Revoked([ChunkMask(SUBMISSION, 0, 1)], "cancelled"))

    thread = threading.Thread(target=take_away)
    thread.start()
    assert daemon.consume("sh", grace_s=0.01) == Outcome(1, 0, 0, 0)
    thread.join()


def test_chunk_that_is_taken_away_before_its_program_starts_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    daemon = Daemon([b"a", b"b"])
    real = Supervisor.start
    starts_count = 0

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        nonlocal starts_count
        if len(self):
            assert daemon.wire is not None
            daemon.wire.push(Revoked([ChunkMask(SUBMISSION, 0, 0b10)], "cancelled"))
            raise Refused("no room")
        starts_count += 1
        return real(self, *words, **named)

    lost = pool.Pool._lost
    monkeypatch.setattr(Supervisor, "start", start)
    monkeypatch.setattr(pool.Pool, "_lost", lambda self, what: (lost(self, what), (tmp_path / "go").touch()))
    assert daemon.consume("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done", jobs=2) == Outcome(
        1, 0, 0, 0
    )
    assert starts_count == 1


def test_verdict_leaves_at_once_when_nothing_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes next may depend on it (one at a time, in order): nobody waits until it would be sent by itself."""
    monkeypatch.setattr(verdict_sender, "FLUSH_S", 3600.0)
    daemon = Daemon([b"a", b"b", b"c"])
    assert daemon.consume("cat") == Outcome(3, 0, 0, 0)


def test_next_program_starts_before_the_last_result_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    for owner, name, event in ((pool.Pool, "_start", "start"), (verdict.VerdictGiver, "give_verdict", "judge")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *words, real=real, event=event: (events.append(event), real(*words))[1])
    daemon = Daemon([b"a"] * 8)
    daemon.consume("cat")
    assert "start start judge" in " ".join(events)  # in one slot


def test_slow_programs_are_told_of_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a chunk that kills its consumer is known by then, also the second of a reserve."""
    daemon = Daemon([b"a", b"b"])
    real = Supervisor.start
    told: list[int] = []

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        told.append(max(begun.mask for request in daemon.of(Started) for begun in request.chunks))
        return real(self, *words, **named)

    monkeypatch.setattr(Supervisor, "start", start)
    daemon.consume("cat", jobs=2)
    assert told == [0b01, 0b11]


# --- a stop signal that reaches the program too -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_program_killed_by_the_signal_that_stops_us_is_given_back(name: str) -> None:
    """A terminal signals its whole process group, and a program that was just made may still belong to it."""
    daemon = Daemon([b"a", b"b"])
    assert daemon.consume("sh", "-c", f"kill -{name} $PPID; kill -{name} $$") == Outcome(0, 0, 0, 1)
    assert mask_of([held for request in daemon.of(Release) for held in request.held]) == 0b1
    assert not daemon.of(Fail)


def test_end_by_a_stop_signal_that_is_seen_before_the_signal_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StopSignals.wait

    def wait(self: StopSignals, timeout_s: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(self, 10.0)

    monkeypatch.setattr(StopSignals, "wait", wait)
    daemon = Daemon([b"a", b"b"])
    assert daemon.consume("sh", "-c", "kill -INT $$") == Outcome(0, 0, 0, 1)
    assert not daemon.of(Fail)


@pytest.mark.parametrize(
    ("script", "status"),
    [("kill -TERM $$", 143), ("kill -INT $PPID; kill -TERM $$", 143), ("kill -INT $PPID; kill -KILL $$", 137)],
)
def test_program_killed_by_another_signal_than_the_one_that_stops_us_has_failed(script: str, status: int) -> None:
    daemon = Daemon([b"a"])
    assert daemon.consume("sh", "-c", script) == Outcome(0, 1, 0, 0, child_status=status)


def test_no_program_is_started_after_a_signal_that_comes_while_slots_are_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Supervisor.start
    starts_count = 0

    def start(self: Supervisor, *words: Any, **named: Any) -> Child:
        nonlocal starts_count
        starts_count += 1
        child = real(self, *words, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    monkeypatch.setattr(Supervisor, "start", start)
    daemon = Daemon([b"a", b"b", b"c"])
    assert daemon.consume("cat", jobs=3) == Outcome(1, 0, 0, 2)
    assert starts_count == 1


# --- failures that are final, or none ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_gone", [True, False])
def test_chunks_of_a_changed_or_missing_file_in_place_die_at_once_and_are_told_of_once(
    is_gone: bool, tmp_path: Any
) -> None:
    path = tmp_path / "in-place"
    if not is_gone:
        path.write_bytes(b"abcdef")
    daemon = Daemon([b""] * 3)
    part = Part(os.fsencode(path), 6, 0, (6, 1, 1))
    daemon.content = Content("f", 3, 6, [part], 1, ends=pack_numbers(array("Q", [2, 4, 6])))
    assert daemon.consume("cat") == Outcome(0, 3, 0, 0, child_status=1)
    assert [failure.is_final for failure in failures_of(daemon)] == [True] * 3
    (line,) = daemon.witness.sentences
    assert ("is gone" if is_gone else "has changed since") in line


@pytest.mark.parametrize(("error", "is_final"), [(ContentMissing("short"), False), (ContentChanged("cut"), True)])
def test_chunk_found_unreadable_while_it_is_fed(
    error: ContentMissing | ContentChanged, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing content of ours may come back (a mount): it is tried again."""
    real = Supervisor.poll
    monkeypatch.setattr(
        Supervisor, "poll", lambda self, *words: [one._replace(error=error) for one in real(self, *words)]
    )
    daemon = Daemon([b"a", b"b"])
    assert daemon.consume("cat") == Outcome(0, 2, 0, 0, child_status=1)
    assert [failure.is_final for failure in failures_of(daemon)] == [is_final] * 2
    assert len(daemon.witness.sentences) == (1 if is_final else 2)


class EndedDaemon(Daemon):
    """Refuses all failures but those of chunk 0, which ended the submission."""

    def answer(self, request: Request) -> list[Reply]:
        if not isinstance(request, Fail):
            return super().answer(request)
        self.sent.append(request)
        mask = sum(failure.held.mask for failure in request.failures) & ~1
        return [
            Completed(request.id, [Refusal(SUBMISSION, 0, mask, "reservation_lost", "chunk_delayed")] if mask else [])
        ]


def test_failure_that_the_daemon_refuses_is_neither_told_nor_counted() -> None:
    daemon = EndedDaemon([b"exit 1"] * 4)
    assert daemon.consume("sh", jobs=4) == Outcome(0, 1, 0, 0, child_status=1)
    assert daemon.witness.sentences == [f"Chunk {SUBMISSION}/0 failed: exit status 1"]


def test_failure_is_told_while_another_program_runs(tmp_path: Path) -> None:
    class Telling(Witness):
        def say(self, text: str) -> None:
            (tmp_path / "told").touch()

    until_told = f"for _ in $(seq 600); do [ ! -e {tmp_path}/told ] || exit 0; sleep 0.1; done; exit 1"
    daemon = Daemon([b"exit 1", until_told.encode()])
    daemon.witness = Telling()
    assert daemon.consume("sh", jobs=2) == Outcome(1, 1, 0, 0, child_status=1)


def test_chunk_that_was_taken_away_before_its_failure_is_judged_is_not_told_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon([b"exit 1"])
    real = verdict.VerdictGiver.give_verdict

    def judge(self: verdict.VerdictGiver, *words: Any) -> bool:
        assert daemon.wire is not None
        daemon.wire.push(Revoked([ChunkMask(SUBMISSION, 0, 1)], "cancelled"))
        self._consumer.poll()
        return real(self, *words)

    monkeypatch.setattr(verdict.VerdictGiver, "give_verdict", judge)
    assert daemon.consume("sh") == Outcome(0, 0, 0, 0)
    assert not daemon.of(Fail)
    assert len(daemon.witness.sentences) == 1
    assert "was lost" in daemon.witness.sentences[0]


def test_failure_refused_after_it_was_sent_again_counts() -> None:
    """It may have been taken the first time, by a daemon that died before it could say so."""
    chunk = SimpleNamespace(submission_id=SUBMISSION, index=3, is_revoked=False)
    consumer = SimpleNamespace(reconnects_count=0, refused=set(), failures={})
    tally, witness = Tally(), Witness()
    failures = PendingFailures(consumer, tally, witness)  # type: ignore[arg-type]  # of the consumer only these are asked
    end = ChunkEnd(SUBMISSION, 3, 0, "failed", 1, None, 0.0, "")
    failures.enter(chunk, end, "failed", "why")  # type: ignore[arg-type]  # likewise
    failures.settle()
    assert not witness.sentences
    consumer.reconnects_count, chunk.is_revoked = 1, True
    consumer.refused.add((SUBMISSION, 3))
    failures.settle()
    assert (witness.sentences, witness.ends, tally.failed_count) == (["failed: why"], [end], 1)
