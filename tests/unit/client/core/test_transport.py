"""Connections to a daemon: one that fails at once is told in words."""

from __future__ import annotations

import errno
import socket
from unittest.mock import Mock

import pytest

from opsq.client.core.transport import connected_socket
from opsq.errors import Unreachable


def test_connection_that_is_reset_at_once_is_closed_and_no_daemon_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS has it: no option can be set any more."""
    peer = Mock(setsockopt=Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
    monkeypatch.setattr(socket, "create_connection", lambda *_: peer)
    with pytest.raises(Unreachable, match=r"No daemon answers at 127\.0\.0\.1:7411: Invalid argument"):
        connected_socket(("127.0.0.1", 7411))
    peer.close.assert_called_once_with()
