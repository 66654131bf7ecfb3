"""The verb complete: completes chunks, with a result that is sent along, or stored if it is large, and follow-ups.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.submission_content import content_of
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.errors import InputUnreadable, UsageError
from opsq.ids import Handle, parse_handle
from opsq.options.option import HANDLES, option
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Complete,
    Completed,
    Completion,
    Describe,
    Described,
    HeldChunks,
    NewSubmission,
)

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection

_TRANSFER_BYTES = 1 << 20
_NO_RESULT = b"\xc0"


def complete(
    caller: Caller,
    handles: list[str] = HANDLES,
    result: str | None = option("-r, --result FILE", "The result of the chunk: a file, or - for stdin."),
    then: str | None = option(
        "--then FILE", "Follow-ups, made in the same commit: a file, or - for stdin, with a submission a line, as JSON."
    ),
) -> None:
    """Complete reserved chunks; durable when it returns."""
    if result == then == "-":
        raise UsageError("--result and --then cannot both be stdin.")
    with caller.connect() as daemon:
        if result is None and then is None:
            completions = [Completion(held) for held in held_chunks(handles)]
        elif len(handles) > 1:
            what = "--then applies to one chunk" if result is None else "--result is the result of one chunk"
            raise UsageError(f"{what}, but {len(handles)} handles were given.")
        else:
            handle = parse_handle(handles[0].strip())
            packed = _NO_RESULT if result is None else msgspec.msgpack.encode([_result(daemon, handle, result)])
            followers = [] if then is None else _follow_ups(daemon, handle, then)
            completions = [Completion(HeldChunks.of(handle), msgspec.Raw(packed), then=followers)]
        reply = daemon.call(Complete(daemon.next_id(), completions), Completed)
        check_refusals(reply)
    if then is None:
        caller.changed(len(handles))
        return
    created = [str(one.submission_id) for one in reply.created]
    if caller.is_json:
        from opsq.documents.submissions import ChangedDocument

        caller.document(ChangedDocument(len(handles), created=created))
    else:
        caller.lines(created)


def _follow_ups(daemon: Connection, handle: Handle, source: str) -> list[NewSubmission]:
    """What the lines of a file describe, with its content written; it belongs to the trace of the chunk."""
    from opsq import traces
    from opsq.client.core.content_access import Contents
    from opsq.client.core.follow_up_lines import follow_ups_of
    from opsq.client.core.follow_ups import prepared

    described = daemon.call(Describe(daemon.next_id(), [handle.submission_id]), Described).submissions
    context = traces.current() or (
        traces.carried_by(described[0].content) if described and described[0].content else None
    )
    contents = Contents(daemon.welcome)
    with _open_file(source, f"The follow-ups in {source}") as file:
        return prepared(follow_ups_of(file, source), contents, daemon.welcome, context)


def _result(daemon: Connection, handle: Handle, source: str) -> bytes | tuple[str, int, int]:
    """What the completion carries: the bytes of a small result, or the place in the store where a large one was
    written.
    """
    with _open_file(source, f"The result {source}") as file:
        head = _piece(file, source, RESULT_INLINE_BYTES + 1)
        if len(head) <= RESULT_INLINE_BYTES:
            return head
        return _store_result(daemon, handle, head, file, source)


def _store_result(daemon: Connection, handle: Handle, head: bytes, file: BinaryIO, source: str) -> tuple[str, int, int]:
    from opsq.content.result_objects import ResultWriter

    content, store = content_of(daemon, handle.submission_id)
    store.check_marker(daemon.welcome.store_marker)
    name = f"cli-{os.getpid()}"
    with closing(ResultWriter(store, content.folder, name, is_durable=daemon.welcome.is_durable)) as writer:
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


def _open_file(source: str, what: str) -> BinaryIO:
    if source == "-":
        return open(0, "rb", closefd=False)
    try:
        return open(source, "rb")
    except OSError as error:
        raise InputUnreadable(f"{what} cannot be read: {error.strerror}.") from error
