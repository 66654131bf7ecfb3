"""Who is at the other end of a Unix socket, as the kernel says; both the daemon and its clients ask.

This file must not decide what a user may do.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

_LOCAL_PEERCRED, _XUCRED = 1, struct.Struct("=IIh2x16I")  # macOS, <sys/ucred.h>: version, uid, groups
_UCRED = struct.Struct("=iII")  # Linux, socket(7): pid, uid, gid


def peer_uid(peer: Any) -> int | None:
    """The user id of the process that made the other end of a connected Unix socket.

    Args:
        peer: a socket, or what a transport gives as its socket.

    Returns:
        None: it is not a Unix socket, is closed, or the system does not say.
    """
    try:
        if peer.family != socket.AF_UNIX:
            return None
        if hasattr(socket, "SO_PEERCRED"):
            return int(_UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1])
        version, uid, *_ = _XUCRED.unpack(peer.getsockopt(0, _LOCAL_PEERCRED, _XUCRED.size))
        return int(uid) if version == 0 else None
    except (OSError, struct.error):
        return None
