"""The kernel's word on who is at the other end of a socket."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from opsq.peer_credentials import peer_uid


def test_peer_of_a_unix_socket_is_this_user():
    left, right = socket.socketpair()
    with left, right:
        assert peer_uid(left) == peer_uid(right) == os.getuid()


def test_peer_of_a_closed_or_other_socket_is_unknown():
    left, right = socket.socketpair()
    left.close()
    right.close()
    assert peer_uid(left) is None
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert peer_uid(client) is None


class _MacSocket:
    """A connected Unix socket of macOS, which answers LOCAL_PEERCRED alone."""

    family = socket.AF_UNIX

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (0, 1)  # SOL_LOCAL, LOCAL_PEERCRED
        return self._answer[:size]


def test_peer_on_macos_is_in_the_structure_that_its_kernel_fills(monkeypatch: pytest.MonkeyPatch):
    """In struct xucred: version, uid, number of groups, padding, sixteen groups."""
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    answer = struct.pack("=IIh2x16I", 0, 501, 2, 20, 12, *[0] * 14)
    assert len(answer) == 76
    assert peer_uid(_MacSocket(answer)) == 501
    assert peer_uid(_MacSocket(answer[:8])) is None
    assert peer_uid(_MacSocket(struct.pack("=I", 7) + answer[4:])) is None
