"""Connects to a running daemon for a few requests: for `start`, `stop` and `doctor`.

This file must not retry or hold reservations; consumers and producers use opsq.client.
"""

from __future__ import annotations

from opsq.client.core.address import address_of, is_local, read_token
from opsq.client.sync.connection import Connection
from opsq.errors import StorageFull, TimedOut, Unreachable
from opsq.settings import Settings
from opsq.wire.messages import DaemonState, Status


def open_control_connection(settings: Settings) -> Connection:
    """Connect to the daemon that the settings name, over TCP with the token that every verb would use.

    Raises:
        Unreachable: no daemon answers.
        TimedOut: it accepted the connection, but did not answer.
        NotPermitted: the socket belongs to another user, or the token is wrong.
        InputUnreadable: the token file cannot be read.
    """
    try:
        address = address_of(settings)
        return Connection.open(address, name="opsq", token="" if is_local(address) else read_token(settings))
    except Unreachable as error:
        if isinstance(error.__cause__, TimedOut):
            raise error.__cause__ from None
        raise


def fetch_state(settings: Settings, timeout_s: float) -> DaemonState:
    """Ask the daemon that the settings name for its state. Raises as `open_control_connection`."""
    with open_control_connection(settings) as connection:
        return connection.call(Status(connection.next_id()), DaemonState, timeout_s)


def full_disk(state: DaemonState) -> StorageFull:
    """What a daemon that has no room would refuse a request with."""
    full = StorageFull(cause="storage_full")
    full.details.update(state.removable)
    return full
