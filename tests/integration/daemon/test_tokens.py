"""Tokens over TCP: exact to the last character, with roles, changed while the daemon runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import (
    DEADLINE_S,
    Client,
    connected,
    error_of,
    holder,
    log_with,
    running,
    state_of,
    whole_log,
    with_client_token,
)
from opsq.daemon import tokens_file
from opsq.settings import Settings
from opsq.wire.messages import (
    Alive,
    DaemonState,
    ErrorReply,
    Heartbeat,
    Limit,
    NewSubmission,
    Pause,
    Reserve,
    Reserved,
    Status,
    Submit,
    Submitted,
    Welcome,
)
from waiting import wait_until

CLIENT_TOKEN = "client-token-0123456789abcdef"


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon that listens on TCP, with both plain tokens."""
    folder = with_client_token(runtime_dir / "state", CLIENT_TOKEN)
    with running(folder, listen="127.0.0.1:0") as found:
        pid = holder(found)
        yield found
        assert holder(found) == pid, "the daemon was started again"


def address_of(settings: Settings) -> str:
    return state_of(settings).settings["listen"]


def created(settings: Settings, name: str, *roles: str) -> str:
    return tokens_file.create(settings.tokens_file, name, frozenset(roles))


def code_with(address: str, token: str) -> str:
    """What a hello with a token is answered with: the code of the refusal, empty for a welcome."""
    with Client(address) as client:
        reply = client.greet(token=token)
        return "" if isinstance(reply, Welcome) else error_of(reply).code


@pytest.mark.parametrize("kind", ["operator", "client", "named"])
def test_token_counts_only_whole_and_to_the_last_character(settings: Settings, kind: str) -> None:
    """Truncated at each place, extended at both ends, wrong by one character at each place, in the other case."""
    address = address_of(settings)
    token = {
        "operator": Path(settings.token_file).read_text().strip(),
        "client": CLIENT_TOKEN,
        "named": created(settings, "etl", "producer"),
    }[kind]
    assert code_with(address, token) == ""
    wrong = [token[:at] for at in range(len(token))]
    wrong += [token[at:] for at in range(1, len(token))]
    wrong += [token[:at] + ("x" if token[at] != "x" else "y") + token[at + 1 :] for at in range(len(token))]
    wrong += [token + "0", "0" + token, token + "\n", " " + token, token + "\0", token + token, token.upper()]
    wrong += [tokens_file.digest_of(token).hex()]
    assert {each for each in wrong if code_with(address, each) != "not_permitted"} == set()
    assert code_with(address, token) == ""


def test_named_token_works_at_once_and_a_revoked_one_ends_its_connections(settings: Settings) -> None:
    address = address_of(settings)
    token = created(settings, "etl", "producer")
    with Client(address) as client, Client(address) as other:
        assert isinstance(client.greet(token=token), Welcome)
        assert isinstance(other.greet(token=CLIENT_TOKEN), Welcome)
        tokens_file.revoke(settings.tokens_file, "etl")
        refusal = error_of(client.receive())
        assert (refusal.id, refusal.code) == (0, "not_permitted")
        assert "etl" in refusal.message
        assert client.is_closed()
        assert other.ask(Heartbeat(2)) == Alive(2)
    assert code_with(address, token) == "not_permitted"
    assert token not in whole_log(settings)


def test_token_narrows_what_its_client_may_do_over_the_unix_socket_too(runtime_dir: Path) -> None:
    """Of a daemon that does not listen on TCP; a wrong one lets nobody in, and a revoked one ends its connections."""
    with running(runtime_dir / "state") as settings:
        token = created(settings, "etl", "producer")
        with Client(settings.socket) as client, connected(settings) as other:
            assert isinstance(client.greet(token=token), Welcome)
            assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)])), Submitted)
            assert error_of(client.ask(Reserve(3, 1))).code == "not_permitted"
            assert error_of(client.ask(Limit(4, "tenant", "x", 1, None))).code == "not_permitted"
            assert code_with(settings.socket, token + "0") == "not_permitted"
            tokens_file.revoke(settings.tokens_file, "etl")
            assert error_of(client.receive()).code == "not_permitted"
            assert other.ask(Heartbeat(5)) == Alive(5)


def test_plain_tokens_are_rotated_without_a_restart(settings: Settings) -> None:
    """By writing another file and renaming it, as one rotates secrets."""
    address = address_of(settings)
    for path in (settings.token_file, settings.client_token_file):
        old = Path(path).read_text().strip()
        with Client(address) as client:
            assert isinstance(client.greet(token=old), Welcome)
            new = Path(path + ".new")
            new.touch(0o600)
            new.write_text("n" * 40 + path[-5:])
            os.replace(new, path)
            assert error_of(client.receive()).code == "not_permitted"
        assert code_with(address, old) == "not_permitted"
        assert code_with(address, "n" * 40 + path[-5:]) == ""


def test_mistake_in_a_file_shuts_nobody_out(settings: Settings) -> None:
    address = address_of(settings)
    token = created(settings, "etl", "producer")
    assert code_with(address, token) == ""
    Path(settings.tokens_file).write_text("what is this?\n")
    log_with(settings, "previous ones stay in force")
    assert code_with(address, token) == ""
    os.chmod(settings.token_file, 0o644)
    assert code_with(address, Path(settings.token_file).read_text().strip()) == ""


def test_roles_permit_their_own_work_and_reading(settings: Settings) -> None:
    address = address_of(settings)

    def asked(token: str) -> list[str]:
        """How a token fares with one request of each kind, in order."""
        requests = (
            Submit(2, [NewSubmission(os.urandom(16), 1)]),
            Reserve(3, 1, "OldestFirst", 0.0),
            Status(4),
            Pause(5, {"tenant": "x"}),
            Limit(6, "tenant", "x", 1),
        )
        with Client(address) as client:
            assert isinstance(client.greet(token=token), Welcome)
            replies = [client.ask(request) for request in requests]
        return [reply.code if isinstance(reply, ErrorReply) else "" for reply in replies]

    no = "not_permitted"
    assert asked(created(settings, "p", "producer")) == ["", no, "", "", no]
    assert asked(created(settings, "c", "consumer")) == [no, "", "", "", no]
    assert asked(created(settings, "r", "read-only")) == [no, no, "", no, no]
    assert asked(created(settings, "pc", "producer", "consumer")) == ["", "", "", "", no]
    assert asked(created(settings, "o", "operator")) == [""] * 5


def test_refusal_names_role_and_token(settings: Settings) -> None:
    address = address_of(settings)
    with Client(address) as client:
        client.greet(token=created(settings, "viewer", "read-only"))
        refusal = error_of(client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)])))
    error = refusal.error()
    assert "Submit needs the role operator or producer; the token viewer has only read-only." in error.message


def test_local_clients_need_no_token(settings: Settings) -> None:
    with connected(settings) as client:
        assert isinstance(client.ask(Status(2)), DaemonState)
        reply = client.ask(Submit(3, [NewSubmission(os.urandom(16), 1)]))
        assert isinstance(reply, Submitted)
        assert isinstance(client.ask(Reserve(4, 1, "OldestFirst", 0.0)), Reserved)
    wait_until(lambda: state_of(settings).connections_count == 1, DEADLINE_S)
