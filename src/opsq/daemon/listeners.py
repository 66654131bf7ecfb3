"""Accepts connections on the sockets of a daemon, and makes the file of a Unix socket again when it is gone.

It must not know what a connection is for: it is given what makes one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Protocol

from opsq.daemon.sockets import BACKLOG, ListeningSocket
from opsq.errors import OpsqError

LOOK_S = 1.0
"""How often to look whether clients still find the socket."""

_NO_CLEANUP: dict[str, bool] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The path is removed by `ListeningSocket`, and only when it is ours: an inherited one belongs to the service
manager."""

_log = logging.getLogger("opsq.daemon")


class Door(Protocol):
    """What accepts connections on a socket."""

    def close(self) -> None:
        """Accept no more."""


class Listeners:
    """Sockets that accept; `close` also closes the sockets.

    Args:
        make_session: makes the protocol of a connection, given whether it came over TCP.
        open_door: accepts what comes over TCP in another way, with TLS; None: nothing has TLS.
        check_place: called before each look, so that a daemon whose folder was removed makes no socket in the next.
    """

    def __init__(
        self,
        make_session: Callable[[bool], asyncio.Protocol],
        open_door: Callable[[socket.socket], Door] | None,
        check_place: Callable[[], None],
    ) -> None:
        self._make_session = make_session
        self._open_door = open_door
        self._check_place = check_place
        self._servers: dict[ListeningSocket, Door] = {}
        self._watch: asyncio.Task[None] | None = None
        self._told = ""

    @property
    def tcp_names(self) -> list[str]:
        """The TCP addresses: with port 0 the system has chosen one."""
        return [one.name for one in self._servers if one.is_tcp]

    async def open(self, bound: list[ListeningSocket]) -> None:
        """Accept connections on these sockets."""
        for one in bound:
            await self._accept(one)
        self._watch = asyncio.get_running_loop().create_task(self._keep_files())

    def close(self) -> None:
        """Accept no more."""
        if self._watch is not None:
            self._watch.cancel()
        for one, server in self._servers.items():
            server.close()
            one.close()

    async def _accept(self, one: ListeningSocket) -> None:
        loop = asyncio.get_running_loop()
        one.socket.setblocking(False)
        make = self._make_session
        server: Door
        if one.is_tcp and self._open_door is not None:
            server = self._open_door(one.socket)
        elif one.is_tcp:
            server = await loop.create_server(lambda: make(True), sock=one.socket, backlog=BACKLOG)
        else:
            server = await loop.create_unix_server(
                lambda: make(False),
                sock=one.socket,
                backlog=BACKLOG,
                **_NO_CLEANUP,  # type: ignore[arg-type]  # uvloop's stubs do not know it
            )
        self._servers[one] = server

    async def _keep_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._check_place()
                for one, server in list(self._servers.items()):
                    if one.renew():
                        server.close()
                        await self._accept(one)
                        _log.warning("the socket file %s was missing and has been created again", one.name)
            except (OpsqError, OSError) as error:
                if str(error) != self._told:
                    self._told = str(error)
                    _log.error("clients can no longer find the socket: %s", error)
