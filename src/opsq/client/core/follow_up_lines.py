"""Follow-ups as JSON: a line each in what a program has written, or a part of a request over HTTP.

The names are those of `Producer.submit`. This file writes and sends nothing.
"""

from __future__ import annotations

import binascii
import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from opsq.client.core.content_access import Contents
from opsq.client.core.follow_ups import FollowUp
from opsq.content.content_writer import ContentWriter
from opsq.content.input_file import open_input
from opsq.content.manifest import Content
from opsq.content.splitter import DEFAULT_CHUNK_BYTES, Splitting
from opsq.errors import InputUnreadable, OpsqError, UsageError
from opsq.ids import parse_submission_id
from opsq.wire.messages import FOLLOW_UPS_LIMIT, Backoff, Dependency, Welcome

LINE_LIMIT_BYTES = 16 << 20
"""The longest line; more content belongs into a file."""

Moment = Annotated[dt.datetime, Meta(tz=True)]
Value = int | str
"""Of metadata."""


class Encoded(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are not text."""

    base64: str

    def decoded(self) -> bytes:
        """The bytes.

        Raises:
            UsageError: it is not base64.
        """
        try:
            return binascii.a2b_base64(self.base64, strict_mode=True)
        except ValueError as error:
            raise UsageError(f"This is not base64: {error}.") from error


class Pauses(msgspec.Struct, forbid_unknown_fields=True):
    """Pauses between attempts: `base_s * factor ** (attempts - 1)`, at most `max_s`."""

    base_s: float
    factor: float
    max_s: float


class Waited(msgspec.Struct, forbid_unknown_fields=True):
    """What is waited for: a submission, or all that have the pair of `key` and `value`."""

    submission_id: str | None = None
    needs: Literal["completed", "ended"] = "completed"
    key: str | None = None
    value: Value | None = None

    def as_dependency(self) -> Dependency:
        """The same as a part of a message.

        Raises:
            NotFound: it is not an id.
        """
        submission_id = None if self.submission_id is None else parse_submission_id(self.submission_id)
        return Dependency(submission_id, self.needs, self.key, self.value)


class FollowUpShape(msgspec.Struct, forbid_unknown_fields=True):
    """A follow-up: a submission that is made in the commit of the completion. Fields are named as in Python."""

    chunks: list[str | Encoded] | UnsetType = UNSET
    metadata: dict[str, Value] | UnsetType = UNSET
    title: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    attachment: str | Encoded | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    max_lost: int | UnsetType = UNSET
    on_dead: Literal["fail", "keep"] | UnsetType = UNSET
    backoff: Pauses | UnsetType = UNSET
    weights: dict[str, float] | UnsetType = UNSET
    delay_s: float | UnsetType = UNSET
    not_before_at: Moment | UnsetType = UNSET
    expires_s: float | UnsetType = UNSET
    expires_at: Moment | UnsetType = UNSET
    reservation_s: float | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    unique_until: Literal["start", "done"] | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    idempotency_keep_s: float | UnsetType = UNSET
    after: list[Waited] | UnsetType = UNSET
    on_failed_dependency: Literal["cancel", "run", "keep"] | UnsetType = UNSET

    def as_follow_up(self) -> FollowUp:
        """What it describes.

        Raises:
            UsageError: no submission can be made of it.
        """
        if self.chunks is UNSET:
            raise UsageError("It has no chunks.")
        return FollowUp([_bytes(chunk) for chunk in self.chunks], **self._options())

    def _options(self) -> Any:
        given = {name: getattr(self, name) for name in FollowUpShape.__struct_fields__ if name != "chunks"}
        options = {name: option for name, option in given.items() if option is not UNSET}
        if "attachment" in options:
            options["attachment"] = _bytes(options["attachment"])
        if isinstance(self.after, list):
            options["after"] = [one.as_dependency() for one in self.after]
        if isinstance(self.backoff, Pauses):
            options["backoff"] = Backoff(self.backoff.base_s, self.backoff.factor, self.backoff.max_s)
        return options


class FollowUpLine(FollowUpShape, forbid_unknown_fields=True):
    """A line: its chunks, or a file to cut at line ends, by `lines` or by `bytes`, of 1 MiB by default."""

    file: str | UnsetType = UNSET
    lines: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    bytes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET

    def as_follow_up(self) -> FollowUp:
        """What it describes, as `FollowUpShape.as_follow_up`."""
        if self.file is UNSET:
            if self.lines is not UNSET or self.bytes is not UNSET:
                raise UsageError("`lines` and `bytes` cut a `file`, and there is none.")
            return super().as_follow_up()
        if self.chunks is not UNSET:
            raise UsageError("`chunks` and `file` cannot be combined.")
        if self.lines is UNSET:
            splitting = Splitting("bytes", DEFAULT_CHUNK_BYTES if self.bytes is UNSET else self.bytes)
        elif self.bytes is UNSET:
            splitting = Splitting("records", self.lines)
        else:
            raise UsageError("`lines` and `bytes` cannot be combined.")
        return _OfFile(self.file, splitting, **self._options())


class _OfFile(FollowUp):
    """A follow-up whose chunks are those of a file."""

    __slots__ = ("_path", "_splitting")

    def __init__(self, path: str, splitting: Splitting, **options: Any) -> None:
        super().__init__((), **options)
        self._path = path
        self._splitting = splitting

    def _write(self, key: bytes, contents: Contents, welcome: Welcome) -> Content:
        with (
            open_input(self._path) as file,
            ContentWriter(
                contents.store, key.hex(), chunk_limit_bytes=welcome.chunk_limit_bytes, is_durable=welcome.is_durable
            ) as writer,
        ):
            writer.write_stream(file, self._splitting, self._path)
            return writer.finish()


_decode = msgspec.json.Decoder(FollowUpLine).decode


def follow_ups_of(file: BinaryIO, name: str) -> Iterator[FollowUp]:
    """The follow-ups that the lines of a file describe; empty lines are passed over. Reads as they are taken.

    Args:
        name: for messages.

    Raises:
        UsageError: a line describes none; it is numbered.
        InputUnreadable: the file cannot be read.
    """
    found, number = 0, 0
    while line := _line(file, name):
        number += 1
        if not line.strip():
            continue
        found += 1
        try:
            if len(line) > LINE_LIMIT_BYTES:
                raise UsageError(f"It is longer than {LINE_LIMIT_BYTES} bytes.", hint="Name a `file` in it.")
            if found > FOLLOW_UPS_LIMIT:
                raise UsageError(
                    f"A chunk may have {FOLLOW_UPS_LIMIT} follow-ups.",
                    hint="Make one with many chunks, or some that make others.",
                )
            yield _decode(line).as_follow_up()
        except msgspec.MsgspecError as error:
            raise UsageError(f"Line {number} of {name} describes no submission: {error}.") from error
        except OpsqError as error:
            error.message = f"Line {number} of {name}: {error.message}"
            raise


def _line(file: BinaryIO, name: str) -> bytes:
    try:
        return file.readline(LINE_LIMIT_BYTES + 1)
    except OSError as error:
        raise InputUnreadable(f"{name} cannot be read: {error.strerror}.") from error


def _bytes(given: str | Encoded) -> bytes:
    return given.encode() if isinstance(given, str) else given.decoded()
