"""Who is at the other end of a connection, as system, token and certificate say it.

This file must not decide what anybody may do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from opsq.peer_credentials import peer_uid
from opsq.units import format_address
from opsq.users import user_name


def local_user(transport: asyncio.BaseTransport | None) -> int | None:
    """The user of the process at the other end of a Unix socket, if it is still there."""
    return None if transport is None else peer_uid(transport.get_extra_info("socket"))


def place(transport: asyncio.BaseTransport | None, *, is_tcp: bool) -> str:
    """Where the peer is: host and port, or the user of a process on this machine."""
    if is_tcp:
        found = None if transport is None else transport.get_extra_info("peername")
        return format_address(*found[:2]) if found else "an unknown host"
    uid = local_user(transport)
    return "this machine" if uid is None else f"uid {uid}"


def token_holder(token: str, transport: asyncio.BaseTransport | None) -> str:
    """A token by its name, with the name of the certificate that the client has shown."""
    certificate: Mapping[str, Any] | None = None if transport is None else transport.get_extra_info("peercert")
    if not certificate:
        return f"token {token}"
    subject = [pair for names in certificate.get("subject", ()) for pair in names]
    common = [value for key, value in subject if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    name = (common or others or [", ".join(f"{key}={value}" for key, value in subject)])[0]
    return f"token {token}, certificate {name}"


def user_and_host(who: str | int | None, transport: asyncio.BaseTransport | None) -> tuple[str | None, str | None]:
    """Who somebody is and where, for people to read: a user and this machine, or a token and the client's address.

    Args:
        who: a token with its certificate, or the id of a user of this machine; None: unknown.
        transport: the connection.
    """
    if not isinstance(who, str):
        return (None, None) if who is None else (user_name(who), socket.gethostname())
    found = None if transport is None else transport.get_extra_info("peername")
    return who, found[0] if found else None
