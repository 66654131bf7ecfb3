"""The door for TLS: no client closes it for the others."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any
from unittest.mock import Mock

from opsq.daemon.connection_quota import ConnectionQuota
from opsq.daemon.refusal_log import RefusalLog
from opsq.daemon.server_tls import TlsDoor


class Gone(socket.socket):
    """A client that has reset its connection, as macOS has it: no option can be set."""

    def setsockopt(self, *args: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


class Listener(socket.socket):
    """Its first client is gone when it is accepted."""

    has_accepted = False

    def accept(self) -> tuple[socket.socket, Any]:
        client, address = super().accept()
        if not self.has_accepted:
            self.has_accepted = True
            client = Gone(fileno=client.detach())
        return client, address


def test_client_that_has_gone_at_once_does_not_close_the_door() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        with Listener() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            quota = ConnectionQuota(10)
            door = TlsDoor(listener, Mock(), Mock(), quota, RefusalLog())
            for is_gone in (True, False):
                with socket.socket() as client:
                    client.setblocking(False)
                    await loop.sock_connect(client, listener.getsockname())
                    if not is_gone:
                        await loop.sock_sendall(client, b"no TLS")
                    received = await asyncio.wait_for(loop.sock_recv(client, 100), 10)
                    assert (received == b"") == is_gone, "the second is told that this port speaks TLS"
            door.close()

    asyncio.run(work())
