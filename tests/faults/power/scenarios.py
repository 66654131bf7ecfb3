"""What a queue is used for, in short stories; `python -m faults.power.scenarios NAME ROOT LOG` records one.

Each runs in a process of its own: the daemon in the main thread, as always, and what its users do in another. They note
what was acknowledged, at once. They must not know how it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import pickle
import queue as queues
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import opsq
from compat.made import file_of
from faults.power import promises as p
from faults.power.disk import Operation
from faults.power.recording import Recording, recorded
from opsq.__main__ import run as run_opsq
from opsq.client import embedded
from opsq.client.sync.queue import Queue
from opsq.content.manifest import ABOUT_LIMIT_BYTES
from opsq.content.multipart import PartWriter, compose
from opsq.daemon import committer, daemon_process
from opsq.daemon.lifecycle import Ready
from opsq.errors import OpsqError
from opsq.fsync import make_folders, sync_descriptor, sync_path
from opsq.queue.submissions.dependencies import SLICE_WAITING
from opsq.settings import load
from opsq.wire import messages as m
from unit.model.rig import tickets_of

STATE = "made/on/demand/opsq"
"""The state folder below the root: it and its parents are made by the first start."""
INPUTS = "inputs"
"""Files of users below the root, which they do not sync."""
LARGE_BYTES = 5000
"""Of a result that goes to the store, or a chunk that does."""


class Home:
    """A state folder below a recorded root, and its users.

    Args:
        recording: of the root.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.root = Path(recording.root)
        self.state = self.root / STATE
        self.random = random.Random(0)
        self.first_cut = 1
        self._starts: queues.SimpleQueue[Callable[[], None] | None] = queues.SimpleQueue()

    def serve(self, story: Callable[[Home], None]) -> None:
        """Let the story be told, and run the daemons that it wants in this thread."""
        failures: list[BaseException] = []

        def tell() -> None:
            try:
                story(self)
            except BaseException as error:  # noqa: BLE001  # raised below, in the thread that matters
                failures.append(error)
            finally:
                self._starts.put(None)

        threading.Thread(target=tell, daemon=True).start()
        while (start := self._starts.get()) is not None:
            start()
        if failures:
            raise failures[0]

    @contextlib.contextmanager
    def daemon(self) -> Iterator[Queue]:
        """A daemon that is stopped in the end; and a connection to it."""
        settings = load({"state_dir": str(self.state)})
        ready: queues.SimpleQueue[Ready | BaseException | None] = queues.SimpleQueue()

        def run() -> None:
            try:
                daemon_process.run(settings, ready.put)
            except BaseException as error:  # noqa: BLE001  # raised where it was wanted
                ready.put(error)
            ready.put(None)

        self._starts.put(run)
        if isinstance(started := ready.get(), BaseException):
            raise started
        with opsq.connect(settings.socket) as queue:
            yield queue
            queue.link.call(m.Stop(queue.link.next_id(), 0.0), m.Changed)
        assert ready.get() is None

    def embedded(self, *, is_durable: bool = True) -> Queue:
        """The queue in this process."""
        return Queue.open(self.state, is_durable=is_durable)

    def opsq(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command line here; its output."""
        out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        read_fd, write_fd = os.pipe()
        os.write(write_fd, stdin)
        os.close(write_fd)
        os.dup2(read_fd, 0)
        os.close(read_fd)
        with contextlib.redirect_stdout(out):
            assert run_opsq(list(words)) == 0, words
        return out.buffer.getvalue().decode()  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Here the story begins: the power is not cut before."""
        self.first_cut = len(self.recording.operations)

    def promise(self, key: str, fact: p.Fact) -> None:
        """Note what was acknowledged."""
        self.recording.promise(key, fact)

    def release(self, key: str) -> None:
        """Note that what is done now may end a promise."""
        self.recording.release(key)

    def submit(self, queue: Queue, chunks: Sequence[bytes], **options: Any) -> int:
        """Submit, and hold the queue to it."""
        submission = queue.submit(chunks, **options)
        self.promise(f"submission {submission.id}", p.Submitted(submission.id, tuple(chunks)))
        return int(submission.id)

    def chunks(self, count: int, size_bytes: int) -> list[bytes]:
        """Chunks of random bytes."""
        return [self.random.randbytes(size_bytes) for _ in range(count)]

    def work(self, queue: Queue, submission_id: int, result_of: Callable[[int], bytes], count: int) -> dict[int, bytes]:
        """Complete the next chunks of a submission; what was acknowledged."""
        done: dict[int, bytes] = {}
        with queue.consumer(f"SelectOnly(submission={submission_id})", batch=8) as consumer:
            for chunk in consumer:
                done[chunk.index] = result_of(chunk.index)
                chunk.complete(done[chunk.index])
                if len(done) == count:
                    break
            consumer.flush()
            self.promise(f"results {submission_id} of {min(done)}", p.Completed(submission_id, done))
        return done


# --- the stories ------------------------------------------------------------------------------------------------------


def first_start(home: Home) -> None:
    """A folder that is not there, a daemon, submissions with content of every size; then once more."""
    with home.daemon() as queue:
        home.submit(queue, [b"small"])
        home.submit(queue, home.chunks(3, 70_000))
    with home.daemon() as queue:
        home.submit(queue, home.chunks(2, LARGE_BYTES), metadata={"tenant": "a"}, attachment=b"attached")
        home.submit(queue, [])


def embedded_start(home: Home) -> None:
    """The same in one's own process, with results, in a folder that somebody has just made."""
    make_folders(str(home.state.parent), os.mkdir)
    os.mkdir(home.state)
    for _ in range(2):
        with home.embedded() as queue:
            number = home.submit(queue, home.chunks(3, 70_000))
            home.work(queue, number, lambda index: b"%d" % index * LARGE_BYTES, 2)
            home.submit(queue, [b"small"])


def submit_files(home: Home) -> None:
    """Files, a stream, files in place, and one file a chunk."""
    places = [home.root / INPUTS / name for name in ("first", "second")]
    make_folders(str(home.root / INPUTS), os.mkdir)
    lines = [b"%07d\n" % number * 500 for number in range(20)]
    for place in places:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"".join(lines))
        os.close(descriptor)
    cut = ["--lines", "1000"]
    thousands = [b"".join(lines[start : start + 2]) for start in range(0, 20, 2)]
    records = b"".join(lines).splitlines(keepends=True)
    pairs = [first + second for first, second in zip(records[::2], records[1::2], strict=True)]
    with home.daemon():
        for words, stdin, chunks in (
            ([str(places[0]), str(places[1]), *cut], b"", thousands * 2),
            (["-", *cut], b"".join(lines[:8]), thousands[:4]),
            ([str(places[0]), str(places[1]), "--in-place", *cut], b"", thousands * 2),
            ([*map(str, places), "--per-file"], b"", [b"".join(lines)] * 2),
            ([str(places[0]), "--bytes", "20", "--in-place"], b"", pairs),
        ):
            number = int(home.opsq("submit", *words, stdin=stdin))
            home.promise(f"submission {number}", p.Submitted(number, tuple(chunks)))


def submit_parts(home: Home) -> None:
    """Parts of one submission, from writers that know nothing of each other; its tables are objects of their own."""
    with home.daemon() as queue:
        store, key = queue.contents.store, bytes(16)
        parts, chunks = [], home.chunks(4, LARGE_BYTES)
        for number in range(2):
            with PartWriter(store, key.hex(), f"part-{number}") as writer:
                for chunk in chunks[2 * number : 2 * number + 2]:
                    writer.add_chunk(chunk)
                part = writer.finish()
                assert part is not None
                parts.append(part)
        content = compose(store, key.hex(), parts, header=b"", about=bytes(ABOUT_LIMIT_BYTES + 1))
        [submission] = queue.submit_many([queue.describe(key, content)])
        home.promise("submission of parts", p.Submitted(submission.id, tuple(chunks)))
        nothing = compose(store, "01" * 16, [], header=b"", about=bytes(ABOUT_LIMIT_BYTES + 1))
        [submission] = queue.submit_many([queue.describe(b"\1" * 16, nothing)])
        home.promise("submission of no parts", p.Described(submission.id, bytes(ABOUT_LIMIT_BYTES + 1)))


def results(home: Home) -> None:
    """Small and large results, from consumers of both kinds, and from the command line."""
    with home.daemon() as queue:
        number = home.submit(queue, home.chunks(150, 10))
        home.work(queue, number, lambda index: b"small %d" % index, 70)
        home.work(queue, number, lambda index: b"%d" % index * LARGE_BYTES, 5)
        home.work(queue, number, lambda index: b"%d" % index * (LARGE_BYTES if index % 3 else 3), 20)
        for size in (3, 2 * LARGE_BYTES):
            handle = home.opsq("reserve").strip()
            home.opsq("complete", handle, "--result", "-", stdin=b"r" * size)
            index = int(handle.partition("@")[0].partition("/")[2])
            home.promise(f"result {index}", p.Completed(number, {index: b"r" * size}))

        async def work() -> None:
            async with opsq.connect_async(str(home.state / "opsq.sock")) as aio:
                done: dict[int, bytes] = {}
                consumer = aio.consumer("Random", batch=4)
                async with consumer:
                    async for chunk in consumer.chunks(until_empty=True):
                        done[chunk.index] = b"%d" % chunk.index * (LARGE_BYTES if chunk.index % 2 else 3)
                        await chunk.complete(done[chunk.index])
                        if len(done) == 12:
                            break
                    await consumer.flush()
                    home.promise("results of asyncio", p.Completed(number, done))

        asyncio.run(work())


def follow_ups(home: Home) -> None:
    """Completions that bring submissions with them, small and large: both are there, or neither."""
    with home.daemon() as queue:
        number = home.submit(queue, home.chunks(12, 10))
        follow_ups = {index: [b"small", b"%d" % index * LARGE_BYTES] for index in range(12)}
        home.promise("chunks and follow-ups together", p.Followed(number, follow_ups))
        with queue.consumer(f"SelectOnly(submission={number})", batch=4) as consumer:
            for chunk in consumer:
                metadata = {"of": chunk.index}
                then = [opsq.FollowUp([content], metadata=metadata) for content in follow_ups[chunk.index]]
                chunk.complete(b"done", then=then)
                if chunk.index % 3 == 2:
                    consumer.flush()
                    done = {index: follow_ups[index] for index in range(chunk.index + 1)}
                    home.promise(f"follow-ups until {chunk.index}", p.Followed(number, done, is_acknowledged=True))
                if chunk.index == 11:
                    break


def dependencies(home: Home) -> None:
    """Submissions that wait for others, of one more than are told at once: what they wait for ends."""
    with home.daemon() as queue:
        first, other = (home.submit(queue, home.chunks(1, 10)) for _ in range(2))
        waiting = [home.submit(queue, [b"waits"], after=[first]) for _ in range(SLICE_WAITING + 1)]
        below = home.submit(queue, [b"waits"], after=[other])
        last = home.submit(queue, [], after=[below], on_failed_dependency="run")
        home.promise("blocked", p.InState(below, "blocked"))
        home.work(queue, first, lambda _: b"done", 1)
        home.promise(f"state {waiting[0]}", p.InState(waiting[0], "open"))
        home.release("blocked")
        queue.submission(other).cancel()
        queue.submission(last).wait()
        for number, state in ((below, "cancelled"), (last, "completed"), (waiting[-1], "open")):
            home.promise(f"state {number}", p.InState(number, state))


def leases(home: Home) -> None:
    """Leases, failures, dead chunks that are tried again or given up, rules."""
    with home.daemon() as queue:
        number = home.submit(queue, home.chunks(70, 10), max_attempts=1, on_dead="keep")
        link = queue.link

        def lease(count: int) -> list[m.HeldChunks]:
            request = m.Reserve(link.next_id(), count, "OldestFirst", 0.0, 1e6)
            return [ticket.held() for ticket in tickets_of(link.call(request, m.Reserved))]

        [kept] = lease(3)
        home.promise("lease", p.Leased(kept))
        [given_back] = lease(2)
        link.call(m.Extend(link.next_id(), [given_back], 1e5), m.Completed)
        link.call(m.Release(link.next_id(), [given_back]), m.Completed)
        dead: frozenset[int] = frozenset()
        for reason in ("first", "second", "third"):
            [failing] = lease(1)
            home.release("dead")
            failure = m.Failure(failing, reason, exit_status=3)
            link.call(m.Fail(link.next_id(), [failure]), m.Completed)
            dead |= {failing.mask.bit_length() - 1}
            home.promise("dead", p.Dead(number, dead))
            home.promise(f"failed {reason}", p.Said(number, max(dead), "failed"))
        again, dropped, *_ = sorted(dead)
        home.release("dead")
        queue.submission(number).requeue([again])
        home.promise("dead", p.Dead(number, dead - {again}))
        home.release("dead")
        queue.submission(number).drop([dropped])
        home.promise("dead", p.Dead(number, dead - {again, dropped}))
        home.promise("dropped", p.Said(number, dropped, "dropped"))
        audit_path = str(home.state / "audit.jsonl")
        queue.pause({"tenant": "a"})
        home.promise("rules", p.Ruled(True, frozenset()))
        home.promise("audit", p.Acted(audit_path, ("Requeue", "Drop", "Pause")))
        home.release("rules")
        home.release("audit")
        queue.limit("tenant", concurrency=3)
        home.promise("rules", p.Ruled(True, frozenset({"tenant"})))
        home.promise("audit", p.Acted(audit_path, ("Pause", "Limit")))
        home.release("rules")
        home.release("audit")
        queue.resume({"tenant": "a"})
        home.promise("rules", p.Ruled(False, frozenset({"tenant"})))
        home.promise("audit", p.Acted(audit_path, ("Pause", "Limit", "Resume")))


def endings(home: Home) -> None:
    """Submissions end, are cancelled and removed; the history is pruned; keys stay."""
    with home.daemon() as queue:
        for turn in range(3):
            number = home.submit(queue, home.chunks(4, 70_000), idempotency_key=f"key {turn}")
            home.promise(f"key {turn}", p.Keyed(f"key {turn}", number))
            home.work(queue, number, lambda index: b"%d" % index * LARGE_BYTES, 4)
            home.promise(f"state {number}", p.InState(number, "completed"))
            cancelled = home.submit(queue, home.chunks(2, 70_000))
            queue.submission(cancelled).cancel("not needed")
            home.promise(f"state {cancelled}", p.InState(cancelled, "cancelled"))
            for gone in (cancelled, *([number] if turn else [])):
                for key in (f"submission {gone}", f"state {gone}", f"results {gone} of 0", f"key {turn}"):
                    home.release(key)
                queue.submission(gone).remove()
                home.promise(f"removal of {gone}", p.Removed(gone))
        link = queue.link
        rows = link.call(m.History(link.next_id(), newest_first=True), m.HistoryRows).rows
        link.call(m.Prune(link.next_id(), keep_count=2), m.Changed)
        home.promise("history", p.Pruned(rows[1].seq))


def backups(home: Home) -> None:
    """A backup to a folder of its own, while work goes on, and one beside the database."""
    with home.daemon() as queue:
        make_folders(str(home.root / "backups"), os.mkdir)
        ids = [home.submit(queue, home.chunks(70, 10))]
        for place in (home.root / "backups" / "nightly", home.state / "beside"):
            link = queue.link
            link.call(m.Backup(link.next_id(), str(place)), m.Changed)
            home.promise(f"backup {place.name}", p.BackedUp(str(place), frozenset(ids)))
            ids.append(home.submit(queue, home.chunks(3, 10)))


def migration(home: Home) -> None:
    """The oldest file is opened: all schemas since are made of it, after a backup."""
    make_folders(str(home.state), os.mkdir)
    descriptor = os.open(home.state / "opsq.sqlite", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, file_of(1).read_bytes())
    sync_descriptor(descriptor)
    os.close(descriptor)
    sync_path(str(home.state))
    home.begin()
    home.promise("what it says", p.Known(_stored()))
    with home.embedded() as queue:
        [backup] = home.state.glob("*.bak")
        home.promise("backup", p.BackedUp(str(backup), frozenset(_stored())))
        home.submit(queue, [b"new"])
        home.release("what it says")


def _stored() -> Mapping[int, tuple[Any, ...]]:
    """What a copy of the stored file says, outside of the recording."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="opsq-"))
    shutil.copy(file_of(1), folder / "opsq.sqlite")
    with Queue.open(folder) as queue:
        found = {one.submission_id: p.counts_of(one) for one in queue.submissions()}
    shutil.rmtree(folder)
    return found


def long_log(home: Home) -> None:
    """Many commits: the log is copied and starts over, the file shrinks, and the daemon is stopped between."""
    for _ in range(2):
        with home.daemon() as queue:
            for turn in range(12):
                number = home.submit(queue, home.chunks(3, 9000))
                if turn % 3 == 0:
                    home.work(queue, number, lambda index: b"%d" % index * 1000, 3)
                if turn % 4 == 3:
                    link = queue.link
                    link.call(m.Vacuum(link.next_id()), m.Changed)


def normal_durability(home: Home) -> None:
    """Without a sync for each commit the last ones may be lost, and nothing is promised but that none is torn."""
    for _ in range(2):
        with home.embedded(is_durable=False) as queue:
            home.promise("nothing is torn", p.Known({}))
            for _ in range(20):
                number = int(queue.submit(home.chunks(3, 900)).id)
                with queue.consumer(f"SelectOnly(submission={number})") as consumer:
                    for chunk in consumer:
                        chunk.complete(b"result" * 100)


def failing_syncs(home: Home) -> None:
    """The system cannot write some results, or a sync is interrupted; the work goes on, on what is there."""

    class Interrupted(BaseException):
        """As KeyboardInterrupt, in a thread."""

    kinds = [[OSError(errno.EIO, "I/O error")], [Interrupted()], [OSError(errno.ENOSPC, "full")], []]
    failures: list[BaseException] = []

    def fail(path: str) -> None:
        if "/results" in path and failures:
            raise failures.pop()

    home.recording.on_sync = fail
    with home.daemon() as queue:
        number = home.submit(queue, home.chunks(60, 10))
        with queue.consumer(f"SelectOnly(submission={number})", batch=2) as consumer:
            chunks = consumer.chunks(until_empty=True)
            for turn, failure in enumerate(kinds * 3):
                failures[:] = failure
                chunk = next(chunks)
                done = {chunk.index: b"%d" % turn * LARGE_BYTES}
                try:
                    chunk.complete(done[chunk.index])
                    try:
                        consumer.flush()
                    except Interrupted:
                        consumer.flush()
                except OpsqError:
                    assert any(isinstance(error, OSError) for error in failure)
                    continue
                home.promise(f"turn {turn}", p.Completed(number, done))

        async def work() -> None:
            async with opsq.connect_async(str(home.state / "opsq.sock")) as aio:
                consumer = aio.consumer(f"SelectOnly(submission={number})", batch=2)
                async with consumer:
                    aio_chunks = consumer.chunks(until_empty=True)
                    for turn, failure in enumerate([kinds[0], kinds[3]] * 4):
                        failures[:] = failure
                        chunk = await anext(aio_chunks)
                        done = {chunk.index: b"%d" % turn * LARGE_BYTES}
                        try:
                            await chunk.complete(done[chunk.index])
                            await consumer.flush()
                        except OpsqError:
                            assert failure
                            continue
                        home.promise(f"turn {turn} of asyncio", p.Completed(number, done))

        asyncio.run(work())


SCENARIOS: dict[str, Callable[[Home], None]] = {
    story.__name__: story
    for story in (
        first_start,
        embedded_start,
        submit_files,
        submit_parts,
        results,
        follow_ups,
        dependencies,
        leases,
        endings,
        backups,
        migration,
        long_log,
        normal_durability,
        failing_syncs,
    )
}


class Log(NamedTuple):
    """A recorded story."""

    operations: list[Operation]
    first_cut: int
    """How many operations led to its beginning."""
    unlike: list[str]
    """Paths that were written past the recording."""


def main(name: str, root: str, log: str) -> None:
    """Record a story."""
    committer.PASSIVE_BYTES = embedded.PASSIVE_BYTES = 1 << 16  # type: ignore[misc]  # so that short stories have checkpoints
    committer.RESTART_BYTES = 1 << 18  # type: ignore[misc]
    os.environ["OPSQ_STATE_DIR"] = f"{root}/{STATE}"
    with recorded(Path(root)) as recording:
        home = Home(recording)
        home.serve(SCENARIOS[name])
        unlike = recording.unlike()
    Path(log).write_bytes(pickle.dumps(Log(recording.operations, home.first_cut, unlike)))


if __name__ == "__main__":
    from faults.power.scenarios import main as main_of_module  # so that what is pickled has the module's name

    main_of_module(*sys.argv[1:])
