"""The kernel's word on who is at the other end of a socket."""

from __future__ import annotations

import os
import socket

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
