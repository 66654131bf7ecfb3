"""TCP: off by default, loopback unless forced, and never without a token."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemons import Client, error_of, log_with, running, settings_of, with_client_token
from opsq.daemon import lifecycle
from opsq.daemon.control_connection import fetch_state
from opsq.errors import NotPermitted, TimedOut, UsageError
from opsq.settings import Settings, load
from opsq.wire.frames import encode
from opsq.wire.messages import (
    Changed,
    Check,
    Checked,
    DaemonState,
    Heartbeat,
    Hello,
    Pause,
    Resume,
    Status,
    Stop,
    Welcome,
)
from scripted import welcome

CLIENT_TOKEN = "c" * 32


def free_address() -> str:
    """An address on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon that listens on TCP, with both tokens."""
    folder = with_client_token(runtime_dir / "state", CLIENT_TOKEN)
    with running(folder, listen=free_address()) as found:
        yield found


def token_of(settings: Settings) -> str:
    return Path(settings.token_file).read_text().strip()


def test_tcp_is_off_by_default(runtime_dir: Path) -> None:
    with running(runtime_dir / "state") as settings:
        assert settings.listen == ""
        assert not Path(settings.token_file).exists()


def test_address_that_others_can_reach_must_be_forced(runtime_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"Other machines can reach 0\.0\.0\.0:0.*--listen-force"):
        lifecycle.start(settings_of(runtime_dir / "state", listen="0.0.0.0:0"))
    with running(runtime_dir / "state", listen="0.0.0.0:0", listen_force=True):
        pass


def test_client_token_may_pause_but_not_in_the_name_of_operators(settings: Settings) -> None:
    with Client(settings.listen) as client:
        client.greet(token=CLIENT_TOKEN)
        assert isinstance(client.ask(Pause(2, {"tenant": "a"})), Changed)
        assert error_of(client.ask(Pause(3, {"tenant": "a"}, by_operator=True))).code == NotPermitted.code
        assert error_of(client.ask(Resume(4, {"tenant": "a"}, by_operator=True))).code == NotPermitted.code
        assert isinstance(client.ask(Resume(5, {"tenant": "a"})), Changed)


def test_operator_token_permits_everything(settings: Settings) -> None:
    with Client(settings.listen) as client:
        welcome = client.greet(token=token_of(settings))
        assert isinstance(welcome, Welcome)
        assert welcome.is_operator
        assert isinstance(client.ask(Check(2)), Checked)


def test_client_token_permits_no_operator_verb(settings: Settings) -> None:
    with Client(settings.listen) as client:
        welcome = client.greet(token=CLIENT_TOKEN)
        assert isinstance(welcome, Welcome)
        assert not welcome.is_operator
        assert isinstance(client.ask(Status(2)), DaemonState)
        assert error_of(client.ask(Stop(3, 0.0))).code == NotPermitted.code
        assert isinstance(client.ask(Status(4)), DaemonState)


@pytest.mark.parametrize("token", ["", "wrong-and-secret-token", CLIENT_TOKEN + "c", "ü" * 20])
def test_wrong_token_is_refused_before_anything_else_and_never_logged(settings: Settings, token: str) -> None:
    """What is sent behind the hello is not looked at: were it decoded, this garbage would get an error of its own."""
    with Client(settings.listen) as client:
        client.socket.sendall(encode([Hello(7, 1, "x", token)]) + b"\x00\x00\x00\x02\xc1\xc1")
        refusal = error_of(client.receive())
        assert (refusal.id, refusal.code) == (7, NotPermitted.code)
        assert client.is_closed()
    log = log_with(settings, "The token is missing or wrong")
    assert not token or token not in log + refusal.message + refusal.hint


def test_requests_before_a_hello_are_refused(settings: Settings) -> None:
    with Client(settings.listen) as client:
        client.send(Heartbeat(1))
        assert error_of(client.receive()).code == "protocol"
        assert client.is_closed()


def test_hello_must_be_alone_in_its_frame(settings: Settings) -> None:
    """So nothing of a peer without a token is ever decoded but its hello."""
    with Client(settings.listen) as client:
        client.send(Hello(1, 1, "", token_of(settings)), Heartbeat(2))
        assert error_of(client.receive()).code == "protocol"


def test_token_file_that_others_can_read_is_refused(runtime_dir: Path) -> None:
    folder = runtime_dir / "state"
    folder.mkdir(0o700)
    (folder / "token").write_text("t" * 32)
    (folder / "token").chmod(0o644)
    with pytest.raises(NotPermitted, match="mode 0644"):
        lifecycle.start(settings_of(folder, listen=free_address()))


def test_short_token_is_refused(runtime_dir: Path) -> None:
    folder = runtime_dir / "state"
    folder.mkdir(0o700)
    (folder / "token").touch(0o600)
    (folder / "token").write_text("short")
    with pytest.raises(UsageError, match="shorter than 16 characters"):
        lifecycle.start(settings_of(folder, listen=free_address()))


def test_daemon_that_hangs_is_not_reported_as_stopped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It answers neither the request nor heartbeats, and keeps its connection."""
    monkeypatch.setattr(lifecycle, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = load(
            {
                "state_dir": str(tmp_path),
                "address": f"127.0.0.1:{server.getsockname()[1]}",
                "token_file": settings.token_file,
            }
        )

        def accept() -> socket.socket:
            peer, _ = server.accept()
            peer.sendall(encode([welcome(heartbeat_s=0.02)]))
            return peer

        with ThreadPoolExecutor() as threads:
            peer = threads.submit(accept)
            with pytest.raises(TimedOut, match="has not exited"):
                lifecycle.stop(remote)
            peer.result().close()


def test_stop_over_tcp_uses_the_token_file(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another machine: an address and a token file are all that is needed.

    A worker's environment holds the token of clients, which may not stop a daemon.
    """
    monkeypatch.setenv("OPSQ_TOKEN", CLIENT_TOKEN)
    remote = load({"state_dir": "/nowhere", "address": settings.listen, "token_file": settings.token_file})
    assert fetch_state(remote, 10.0).pid
    assert lifecycle.stop(remote).status == "stopped"
    assert not os.path.exists(settings.socket)
