"""What a worker process and its consumer say to each other over their pipe.

This file must not know who says it when. Nothing here is pickled.
"""

from __future__ import annotations

import msgspec

from opsq.client.core.outcome import Outcome
from opsq.errors import OpsqError
from opsq.wire.messages import SubmissionContent


class Work(msgspec.Struct, array_like=True):
    """A chunk. `described` is left out if it is that of the chunk before; lanes tell apart what is awaited at once."""

    handle: str
    described: SubmissionContent | None
    lane: int = 0


class Lot(msgspec.Struct, array_like=True, tag=True):
    """To a worker: chunks to work on, one after the other; awaited at once by a coroutine function."""

    chunks: list[Work]


class Cancel(msgspec.Struct, array_like=True, tag=True):
    """To a worker: the coroutine of a lane has taken too long."""

    lane: int


class Enough(msgspec.Struct, array_like=True, tag=True):
    """To a worker that awaits: nothing is to come any more."""


class AttachmentIs(msgspec.Struct, array_like=True, tag=True):
    """To a worker: the attachment that it asked for; or it was asked for too late, by what a chunk has left behind."""

    attachment: bytes | None
    is_late: bool = False


class Ready(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function is there."""


class Broken(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function cannot be loaded; its last word."""

    reason: str


class AttachmentWanted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the attachment of the submission of its chunk, please. Each has one answer."""

    submission_id: int
    lane: int = 0


class Interrupted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function raised what is no failure of the chunk; its last word.

    `kind` is the name of an exception, `code` that of an OpsqError, or what SystemExit carries.
    """

    kind: str
    code: int | str | None
    message: str = ""
    hint: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Interrupted:
        """An exception, for the consumer."""
        if isinstance(error, OpsqError):
            return cls("OpsqError", error.code, error.message, error.hint)
        return cls(type(error).__name__, None, str(error))


ToWorker = Lot | AttachmentIs | Cancel | Enough
FromWorker = Ready | Broken | AttachmentWanted | Interrupted | Outcome

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_of_worker = msgspec.msgpack.Decoder(FromWorker).decode
