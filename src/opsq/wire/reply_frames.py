"""Writes replies in frames within the limit; a reply that cannot be sent is replaced by an error with its id.

This file must not decide when replies are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from opsq.errors import OpsqError, ProtocolError
from opsq.units import counted
from opsq.wire.frames import encode
from opsq.wire.messages import ErrorReply, Reply


def write_replies(
    transport: asyncio.Transport,
    replies: Sequence[Reply],
    limit_bytes: int,
    report: Callable[[Exception], OpsqError],
) -> None:
    """Write replies in one frame, or in several if it would be longer than `limit_bytes`.

    Args:
        report: logs an internal error and returns the error to send.
    """
    try:
        frame = encode(replies)
        is_sendable = len(frame) - 4 <= limit_bytes
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        if len(replies) == 1:
            transport.write(encode([ErrorReply.of(getattr(replies[0], "id", 0), report(error))]))
            return
        is_sendable = False
    if is_sendable:
        transport.write(frame)
    elif len(replies) > 1:
        half = len(replies) // 2
        write_replies(transport, replies[:half], limit_bytes, report)
        write_replies(transport, replies[half:], limit_bytes, report)
    else:
        reply_id = getattr(replies[0], "id", 0)
        kind = type(replies[0]).__name__
        text = (
            f"The {kind} reply of {counted(len(frame) - 4, 'byte')} exceeds the frame limit "
            f"of {counted(limit_bytes, 'byte')}."
        )
        hint = "Request less at once, or raise frame_limit_bytes."
        transport.write(encode([ErrorReply(reply_id, ProtocolError.code, text, hint)]))
