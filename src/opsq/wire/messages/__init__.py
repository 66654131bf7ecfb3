"""Every message of the protocol, as msgspec structs; the vocabulary that client, daemon and engine share.

Import messages from here; the modules below divide them by subject. Nothing here decides anything or does I/O.

A message travels as a MessagePack array whose first element is its class name. Requests carry an `id` chosen by the
client, unique among its unanswered requests; every reply repeats it. Messages without an `id` are one-way. Units are in
the names: `_s` seconds, `_at` milliseconds since 1970 UTC, `_bytes`, `_count`. Masks are unsigned.
"""

from __future__ import annotations

from opsq.wire.messages import administration, chunks, connection, events, inspection, moves, schedules, submissions
from opsq.wire.messages.administration import *
from opsq.wire.messages.chunks import *
from opsq.wire.messages.connection import *
from opsq.wire.messages.events import *
from opsq.wire.messages.fields import *
from opsq.wire.messages.inspection import *
from opsq.wire.messages.moves import *
from opsq.wire.messages.schedules import *
from opsq.wire.messages.submissions import *

Request = (
    connection.Requests
    | submissions.Requests
    | chunks.Requests
    | inspection.Requests
    | events.Events
    | administration.Requests
    | schedules.Requests
    | moves.Requests
)

Reply = (
    connection.Replies
    | submissions.Replies
    | chunks.Replies
    | inspection.Replies
    | events.EventRows
    | administration.Replies
    | schedules.Schedules
    | moves.Replies
)
