"""A daemon that copies its queue into a real S3 server: killed, deposed, cut off, and brought back elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import DEADLINE_S, connected, end, holder, kill, settings_of, state_of
from opsq.daemon import lifecycle
from opsq.daemon.replica_access import check_replica
from opsq.errors import CommandNotFound, Conflict, Deposed, OpsqError, UsageError
from opsq.replica.restoring import restore
from opsq.settings import Settings
from opsq.wire.messages import (
    DaemonState,
    NewSubmission,
    ReplicaState,
    Reply,
    Reserve,
    Reserved,
    Status,
    Submit,
    Submitted,
)
from waiting import wait_until

CONSUMER = """import opsq, sys
with opsq.connect(sys.argv[1]) as queue, queue.consumer("OldestFirst") as consumer:
    for chunk in consumer.chunks(until_empty=False):
        chunk.complete(b"done")
"""


@pytest.fixture
def settings(
    runtime_dir: Path, service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, bucket: str
) -> Iterator[Settings]:
    """Of a daemon that copies into the service, with a short lease; it is ended after the test."""
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPSQ_REPLICATE_TO", f"s3://{bucket}/replica")
    monkeypatch.setenv("OPSQ_REPLICATE_LEASE_S", "3s")
    monkeypatch.setenv("OPSQ_REPLICATE_EVERY_S", "0.1s")
    found = settings_of(runtime_dir / "state")
    yield found
    end(found)
    wait_until(lambda: not lifecycle.is_locked(copier_lock(found)), DEADLINE_S, "Litestream has ended")


@pytest.fixture
def elsewhere(settings: Settings, runtime_dir: Path) -> Iterator[Settings]:
    """Settings of another machine; nothing runs there."""
    found = settings_of(runtime_dir / "elsewhere")
    yield found
    end(found)
    wait_until(lambda: not lifecycle.is_locked(copier_lock(found)), DEADLINE_S, "Litestream has ended")


class Cable:
    """What lies between a daemon and its store: it can be cut, and mended."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_whole = True
        self._ends: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._acceptor.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._ends:
            each.close()

    def cut(self) -> None:
        """Nothing goes through any more."""
        self._is_whole = False
        for each in self._ends:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """What is asked from now on goes through."""
        self._is_whole = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._ends.append(near)
                if not self._is_whole:
                    near.shutdown(socket.SHUT_RDWR)
                    continue
                far = socket.create_connection(self._target)
                self._ends.append(far)
                for source, sink in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._forward, args=(source, sink), daemon=True))
                    self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                sink.sendall(received)
            sink.shutdown(socket.SHUT_WR)


def replica_of(settings: Settings) -> ReplicaState:
    """The replica as the daemon describes it."""
    found = state_of(settings).replica
    assert found is not None
    return found


def await_copy(settings: Settings) -> None:
    """Wait until everything that was committed is in the replica."""

    def is_copied() -> bool:
        found = replica_of(settings)
        return found.state == "running" and not found.lag_s

    wait_until(is_copied, DEADLINE_S, "everything is copied")


def bring_back(source: Settings, target: Settings, *, is_forced: bool = False) -> None:
    """Restore the replica of one daemon into the folder of another."""
    restore(source.replicate_to, target.state_dir, target.database_path, is_forced=is_forced, on_wait=lambda _: None)


def copier_lock(settings: Settings) -> str:
    """The lock that Litestream and its guard hold while they run; its text is their group."""
    return f"{settings.state_dir}/litestream/litestream.lock"


def litestream_of(settings: Settings) -> int:
    """The group of processes that copies."""
    return int(Path(copier_lock(settings)).read_text())


def submit(settings: Settings, count: int) -> set[int]:
    """Make submissions; returns their ids."""
    with opsq.connect(state_dir=settings.state_dir) as queue:
        return {queue.submit([b"work"]).id for _ in range(count)}


def known(settings: Settings) -> set[int]:
    """The submissions that the daemon knows."""
    with opsq.connect(state_dir=settings.state_dir) as queue:
        return {submission.submission_id for submission in queue.submissions()}


def test_queue_comes_back_on_another_machine(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    submitted = submit(settings, 5)
    await_copy(settings)
    kill(settings)
    shutil.rmtree(settings.state_dir)
    bring_back(settings, elsewhere)
    lifecycle.start(elsewhere)
    assert known(elsewhere) == submitted
    with opsq.connect(state_dir=elsewhere.state_dir) as queue, queue.consumer("OldestFirst") as consumer:
        for chunk in consumer.chunks():
            assert chunk.data == b"work"
            chunk.complete(b"done")
    await_copy(elsewhere)


def test_what_was_acknowledged_as_replicated_survives_the_loss_under_load(
    settings: Settings, elsewhere: Settings
) -> None:
    """Producers submit, a consumer works, and the folder is gone in the middle of it."""
    lifecycle.start(settings)
    acknowledged: list[int] = []
    producers = [threading.Thread(target=_produce, args=(settings, acknowledged)) for _ in range(3)]
    for thread in producers:
        thread.start()
    with subprocess.Popen([sys.executable, "-c", CONSUMER, settings.socket]) as consumer:
        wait_until(lambda: len(acknowledged) >= 100, DEADLINE_S, "some are acknowledged")
        os.killpg(litestream_of(settings), signal.SIGKILL)
        os.kill(holder(settings), signal.SIGKILL)
        shutil.rmtree(settings.state_dir, ignore_errors=True)
        consumer.kill()
    for thread in producers:
        thread.join()
    bring_back(settings, elsewhere)
    lifecycle.start(elsewhere)
    assert set(acknowledged) <= known(elsewhere)


def _produce(settings: Settings, acknowledged: list[int]) -> None:
    with contextlib.suppress(OpsqError), opsq.connect(state_dir=settings.state_dir, reconnect_s=0) as queue:
        while True:
            acknowledged.append(queue.submit([b"work"], ack="replicated").id)


def test_submit_is_acknowledged_as_replicated_once_it_is(
    settings: Settings, service_access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Litestream cannot write, others are acknowledged after their commit."""
    settings = settings_of(Path(settings.state_dir), replicate_lease_s="1h")
    with Cable(service_access["AWS_ENDPOINT"]) as cable:
        monkeypatch.setenv("AWS_ENDPOINT", cable.url)
        lifecycle.start(settings)
        await_copy(settings)
        cable.cut()
        with connected(settings) as client:
            client.send(Submit(2, [NewSubmission(b"k" * 16, 1, b"", ack="replicated")]))
            client.send(Submit(3, [NewSubmission(b"l" * 16, 1, b"")]))
            assert _id_of(client.receive()) == 3
            cable.mend()
            assert _id_of(client.receive()) == 2
        lifecycle.stop(settings)


def test_setting_has_every_submit_wait_for_the_replica(
    settings: Settings, service_access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(Path(settings.state_dir), replicate_lease_s="1h", ack="replicated")
    with Cable(service_access["AWS_ENDPOINT"]) as cable:
        monkeypatch.setenv("AWS_ENDPOINT", cable.url)
        lifecycle.start(settings)
        await_copy(settings)
        cable.cut()
        with connected(settings) as client:
            client.send(Submit(2, [NewSubmission(b"k" * 16, 1, b"")]))
            client.send(Submit(3, [NewSubmission(b"l" * 16, 1, b"", ack="committed")]))
            assert _id_of(client.receive()) == 3
            cable.mend()
            assert _id_of(client.receive()) == 2
        lifecycle.stop(settings)


def _id_of(reply: Reply | None) -> int:
    assert isinstance(reply, Submitted), reply
    return reply.id


def test_stopped_daemon_leaves_nothing_uncopied_and_starts_again(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    submitted = submit(settings, 3)
    lifecycle.stop(settings)
    lifecycle.start(settings)
    submitted |= submit(settings, 3)
    lifecycle.stop(settings)
    bring_back(settings, elsewhere)
    lifecycle.start(elsewhere)
    assert known(elsewhere) == submitted


def test_killed_litestream_is_started_again(settings: Settings, elsewhere: Settings) -> None:
    """And what came while it did not run is copied, too."""
    lifecycle.start(settings)
    submitted = submit(settings, 1)
    await_copy(settings)
    first = litestream_of(settings)
    os.killpg(first, signal.SIGKILL)
    submitted |= submit(settings, 1)
    wait_until(lambda: replica_of(settings).restarts_count == 1, DEADLINE_S, "Litestream runs again")
    await_copy(settings)
    assert litestream_of(settings) != first
    kill(settings)
    bring_back(settings, elsewhere)
    lifecycle.start(elsewhere)
    assert known(elsewhere) == submitted


def test_killed_daemon_takes_litestream_with_it(settings: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    assert lifecycle.is_locked(copier_lock(settings))
    kill(settings)
    wait_until(lambda: not lifecycle.is_locked(copier_lock(settings)), DEADLINE_S, "Litestream has ended")


def test_deposed_daemon_exits_and_does_not_start_again(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    bring_back(settings, elsewhere, is_forced=True)
    wait_until(lambda: not lifecycle.is_locked(settings.lock_path), DEADLINE_S, "the deposed daemon has exited")
    assert "has taken over" in Path(settings.log_path).read_text()
    lifecycle.start(elsewhere)
    with pytest.raises(Deposed):
        lifecycle.start(settings)
    with pytest.raises(Conflict, match="--replicate-to"):
        lifecycle.start(settings_of(Path(settings.state_dir), replicate_to=""))


def test_daemon_that_slept_while_it_was_deposed_says_nothing(settings: Settings, elsewhere: Settings) -> None:
    """Its machine stood still for longer than its lease, and it finds requests when it wakes up."""
    lifecycle.start(settings)
    submitted = submit(settings, 1)
    await_copy(settings)
    with connected(settings) as client:
        os.kill(holder(settings), signal.SIGSTOP)
        bring_back(settings, elsewhere)
        client.send(Submit(2, [NewSubmission(b"k" * 16, 1, b"")]), Reserve(3, 1))
        os.kill(holder(settings), signal.SIGCONT)
        assert client.receive() is None
    lifecycle.start(elsewhere)
    assert known(elsewhere) == submitted


def test_living_daemon_is_not_deposed_without_force(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    with pytest.raises(Conflict, match="is served"):
        bring_back(settings, elsewhere)
    assert submit(settings, 1) == known(settings)


def test_of_two_daemons_at_one_marker_one_serves(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    with pytest.raises(Conflict, match="another queue"):
        lifecycle.start(elsewhere)
    assert submit(settings, 1) == known(settings)


def test_copied_folder_of_a_running_daemon_is_refused(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    subprocess.run(["cp", "-a", settings.state_dir, elsewhere.state_dir], check=True)
    with pytest.raises(Deposed):
        lifecycle.start(elsewhere)
    assert submit(settings, 1) == known(settings)


def test_daemon_that_cannot_renew_its_lease_says_nothing_until_it_can(
    settings: Settings, service_access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cable(service_access["AWS_ENDPOINT"]) as cable:
        monkeypatch.setenv("AWS_ENDPOINT", cable.url)
        lifecycle.start(settings)
        await_copy(settings)
        cable.cut()
        wait_until(lambda: not replica_of(settings).is_owner, DEADLINE_S, "the lease has run out")
        with connected(settings) as client:
            client.send(Submit(2, [NewSubmission(b"k" * 16, 1, b"")]), Reserve(3, 1, wait_s=None))
            said = [client.ask(Status(9))]
            while isinstance(said[-1], DaemonState) and not said[-1].total.submissions_count:
                said.append(client.ask(Status(9)))
            client.send(Status(10))
            assert isinstance(said[-1], DaemonState)
            assert isinstance(client.receive(), DaemonState)
            cable.mend()
            assert {type(client.receive()), type(client.receive())} == {Submitted, Reserved}
        lifecycle.stop(settings)


def test_content_on_this_machine_alone_is_refused(settings: Settings) -> None:
    with pytest.raises(UsageError, match="content of its chunks") as caught:
        lifecycle.start(settings_of(Path(settings.state_dir), store=f"file://{settings.state_dir}/content"))
    assert "--store s3://" in caught.value.hint


def test_folder_with_a_replica_is_not_opened_without_its_daemon(settings: Settings) -> None:
    lifecycle.start(settings)
    lifecycle.stop(settings)
    with pytest.raises(Conflict, match="--replicate-to"):
        opsq.Queue.open(settings.state_dir)


def test_folder_with_a_database_is_not_restored_into(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    lifecycle.stop(settings)
    bring_back(settings, elsewhere)
    with pytest.raises(Conflict, match="a database already"):
        bring_back(settings, elsewhere)
    os.unlink(elsewhere.database_path)
    Path(f"{elsewhere.database_path}-wal").touch()
    with pytest.raises(Conflict, match="a database already"):
        bring_back(settings, elsewhere)


def test_missing_litestream_refuses_the_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandNotFound, match="not installed"):
        check_replica(settings)


def test_waiting_for_a_replica_that_there_is_not_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPSQ_REPLICATE_TO")
    without = settings_of(Path(settings.state_dir))
    lifecycle.start(without)
    with opsq.connect(state_dir=settings.state_dir) as queue, pytest.raises(UsageError, match="no replica"):
        queue.submit([b"work"], ack="replicated")
    lifecycle.stop(without)
    with pytest.raises(UsageError, match="replicated"):
        lifecycle.start(settings_of(Path(settings.state_dir), ack="replicated"))
