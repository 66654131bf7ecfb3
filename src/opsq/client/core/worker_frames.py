"""What a consumer and its worker processes say to each other over a pipe.

This file only lists the frames; nothing of them is pickled.
"""

from __future__ import annotations

import msgspec

from opsq.client.core.outcome import Outcome
from opsq.wire.messages import SubmissionContent


class Work(msgspec.Struct, array_like=True, tag=True):
    """To a worker: a chunk. `described` is left out if it is that of the chunk before."""

    handle: str
    described: SubmissionContent | None


class AttachmentIs(msgspec.Struct, array_like=True, tag=True):
    """To a worker: the attachment that it asked for."""

    attachment: bytes | None


class Ready(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function is there."""


class Broken(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function cannot be loaded; its last word."""

    reason: str


class AttachmentWanted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the attachment of the submission of its chunk, please."""


class Interrupted(msgspec.Struct, array_like=True, tag=True):
    """Of a worker: the function raised what is no failure of the chunk; its last word.

    `kind` is the name of an exception, `code` that of an OpsqError, or what SystemExit carries.
    """

    kind: str
    code: int | str | None
    message: str = ""
    hint: str = ""


FromWorker = Ready | Broken | AttachmentWanted | Interrupted | Outcome

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(Work | AttachmentIs).decode
decode_of_worker = msgspec.msgpack.Decoder(FromWorker).decode
