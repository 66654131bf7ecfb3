"""How a client gets a socket for whatever it connects to: one daemon, or the router of this process for several.

It must not know what is said over it, nor import anything slow: all verbs pass through here.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from opsq.client.core.address import ShardedAddress, Target, TlsAddress
from opsq.client.core.transport import connected_socket, unreachable

if TYPE_CHECKING:
    from opsq.client.core.tls import TlsSocket


def dial(address: Target) -> socket.socket | TlsSocket:
    """A socket connected to `address`, with TLS if that has it.

    Raises:
        OpsqError: as `connected_socket`; for TLS, as `tls.wrap`.
    """
    peer = dial_plain(address)
    if not isinstance(address, TlsAddress):
        return peer
    from opsq.client.core.tls import wrap

    try:
        return wrap(peer, address)
    except BaseException:
        peer.close()
        raise


def dial_plain(address: Target) -> socket.socket:
    """A socket connected to `address`; TLS has not begun.

    Raises:
        OpsqError: as `connected_socket`.
    """
    if not isinstance(address, ShardedAddress):
        return connected_socket(address)
    from opsq.client.shards.router_thread import local_socket

    try:
        return local_socket(address)
    except OSError as error:
        raise unreachable(address, error) from error
