"""The whole round of a producer: results as they come, in order; dead chunks; streams that are closed early."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import running
from opsq.errors import InputUnreadable, Unreachable, UsageError, WorkFailed
from opsq.queue.policy import Policy
from waiting import wait_until


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir, policy=Policy(heartbeat_s=0.2)) as queue:
        yield queue


class Worker:
    """A consumer in a thread, for as long as the test takes."""

    def __init__(self, queue: opsq.Queue, f: Any, **options: Any) -> None:
        self.consumer = queue.consumer("OldestFirst")
        run = self.consumer.run_each_operation if "serialisation" in options else self.consumer.run_each_chunk
        self.thread = threading.Thread(target=lambda: run(f, until_empty=False, **options))

    def __enter__(self) -> Worker:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.consumer.stop()
        self.thread.join(180)
        self.consumer.close()


def twice(operation: Any) -> Any:
    return operation * 2


def test_the_results_of_chunks_come_in_order(queue: opsq.Queue) -> None:
    with Worker(queue, lambda chunk: chunk.data * 2, jobs=3), queue.run(b"%d" % n for n in range(500)) as results:
        assert list(results) == [b"%d" % n * 2 for n in range(500)]
        assert results.submission.state().state == "completed"


@pytest.mark.parametrize(
    ("name", "items"),
    [("bytes", [b"a", b""]), ("text", ["ä", ""]), ("json", [1, "a\nb", [None]]), ("msgpack", [b"\0", 2])],
)
def test_operations_come_back_one_by_one(queue: opsq.Queue, name: str, items: list[Any]) -> None:
    with Worker(queue, twice, serialisation=name):
        results = list(queue.run(items * 50, serialisation=name, operations_per_chunk=7))
    assert results == [item * 2 for item in items] * 50


def test_submission_is_cut_from_operations_too(queue: opsq.Queue) -> None:
    submission = queue.submit(range(5), serialisation="json", operations_per_chunk=2, metadata={"a": 1})
    chunks = [chunk.data for chunk in queue.consume("OldestFirst") if chunk.complete() is None]
    assert chunks == [b"0\n1\n", b"2\n3\n", b"4\n"]
    with pytest.raises(UsageError, match=r"number 3 on.* Record 1"):
        queue.submit(iter([1, 2, {3: object()}]), serialisation="json", operations_per_chunk=2)
    assert [state.submission_id for state in queue.submissions()] == [submission.id]


def test_results_may_have_a_format_of_their_own(queue: opsq.Queue) -> None:
    with Worker(queue, len, serialisation="text", result_serialisation="json"):
        assert list(queue.run(["a", "bcd"], serialisation="text", result_serialisation="json")) == [1, 3]


def test_nothing_in_nothing_out(queue: opsq.Queue) -> None:
    assert list(queue.run([], serialisation="json")) == []


def test_results_come_before_all_is_done(queue: opsq.Queue) -> None:
    is_seen = threading.Event()

    def work(chunk: Any) -> bytes:
        if chunk.index == 1:
            assert is_seen.wait(60)
        return bytes(chunk.data)

    with Worker(queue, work):
        results = queue.run([b"a", b"b"])
        assert next(results) == b"a"
        is_seen.set()
        assert list(results) == [b"b"]


def test_a_large_round_in_constant_memory_over_a_daemon(runtime_dir: Path) -> None:
    """More than a page of results, some of them in the store."""
    with (
        running(runtime_dir) as settings,
        opsq.connect(settings.socket) as queue,
        Worker(queue, lambda operation: "x" * operation, serialisation="json"),
    ):
        lengths = (len(result) for result in queue.run(range(3000), serialisation="json", operations_per_chunk=20))
        assert list(lengths) == list(range(3000))


def test_dead_chunks_are_raised_with_names_and_reasons(queue: opsq.Queue) -> None:
    def work(chunk: Any) -> None:
        raise ValueError(f"no {chunk.index}")

    with Worker(queue, work), pytest.raises(WorkFailed) as raised:
        list(queue.run([b"x"] * 5, max_attempts=1, on_dead="keep"))
    assert (
        "chunk 0: ValueError: no 0; chunk 1: ValueError: no 1; chunk 2: ValueError: no 2; and 2 more."
        in raised.value.message
    )
    assert "opsq dead requeue" in raised.value.hint


def test_the_chunk_that_failed_the_submission_is_named_though_an_earlier_one_has_no_result(queue: opsq.Queue) -> None:
    submission = queue.run([b"0", b"1"], max_attempts=1)
    with queue.consumer("OldestFirst", batch=2) as consumer:
        chunks = consumer.chunks(overlapping=True)
        first, second = next(chunks), next(chunks)
        second.fail("it was me")
        consumer.flush()
        assert not first.has_verdict
    with pytest.raises(WorkFailed, match="chunk 1: it was me"):
        list(submission)


def test_dead_chunks_can_be_skipped(queue: opsq.Queue) -> None:
    def work(operation: int) -> int:
        return 10 // operation

    with Worker(queue, work, serialisation="json"):
        stream = queue.run([5, 0, 2, 1], serialisation="json", operations_per_chunk=1, skip_dead=True, max_attempts=1)
        assert list(stream) == [2, 5, 10]
    assert stream.submission.state().dead_count == 1


def test_a_cancelled_submission_raises(queue: opsq.Queue) -> None:
    stream = queue.run([b"x"])
    stream.submission.cancel()
    with pytest.raises(WorkFailed, match="cancelled"):
        next(stream)


def test_a_stream_that_is_closed_early_leaves_its_submission(queue: opsq.Queue) -> None:
    """And with a unique key the same call takes it up again."""
    with queue.run([b"x", b"y"], unique_key="nightly") as stream:
        first = stream.submission
    assert first.state().state == "open"
    again = queue.run([b"x", b"y"], unique_key="nightly")
    assert again.submission.id == first.id
    with Worker(queue, lambda chunk: chunk.data):
        assert list(again) == [b"x", b"y"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_stream_that_is_closed_or_forgotten_can_cancel(queue: opsq.Queue, is_begun: bool) -> None:
    with Worker(queue, lambda chunk: chunk.data if chunk.index == 0 else opsq.Retry(delay_s=3600)):
        streams = [queue.run([b"x", b"y"], on_close="cancel") for _ in range(2)]
        submissions = [stream.submission for stream in streams]
        if is_begun:
            assert [next(stream) for stream in streams] == [b"x", b"x"]
        streams[0].close()
        assert submissions[0].state().state == "cancelled"
        streams.clear()
        gc.collect()
        wait_until(lambda: submissions[1].state().state == "cancelled")
    assert submissions[0].state().reason == "Nobody waits for its results any more."


def test_a_stream_whose_submission_cannot_be_cancelled_is_closed_and_logged(
    queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cancel(self: opsq.Submission, reason: str) -> None:
        raise Unreachable("The daemon has gone.")

    monkeypatch.setattr(opsq.Submission, "cancel", cancel)
    stream = queue.run([b"x"], on_close="cancel")
    stream.close()
    assert f"Submission {stream.submission.id} could not be cancelled: The daemon has gone." in caplog.text


@pytest.mark.parametrize(("on_close", "state"), [("leave", "open"), ("cancel", "cancelled")])
def test_a_stream_whose_wait_is_interrupted_leaves_or_cancels(
    queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch, on_close: Any, state: str
) -> None:
    def interrupted(self: opsq.Submission, *, skip_dead: bool) -> Iterator[bytes]:
        yield b"x"
        raise KeyboardInterrupt

    monkeypatch.setattr(opsq.Submission, "follow", interrupted)
    with queue.run([b"x", b"y"], on_close=on_close) as stream:
        assert next(stream) == b"x"
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert stream.submission.state().state == state


def test_a_stream_that_has_ended_cancels_nothing(queue: opsq.Queue) -> None:
    with Worker(queue, lambda chunk: chunk.data), queue.run([b"x"], on_close="cancel") as stream:
        assert list(stream) == [b"x"]
    assert stream.submission.state().state == "completed"


def test_an_operation_that_cannot_be_sent_leaves_nothing_behind(queue: opsq.Queue, runtime_dir: Path) -> None:
    items = [*range(200_000), object()]
    with pytest.raises(
        UsageError, match=r"Of the operations from number 200001 on, .*Record 1 cannot be written as JSON"
    ):
        queue.run(items, serialisation="json")
    assert list(queue.submissions()) == []
    assert [path.name for path in (runtime_dir / "content").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("arguments", [{"on_close": "drop"}, {"operations_per_chunk": 0}, {"serialisation": "pickle"}])
def test_arguments_without_sense_are_refused(queue: opsq.Queue, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        queue.run([b"x"], **arguments)
    assert list(queue.submissions()) == []


def test_a_result_of_another_format_is_told_and_can_cancel(queue: opsq.Queue) -> None:
    def work(chunk: opsq.Chunk) -> bytes:
        return b"{" if chunk.index == 0 else opsq.Retry(delay_s=3600)

    with Worker(queue, work), pytest.raises(InputUnreadable, match="Line 1 is not the expected JSON"):
        list(queue.run([1, 2], serialisation="json", operations_per_chunk=1, on_close="cancel"))
    assert [state.state for state in queue.submissions()] == ["cancelled"]
