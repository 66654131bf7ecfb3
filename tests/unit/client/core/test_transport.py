"""Connections to a daemon: one that fails at once is told in words."""

from __future__ import annotations

import errno
import socket
from unittest.mock import Mock

import pytest

from opsq.client.core.address import Address
from opsq.client.core.transport import connected_socket
from opsq.errors import Unreachable


def test_connection_that_is_reset_at_once_is_closed_and_no_daemon_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS has it: no option can be set any more."""
    peer = Mock(setsockopt=Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
    monkeypatch.setattr(socket, "create_connection", lambda *_: peer)
    with pytest.raises(Unreachable, match=r"No daemon answers at 127\.0\.0\.1:7411: Invalid argument"):
        connected_socket(("127.0.0.1", 7411))
    peer.close.assert_called_once_with()


@pytest.mark.parametrize("address", ["/run/opsq.sock", ("127.0.0.1", 7411)], ids=["unix", "tcp"])
def test_process_without_a_descriptor_left_cannot_connect_now(
    monkeypatch: pytest.MonkeyPatch, address: Address
) -> None:
    """What ends nothing: links try again."""
    monkeypatch.setattr(socket, "socket", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(Unreachable, match=r"This process cannot connect to .*: Too many open files\. Close some"):
        connected_socket(address)


def test_folder_that_vanished_after_the_socket_was_connected_is_that_of_no_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Mock()
    monkeypatch.setattr(socket, "socket", lambda *_: peer)
    monkeypatch.setattr("opsq.client.core.transport.peer_uid", lambda _: 0)
    with pytest.raises(Unreachable, match=r"No daemon answers at /vanished/opsq\.sock: No such file or directory"):
        connected_socket("/vanished/opsq.sock")
    peer.close.assert_called_once_with()


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"], ids=["empty label", "long label"])
def test_name_that_no_host_can_have_is_that_of_no_daemon(host: str) -> None:
    with pytest.raises(Unreachable, match=f"No daemon answers at {host}:7480: the name of the host is not valid"):
        connected_socket((host, 7480))
