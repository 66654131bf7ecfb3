"""Verdicts of many threads: what is sent in which order, and what must be on the disk before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

import opsq
from opsq.client.core import consumer_base
from opsq.client.core.held_block import HeldBlock, Lost, Result
from opsq.client.embedded import EmbeddedWire
from opsq.client.sync.verdict_sender import VerdictSender
from opsq.content.result_objects import ResultWriter, Stored
from opsq.runner.polled_consumer import PolledConsumer
from opsq.wire.messages import RESULT_INLINE_BYTES, Complete, CompleteAndReserve, Request
from waiting import wait_until

LARGE = b"x" * (RESULT_INLINE_BYTES + 1)
CHUNKS = 240
THREADS = 6


class SlowDisk:
    """Takes its time to sync, and knows what is synced; and which results were named to the daemon before they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._guard = threading.Lock()
        self._appended: list[Stored] = []
        self.synced: set[tuple[str, int, int]] = set()
        self.early: list[tuple[str, int, int]] = []
        append, sync, send = ResultWriter.append, ResultWriter.sync, EmbeddedWire.send
        store = VerdictSender._store_result

        def store_and_be_put_off(sender: VerdictSender, block: HeldBlock, bit: int, result: Result) -> Result:
            place = store(sender, block, bit, result)
            time.sleep(0.003)  # here another thread may send
            return place

        def append_and_note(writer: ResultWriter, result: bytes) -> Stored:
            stored = append(writer, result)
            with self._guard:
                self._appended.append(stored)
            return stored

        def sync_slowly(writer: ResultWriter) -> None:
            with self._guard:
                found, self._appended = self._appended, []
            time.sleep(0.005)
            sync(writer)
            self.synced.update(map(tuple, found))

        def send_and_look(wire: EmbeddedWire, requests: Sequence[Request]) -> None:
            for request in requests:
                if isinstance(request, Complete | CompleteAndReserve):
                    for completion in request.completions:
                        results = msgspec.msgpack.decode(completion.results) or []
                        named = {tuple(result) for result in results if isinstance(result, list)}
                        self.early += sorted(named - self.synced)
            send(wire, requests)

        monkeypatch.setattr(ResultWriter, "append", append_and_note)
        monkeypatch.setattr(ResultWriter, "sync", sync_slowly)
        monkeypatch.setattr(EmbeddedWire, "send", send_and_look)
        monkeypatch.setattr(VerdictSender, "_store_result", store_and_be_put_off)


def test_no_result_is_named_before_it_is_synced_whichever_thread_sends(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large results mixed: while one thread syncs, another must not send what waits for that."""
    disk = SlowDisk(monkeypatch)
    errors: list[Exception] = []
    parts = [b"%d" % number for number in range(CHUNKS)]
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit(parts)
        with queue.consumer("OldestFirst", batch=CHUNKS) as consumer:
            loop = consumer.chunks(overlapping=True, until_idle=True)
            chunks = [next(loop) for _ in range(CHUNKS)]

            def work(first: int) -> None:
                try:
                    for chunk in chunks[first::THREADS]:
                        size = RESULT_INLINE_BYTES + 1 if chunk.index % 2 else 1
                        chunk.complete(chunk.data * size)
                        if chunk.index % 3 == 0:
                            consumer.flush()
                except Exception as error:  # noqa: BLE001  # whatever it is
                    errors.append(error)

            threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert list(loop) == []
        assert errors == []
        assert disk.synced
        assert disk.early == []
        expected = [part * (RESULT_INLINE_BYTES + 1 if index % 2 else 1) for index, part in enumerate(parts)]
        assert list(submission.results()) == expected


class Holder:
    """Holds chunks, hears from the daemon only when it polls, and completes each with a large result."""

    def __init__(self, consumer: PolledConsumer, how: str, result_path: Path) -> None:
        self.consumer = consumer
        self._how = how
        self._result_path = result_path
        result_path.write_bytes(LARGE)

    def take(self) -> Callable[[], None]:
        """Take the next chunk; returns what completes it."""
        if self._how == "reservation":
            return partial(self.consumer.reserve(1).complete, [LARGE])
        self.consumer.order(1)
        while (chunk := self.consumer.take()) is None:
            self.consumer.poll()
        return partial(self._complete_by_file, chunk) if self._how == "file" else partial(chunk.complete, LARGE)

    def _complete_by_file(self, chunk: opsq.Chunk) -> None:
        with self._result_path.open("rb") as file:
            self.consumer.complete_by_file(chunk, file.fileno(), [], run_s=0.0, exit_status=0)


@contextmanager
def holding(queue: opsq.Queue, how: str, path: Path, lost: list[Lost]) -> Iterator[Holder]:
    with (
        queue.consumer() as other,
        PolledConsumer(other._link._open_wire, "OldestFirst", "", lost.append) as consumer,
    ):
        yield Holder(consumer, how, path)


def folders(runtime_dir: Path) -> list[Path]:
    return [path for path in (runtime_dir / "content").iterdir() if path.is_dir()]


@pytest.mark.parametrize("how", ["chunk", "reservation", "file"])
def test_large_result_for_a_submission_that_was_removed_ends_nothing(
    runtime_dir: Path, tmp_path: Path, how: str
) -> None:
    """Its consumer has stored an earlier one, and has not heard yet."""
    lost: list[Lost] = []
    with opsq.Queue.open(runtime_dir) as queue, holding(queue, how, tmp_path / "result", lost) as it:
        removed, kept = queue.submit([b"a", b"b"]), queue.submit([b"c"])
        first, second, third = it.take(), it.take(), it.take()
        first()
        it.consumer.flush()
        removed.cancel()
        removed.remove()
        wait_until(lambda: not folders(runtime_dir), what="its results are gone")
        second()
        third()
        it.consumer.flush()
        assert [(one.submission_id, one.index) for one in lost] == [(removed.id, 1)]
        assert list(kept.results()) == [LARGE]


@pytest.mark.parametrize("how", ["chunk", "reservation", "file"])
def test_large_result_of_a_chunk_that_was_taken_away_is_not_stored(runtime_dir: Path, tmp_path: Path, how: str) -> None:
    lost: list[Lost] = []
    with opsq.Queue.open(runtime_dir) as queue, holding(queue, how, tmp_path / "result", lost) as it:
        submission = queue.submit([b"a"])
        complete = it.take()
        submission.cancel()
        wait_until(lambda: it.consumer.poll() is None and lost, what="it is told")
        complete()
        it.consumer.flush()
        assert folders(runtime_dir) == []


def test_large_result_goes_to_another_file_when_that_of_earlier_ones_is_gone(runtime_dir: Path) -> None:
    """As when a person has removed it: the chunk is offered again, and done."""
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"a", b"b"])
        done, lost = [], list[Lost]()
        with queue.consumer("OldestFirst", batch=1, on_lost=lost.append) as consumer:
            for chunk in consumer.chunks():
                chunk.complete(LARGE)
                done.append(chunk.index)
                consumer.flush()
                if len(done) == 1:
                    [stored] = (runtime_dir / "content").glob("*/results/*")
                    stored.unlink()
        assert done == [0, 1, 1]
        assert [(one.index, one.code) for one in lost] == [(1, "content_missing")]
        assert list(submission.results(skip_bad=True)) == [LARGE]


@pytest.mark.parametrize("synced_each", [1, 7])
def test_writers_of_large_results_are_not_kept_for_ever(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, synced_each: int
) -> None:
    """The oldest go, but none whose results are not synced yet."""
    monkeypatch.setattr(consumer_base, "_WRITERS_LIMIT", 3)
    counts = []
    with opsq.Queue.open(runtime_dir) as queue:
        submissions = [queue.submit([b"%d" % number]) for number in range(21)]
        with queue.consumer("OldestFirst") as consumer:
            monkeypatch.setattr(consumer._link, "flush_within", lambda _: None)  # no sync but where it is asked for
            held = consumer.reserve(len(submissions)).held_blocks
            for at, block in enumerate(held, 1):
                consumer.complete_blocks([block], [LARGE], 0.0)
                if at % synced_each == 0:
                    consumer._flush()
                counts.append(len(consumer._writers))
            consumer.flush()
        assert max(counts) == max(3, synced_each)
        assert all(list(submission.results()) == [LARGE] for submission in submissions)
