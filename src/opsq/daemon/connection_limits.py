"""What one connection may take of the daemon, in numbers to which the session keeps.

How many connections there may be is in `connection_quota`, how many calls of one may wait in `queue.peer`. This file
must decide nothing.
"""

from __future__ import annotations

from opsq.wire.messages import Dead, Describe, Events, GetAttachment, History, List, Results

WRITE_HIGH_BYTES = 1 << 20
"""Reading from a peer pauses while it has this much unread output."""

WRITE_LIMIT_BYTES = 32 << 20
"""A peer with this much unread output, or with two frames of it if they may be longer, is disconnected."""

LONG_ANSWERS = frozenset({Dead, Describe, Events, GetAttachment, History, List, Results})
"""Requests whose answers may have megabytes, or take milliseconds."""

OPERATIONS_LIMIT = 16
"""Checks, backups and so on that one connection may have in progress."""

HELLO_S = 10.0
"""How long a peer may take for its whole hello, unless its silence may be shorter."""

LINGER_S = 2.0
"""How long a peer may take to read the reason before its connection is closed."""
