"""The verb complete: completes chunks, with a result that is sent along, or stored if it is large.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.submission_content import content_of
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.errors import InputUnreadable, UsageError
from opsq.ids import Handle, parse_handle
from opsq.options.option import HANDLES, option
from opsq.wire.messages import RESULT_INLINE_BYTES, Complete, Completed, Completion, HeldChunks

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection

_TRANSFER_BYTES = 1 << 20


def complete(
    caller: Caller,
    handles: list[str] = HANDLES,
    result: str | None = option("-r, --result FILE", "The result of the chunk: a file, or - for stdin."),
) -> None:
    """Complete reserved chunks; durable when it returns."""
    with caller.connect() as daemon:
        if result is None:
            completions = [Completion(held) for held in held_chunks(handles)]
        elif len(handles) > 1:
            raise UsageError(f"--result is the result of one chunk, but {len(handles)} handles were given.")
        else:
            handle = parse_handle(handles[0].strip())
            packed = msgspec.msgpack.encode([_result(daemon, handle, result)])
            completions = [Completion(HeldChunks.of(handle), msgspec.Raw(packed))]
        check_refusals(daemon.call(Complete(daemon.next_id(), completions), Completed))
    caller.changed(len(handles))


def _result(daemon: Connection, handle: Handle, source: str) -> bytes | tuple[str, int, int]:
    """What the completion carries: the bytes of a small result, or the place in the store where a large one was
    written.
    """
    with _open_result(source) as file:
        head = _piece(file, source, RESULT_INLINE_BYTES + 1)
        if len(head) <= RESULT_INLINE_BYTES:
            return head
        return _store_result(daemon, handle, head, file, source)


def _store_result(daemon: Connection, handle: Handle, head: bytes, file: BinaryIO, source: str) -> tuple[str, int, int]:
    from opsq.content.result_objects import ResultWriter

    content, store = content_of(daemon, handle.submission_id)
    store.check_marker(daemon.welcome.store_marker)
    writer = ResultWriter(store, content.folder, f"cli-{os.getpid()}", is_durable=daemon.welcome.is_durable)
    if store.path(content.folder) is None:  # an object is written at once
        place = writer.append(head + _piece(file, source, -1))
    else:
        place = writer.append(head)
        while piece := _piece(file, source, _TRANSFER_BYTES):
            place = place._replace(length=place.length + writer.append(piece).length)
    writer.sync()
    return place


def _piece(file: BinaryIO, source: str, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise InputUnreadable(f"The result {source} cannot be read: {error.strerror}.") from error


def _open_result(source: str) -> BinaryIO:
    if source == "-":
        return open(0, "rb", closefd=False)
    try:
        return open(source, "rb")
    except OSError as error:
        raise InputUnreadable(f"The result {source} cannot be read: {error.strerror}.") from error
