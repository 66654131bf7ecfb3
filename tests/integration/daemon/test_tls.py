"""TLS: every client gets in by it, and who may not is told why, on either side."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import opsq
from daemons import DEADLINE_S, Client, error_of, holder, kill, log_with, running, settings_of, state_of
from opsq.client.core.address import TlsAddress, write_address
from opsq.client.sync.connection import Connection
from opsq.daemon import doctor, lifecycle
from opsq.daemon.audit_file import acts
from opsq.daemon.connection_quota import WAITING_LIMITS
from opsq.errors import InputUnreadable, NotPermitted, OpsqError, ProtocolError, Unreachable, UsageError
from opsq.settings import Settings, load
from opsq.wire.messages import Alive, Changed, Heartbeat, Pause, Status, Welcome
from waiting import wait_until


class Pki:
    """A CA, and certificates of it in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.ca = trustme.CA()
        self.ca_file = self.path("ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def issue(self, name: str, host: str = "127.0.0.1", **options: object) -> str:
        """A certificate with its key behind it, put in its place as a whole."""
        leaf = self.ca.issue_cert(host, **options)  # type: ignore[arg-type]
        new = Path(self.path(name + ".new"))
        new.touch(0o600)
        new.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        os.replace(new, self.path(name))
        return self.path(name)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@contextlib.contextmanager
def serving(folder: Path, **flags: object) -> Iterator[Settings]:
    """A daemon with TLS that is still the same when the test has ended."""
    with running(folder / "state", listen="127.0.0.1:0", **flags) as settings:
        pid = holder(settings)
        yield settings
        assert state_of(settings).pid == pid


def port_of(settings: Settings) -> int:
    return int(state_of(settings).settings["listen"].rpartition(":")[2])


def token_of(settings: Settings) -> str:
    return Path(settings.token_file).read_text().strip()


def opened(settings: Settings, **files: str) -> Connection:
    """A greeted connection over TLS."""
    return Connection.open(TlsAddress("127.0.0.1", port_of(settings), **files), token=token_of(settings))


def refusal(settings: Settings, **files: str) -> OpsqError:
    """Why there is no connection, or none after a first request."""
    with pytest.raises(OpsqError) as caught, opened(settings, **files) as connection:
        connection.call(Status(connection.next_id()), object)
    return caught.value


def awaited_refusal(settings: Settings, pki: Pki) -> OpsqError:
    """Why asyncio gets no connection."""

    async def greeted() -> None:
        address = f"tls://127.0.0.1:{port_of(settings)}?ca={pki.ca_file}"
        async with opsq.connect_async(address, token=token_of(settings)):
            pass

    with pytest.raises(OpsqError) as caught:
        asyncio.run(greeted())
    return caught.value


def test_every_client_gets_in(runtime_dir: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking, asyncio, by an address with its files or by settings; with results larger than a record of TLS."""
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        address = f"tls://127.0.0.1:{port_of(settings)}?ca={pki.ca_file}"
        data = [os.urandom(100) for _ in range(2000)]
        with opsq.connect(address, token=token_of(settings)) as queue:
            submission = queue.submit(data)
            for chunk in queue.consume("OldestFirst", batch=64):
                chunk.complete(chunk.data * 2)
            assert list(submission.results()) == [each * 2 for each in data]

        async def counted() -> int:
            async with opsq.connect_async(address, token=token_of(settings)) as queue:
                status = await queue.status()
                return status.total.completed_count

        assert asyncio.run(counted()) == 2000
        monkeypatch.setenv("OPSQ_ADDRESS", f"tls://127.0.0.1:{port_of(settings)}")
        monkeypatch.setenv("OPSQ_TLS_CA_FILE", pki.ca_file)
        monkeypatch.setenv("OPSQ_TOKEN", token_of(settings))
        with opsq.connect() as queue:
            assert queue.status().total.completed_count == 2000


def test_certificate_of_another_ca_or_host_or_of_the_past_is_refused(
    runtime_dir: Path, pki: Pki, tmp_path: Path
) -> None:
    other = Pki(tmp_path / "other")
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        assert isinstance(refusal(settings, ca_file=other.ca_file), NotPermitted)
        assert "is not accepted: " in refusal(settings, ca_file=other.ca_file).message
        pki.issue("cert.pem", "queue.example")
        wrong_host = refusal(settings, ca_file=pki.ca_file)
        assert isinstance(wrong_host, NotPermitted)
        assert "IP address mismatch" in wrong_host.message
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        pki.issue("cert.pem", not_before=past - dt.timedelta(days=1), not_after=past)
        expired = refusal(settings, ca_file=pki.ca_file)
        for each in (expired, awaited_refusal(settings, pki)):
            assert isinstance(each, NotPermitted), repr(each)
            assert "certificate has expired" in each.message


def test_rotated_certificate_is_used_without_a_restart(runtime_dir: Path, pki: Pki) -> None:
    """New connections see the new one, old ones go on; a file that is none changes nothing."""
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        with opened(settings, ca_file=pki.ca_file) as old:
            before = served_certificate(settings)
            pki.issue("cert.pem")
            assert served_certificate(settings) != before
            assert old.call(Heartbeat(77), Alive).id == 77
            now = served_certificate(settings)
            Path(pki.path("cert.pem")).write_text("no certificate")
            assert served_certificate(settings) == now
        log_with(settings, "the previous ones stay in force")


def served_certificate(settings: Settings) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port_of(settings)))


def test_client_without_the_certificate_that_is_wanted_is_refused(runtime_dir: Path, pki: Pki, tmp_path: Path) -> None:
    clients = Pki(tmp_path / "clients")
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem"), tls_client_ca_file=clients.ca_file) as settings:
        with opened(settings, ca_file=pki.ca_file, cert_file=clients.issue("me.pem")) as connection:
            assert connection.call(Heartbeat(77), Alive).id == 77
        none = refusal(settings, ca_file=pki.ca_file)
        for each in (none, awaited_refusal(settings, pki)):
            assert isinstance(each, NotPermitted), repr(each)
            assert "only clients with a certificate" in each.message
        stranger = refusal(settings, ca_file=pki.ca_file, cert_file=pki.issue("stranger.pem"))
        assert stranger.exit_status in {4, 7}
        assert "certificate" in stranger.hint
        log_with(settings, "the handshake failed")


def test_doctor_says_how_long_the_certificate_is_good(runtime_dir: Path, pki: Pki) -> None:
    def found() -> doctor.Fact:
        return next(fact for fact in doctor.examine(settings_of(runtime_dir / "state")) if fact.check == "certificate")

    now = dt.datetime.now(dt.UTC)
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem", not_after=now + dt.timedelta(days=99))):
        assert found()[1:] == (True, f"{pki.path('cert.pem')}, good for 99 days", "")
        pki.issue("cert.pem", not_after=now + dt.timedelta(days=3))
        assert found().is_ok
        assert "soon" in found().advice
        pki.issue("cert.pem", not_before=now - dt.timedelta(days=3), not_after=now - dt.timedelta(days=1))
        assert not found().is_ok
        assert "certificate has expired" in found().detail
        Path(pki.path("cert.pem")).write_text("no certificate")
        assert not found().is_ok
        assert "in PEM format" in found().detail


def test_certificate_of_a_client_is_named_in_the_audit(runtime_dir: Path, pki: Pki, tmp_path: Path) -> None:
    """By its common name, or by the first name that it is for."""
    clients = Pki(tmp_path / "clients")
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem"), tls_client_ca_file=clients.ca_file) as settings:
        for options in ({"common_name": "ada"}, {}):
            file = clients.issue("me.pem", "laptop.example", **options)
            with opened(settings, ca_file=pki.ca_file, cert_file=file) as connection:
                connection.call(Pause(connection.next_id(), {"tenant": "a"}), Changed)
        assert [act.who for act in acts(settings.audit_path)] == [
            "token operator, certificate ada",
            "token operator, certificate laptop.example",
        ]


def test_plain_client_at_a_port_with_tls_is_told(runtime_dir: Path, pki: Pki) -> None:
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        with pytest.raises(ProtocolError, match=r"This port speaks TLS only.*tls://HOST:PORT"):
            Connection.open(("127.0.0.1", port_of(settings)), token=token_of(settings))
        with Client(f"127.0.0.1:{port_of(settings)}") as client:
            assert error_of(client.greet(token=token_of(settings))).code == "protocol"
            assert client.is_closed()


def test_tls_client_at_a_plain_port_is_told(runtime_dir: Path, pki: Pki) -> None:
    with serving(runtime_dir) as settings:
        for each in (refusal(settings, ca_file=pki.ca_file), awaited_refusal(settings, pki)):
            assert isinstance(each, ProtocolError), repr(each)
            assert "does not speak TLS" in each.message


def test_wrong_token_is_refused_over_tls_too(runtime_dir: Path, pki: Pki) -> None:
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        address = TlsAddress("127.0.0.1", port_of(settings), pki.ca_file)
        with pytest.raises(NotPermitted, match="token is missing or wrong"):
            Connection.open(address, token="wrong")


def test_files_that_are_none_are_named(runtime_dir: Path, pki: Pki) -> None:
    with pytest.raises(InputUnreadable, match="Cannot read the TLS file /nowhere"):
        lifecycle.start(
            load({"state_dir": str(runtime_dir / "s"), "listen": "127.0.0.1:0", "tls_cert_file": "/nowhere"})
        )
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings:
        assert isinstance(refusal(settings, ca_file="/nowhere"), InputUnreadable)


def test_tls_without_a_certificate_is_refused(runtime_dir: Path, pki: Pki) -> None:
    """TCP would be plain, though somebody has asked for more."""
    for name in ("tls_client_ca_file", "tls_key_file"):
        with pytest.raises(UsageError, match=f"{name} is set, but tls_cert_file is not"):
            lifecycle.start(load({"state_dir": str(runtime_dir / "s"), "listen": "127.0.0.1:0", name: pki.ca_file}))


def test_unfinished_handshakes_shut_out_nobody_and_are_let_go(runtime_dir: Path, pki: Pki) -> None:
    """Silent ones, and those that begin and stop: the oldest give way, descriptors are given back."""
    with serving(runtime_dir, tls_cert_file=pki.issue("cert.pem")) as settings, contextlib.ExitStack() as stack:
        address, pid = f"127.0.0.1:{port_of(settings)}", holder(settings)
        before = open_files(pid)
        for number in range(3 * WAITING_LIMITS[True]):
            client = stack.enter_context(Client(address))
            if number % 2:
                client.socket.sendall(b"\x16\x03\x01")
        with opened(settings, ca_file=pki.ca_file) as connection:
            assert connection.call(Heartbeat(77), Alive).id == 77
        wait_until(lambda: open_files(pid) <= before + WAITING_LIMITS[True] + 8, DEADLINE_S, "the oldest are closed")
        stack.close()
        wait_until(lambda: open_files(pid) <= before + 4, DEADLINE_S, "all are closed")


def open_files(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_other_machines_may_be_served_with_tls_without_force(runtime_dir: Path, pki: Pki) -> None:
    with pytest.raises(UsageError, match="Listen with TLS"):
        lifecycle.start(load({"state_dir": str(runtime_dir / "s"), "listen": "0.0.0.0:0"}))
    flags = {"listen": "0.0.0.0:0", "tls_cert_file": pki.issue("cert.pem")}
    with running(runtime_dir / "state", **flags) as settings, opened(settings, ca_file=pki.ca_file) as connection:
        assert isinstance(connection.welcome, Welcome)


@pytest.mark.parametrize("is_killed", [False, True])
def test_daemon_that_goes_away_is_missed(runtime_dir: Path, pki: Pki, is_killed: bool) -> None:
    with (
        running(runtime_dir / "state", listen="127.0.0.1:0", tls_cert_file=pki.issue("cert.pem")) as settings,
        opened(settings, ca_file=pki.ca_file) as connection,
    ):
        if is_killed:
            kill(settings)
        else:
            lifecycle.stop(settings, 0.0)

        def read_on() -> None:
            while True:
                connection.receive(DEADLINE_S)

        with pytest.raises(Unreachable) as raised:
            read_on()
        assert "TLS" not in raised.value.message


def test_address_with_files_is_written_as_it_is_read(pki: Pki) -> None:
    from opsq.client.core.address import parse_address

    for address in (
        TlsAddress("::1", 7411, "/a b/ca&x.pem", "/c?", "/k=1"),
        TlsAddress("queue.example", 1),
        ("127.0.0.1", 7411),
        "/run/opsq.sock",
    ):
        assert parse_address(write_address(address)) == address
    with pytest.raises(UsageError, match="ca=FILE"):
        parse_address("tls://h:1?verify=no")
