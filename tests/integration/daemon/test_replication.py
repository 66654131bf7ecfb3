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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opsq
from daemons import DEADLINE_S, connected, end, kill, settings_of, state_of
from opsq.daemon import lifecycle
from opsq.daemon.replica_access import check_replica
from opsq.errors import CommandNotFound, Conflict, Deposed, UsageError
from opsq.replica.restoring import restore
from opsq.settings import Settings
from opsq.wire.messages import (
    DaemonState,
    NewSubmission,
    ReplicaState,
    Reserve,
    Reserved,
    Status,
    Submit,
    Submitted,
)
from waiting import wait_until


@pytest.fixture
def settings(
    runtime_dir: Path, service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, bucket: str
) -> Iterator[Settings]:
    """Of a daemon that copies into the service, with a short lease; it is ended after the test."""
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPSQ_REPLICATE_TO", f"s3://{bucket}/replica")
    monkeypatch.setenv("OPSQ_REPLICATE_LEASE_S", "2s")
    monkeypatch.setenv("OPSQ_REPLICATE_EVERY_S", "0.1s")
    found = settings_of(runtime_dir / "state")
    yield found
    end(found)


@pytest.fixture
def elsewhere(settings: Settings, runtime_dir: Path) -> Iterator[Settings]:
    """Settings of another machine; nothing runs there."""
    found = settings_of(runtime_dir / "elsewhere")
    yield found
    end(found)


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
        self._run(self._accept)

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()
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

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._is_whole:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    self._run(self._forward, source, sink)

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


def litestream_of(settings: Settings) -> int:
    """The process that copies."""
    return int(Path(settings.state_dir, "litestream/litestream.lock").read_text())


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
    os.kill(first, signal.SIGKILL)
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
    lock_path = f"{settings.state_dir}/litestream/litestream.lock"
    assert lifecycle.is_locked(lock_path)
    kill(settings)
    wait_until(lambda: not lifecycle.is_locked(lock_path), DEADLINE_S, "Litestream has ended")


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


def test_content_on_this_machine_alone_is_refused(settings: Settings) -> None:
    with pytest.raises(UsageError, match="content of its chunks") as caught:
        lifecycle.start(settings_of(Path(settings.state_dir), store=f"file://{settings.state_dir}/content"))
    assert "--store s3://" in caught.value.hint


def test_folder_with_a_database_is_not_restored_into(settings: Settings, elsewhere: Settings) -> None:
    lifecycle.start(settings)
    await_copy(settings)
    lifecycle.stop(settings)
    bring_back(settings, elsewhere)
    with pytest.raises(Conflict, match="a database already"):
        bring_back(settings, elsewhere)


def test_missing_litestream_refuses_the_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandNotFound, match="not installed"):
        check_replica(settings)
