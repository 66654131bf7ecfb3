"""How a client of several daemons gets its socket: without a descriptor left it gets none now."""

from __future__ import annotations

import errno
import socket
from unittest.mock import Mock

import pytest

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.dialling import dial
from opsq.errors import Unreachable


def test_process_without_a_descriptor_left_cannot_connect_to_its_router_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socketpair", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(Unreachable, match=r"This process cannot connect to /a,/b: Too many open files\."):
        dial(ShardedAddress(("/a", "/b")))
