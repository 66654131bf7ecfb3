"""Too much of something: connections, descriptors, silence, replies that nobody reads, idleness."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import (
    DEADLINE_S,
    Client,
    connected,
    end,
    error_of,
    holder,
    log_with,
    processor_s,
    running,
    settings_of,
    state_of,
)
from opsq.daemon import lifecycle
from opsq.daemon.connection_quota import DESCRIPTORS_RESERVED
from opsq.settings import Settings
from opsq.wire.frames import encode
from opsq.wire.messages import (
    Alive,
    ChunkMask,
    Heartbeat,
    NewSubmission,
    Reserve,
    Reserved,
    Started,
    Status,
    Submit,
    Submitted,
    Welcome,
)
from waiting import wait_until

QUICK = {"heartbeat_s": "200ms"}
"""Three missed heartbeats are 0.6 s."""


def many(settings: Settings, count: int) -> contextlib.ExitStack:
    """That many greeted connections, closed with the stack."""
    stack = contextlib.ExitStack()
    for _ in range(count):
        stack.enter_context(connected(settings))
    return stack


def test_connection_over_the_limit_is_told_at_once(runtime_dir: Path) -> None:
    """It gets its error without control; the others go on, and a freed place is given away again."""
    with (
        running(runtime_dir / "state", connection_limit="5") as settings,
        many(settings, 4),
        connected(settings) as last,
    ):
        for _ in range(300):
            with Client(settings.socket) as refused:
                refusal = error_of(refused.receive())
                assert (refusal.id, refusal.code) == (0, "too_many_connections")
                assert refused.is_closed()
        assert last.ask(Heartbeat(2)) == Alive(2)
        last.close()

        def is_admitted() -> bool:
            with Client(settings.socket) as client:
                return isinstance(client.greet(), Welcome)

        wait_until(is_admitted, DEADLINE_S)


def test_full_and_idle_daemon_uses_no_processor(runtime_dir: Path) -> None:
    """A hundred parked consumers and as many connections as there may be: nothing spins.

    The bound is 5 %, with room for a busy machine.
    """
    with (
        running(runtime_dir / "state", connection_limit="101") as settings,
        many(settings, 100),
        connected(settings) as last,
    ):
        last.send(Reserve(2, 1, wait_s=None))
        pid = holder(settings)
        began_s, began = processor_s(pid), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2, DEADLINE_S)
        assert processor_s(pid) - began_s <= 0.05 * (time.monotonic() - began)


def test_descriptors_are_kept_for_the_database(runtime_dir: Path) -> None:
    """With as many descriptors as the reserve and eight: eight connections, and everything still works."""
    settings = settings_of(runtime_dir / "state")
    start_with_descriptors(settings, DESCRIPTORS_RESERVED + 8)
    try:
        with many(settings, 7), connected(settings) as client:
            with Client(settings.socket) as refused:
                assert error_of(refused.receive()).code == "too_many_connections"
            reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), 10_000)]))
            assert isinstance(reply, Submitted)
    finally:
        end(settings)


def test_too_few_descriptors_are_named_with_the_limit(runtime_dir: Path) -> None:
    settings = settings_of(runtime_dir / "state")
    run = start_with_descriptors(settings, DESCRIPTORS_RESERVED)
    assert f"may open only {DESCRIPTORS_RESERVED} file descriptors" in run
    assert "ulimit -n" in run


def start_with_descriptors(settings: Settings, count: int) -> str:
    """Start a daemon under `ulimit -n`; what the start said."""
    code = (
        "from opsq.settings import load; from opsq.daemon import lifecycle; from opsq.errors import OpsqError\n"
        "try: print(lifecycle.start(load()).status)\n"
        "except OpsqError as error: print(error)"
    )
    command = ["sh", "-c", f'ulimit -n {count}; exec "$0" -c "$1"', sys.executable, code]
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout


def test_silent_consumer_is_cut_off_and_its_chunk_free(runtime_dir: Path) -> None:
    """A lost machine closes nothing: missed heartbeats alone decide, and the started chunk counts as lost."""
    with running(runtime_dir / "state", **QUICK, backoff_base_s="0") as settings:
        with connected(settings, "silent") as silent, connected(settings, "lively") as lively:
            submit(lively)
            held = silent.ask(Reserve(3, 1, "OldestFirst"))
            assert isinstance(held, Reserved)
            grant = held.grants[0]
            silent.send(Started([ChunkMask(grant.submission_id, grant.block, grant.mask)]))
            lively.send(Reserve(4, 1, "OldestFirst", wait_s=None))
            again = beat_until_reserved(lively)
            assert again.grants[0].attempt == 1
            assert silent.is_closed()
        assert "has missed its heartbeats" in log_with(settings, "'silent-")


def beat_until_reserved(client: Client) -> Reserved:
    """Send heartbeats as a living client does, until the parked reserve is answered."""
    client.socket.settimeout(0.1)
    end_at = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_at:
        with contextlib.suppress(TimeoutError):
            reply = client.receive()
            if isinstance(reply, Reserved):
                client.socket.settimeout(DEADLINE_S)
                return reply
        client.send(Heartbeat(9))
    raise AssertionError("the chunk of the silent consumer was not offered again")


def test_daemon_that_stood_still_gives_everybody_a_heartbeat(runtime_dir: Path) -> None:
    """SIGSTOP for longer than three heartbeats: what peers did not send meanwhile is not held against them."""
    with running(runtime_dir / "state", heartbeat_s="500ms") as settings, connected(settings) as client:
        pid = state_of(settings).pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5, DEADLINE_S)
        os.kill(pid, signal.SIGCONT)
        log_with(settings, "was suspended")
        assert client.ask(Heartbeat(2)) == Alive(2)


def test_client_that_never_reads_is_paused_and_then_cut_off(runtime_dir: Path) -> None:
    """Its replies are buffered up to a limit, it affects nobody else, and after three heartbeats it is disconnected."""
    with (
        running(runtime_dir / "state", **QUICK) as settings,
        connected(settings, "deaf") as deaf,
        connected(settings) as other,
    ):
        deaf.socket.settimeout(0.2)
        requests = encode([Status(number) for number in range(2000)])
        is_gone = False
        while not is_gone:
            assert other.ask(Heartbeat(3)) == Alive(3)
            try:
                deaf.socket.sendall(requests)
            except TimeoutError:
                continue
            except ConnectionError:
                is_gone = True
        assert "has not read its replies" in log_with(settings, "'deaf-")


def test_client_that_reads_slowly_but_reads_is_kept(runtime_dir: Path) -> None:
    """Every reply arrives, however long the peer lets them wait."""
    with running(runtime_dir / "state", **QUICK) as settings, connected(settings) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.send(*(Status(number) for number in range(3000)))
        seen = 0
        while seen < 3000:
            reply = slow.receive()
            assert reply is not None
            if not isinstance(reply, Alive):
                seen += 1
            if seen % 500 == 0:
                slow.send(Heartbeat(9999))
        assert seen == 3000


def test_log_is_rotated_and_bounded(runtime_dir: Path) -> None:
    """Two old files of 4 KiB are kept, however much is said."""
    with running(runtime_dir / "state", log_level="debug", log_bytes="4K", log_count="2") as settings:
        for _ in range(300):
            with connected(settings):
                pass
        wait_until(lambda: os.path.exists(f"{settings.log_path}.2"), DEADLINE_S)
        folder = Path(settings.state_dir)
        wait_until(lambda: len(list(folder.glob("opsq.log*"))) == 3, DEADLINE_S)  # else it is just being rotated
        lifecycle.stop(settings, drain_s=0)
        logs = list(folder.glob("opsq.log*"))
        assert len(logs) == 3
        assert all(log.stat().st_size <= 4096 and log.stat().st_mode & 0o777 == 0o600 for log in logs)


def submit(client: Client) -> None:
    assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)])), Submitted)


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """A hundred connections need descriptors in the test's own process as well."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
