"""The verbs that shell loops call for every chunk: reserve, read, complete, fail, release, extend.

Nothing that is slow to load may be imported here, at load time or on the common way; a test watches it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from opsq.cli.options.table import HOT, Given, parse

# An optional helper of msgspec that nothing here needs and that loads `inspect` and `ast`: a fourth of the start of a hot verb.
_has_typing_extensions = "typing_extensions" in sys.modules
if not _has_typing_extensions:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the documented way to make an import fail
try:
    import msgspec
finally:
    if not _has_typing_extensions:
        del sys.modules["typing_extensions"]

from opsq.cli.daemon_address import call_alive, check_refusals, connect, held_chunks, held_of, settings_of, with_restart  # noqa: E402  # after the above
from opsq.errors import (  # noqa: E402
    ContentMissing,
    InputUnreadable,
    InvalidHandle,
    InvalidStrategy,
    NotFound,
    NothingFree,
    UsageError,
)
from opsq.ids import Handle, SubmissionId, Token, mask_indexes, parse_handle  # noqa: E402
from opsq.wire.messages import (  # noqa: E402
    RESULT_INLINE_BYTES,
    Changed,
    Complete,
    Completed,
    Completion,
    Describe,
    Described,
    Extend,
    Fail,
    Failure,
    Release,
    ReleaseConsumer,
    Reserve,
    Reserved,
)

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection
    from opsq.content.content_store import Store
    from opsq.content.manifest import Content

REASON_CHARACTERS = 16384

_TRANSFER_BYTES = 1 << 20


def run_hot(name: str, words: Sequence[str]) -> int:
    """Run a hot verb.

    Args:
        words: the command line behind the verb.

    Returns:
        The exit status.
    """
    if "-h" in (words[: words.index("--")] if "--" in words else words):
        from opsq.cli.app import run

        return run([name, "--help"])
    return call(name, parse(HOT[name], words))


def call(name: str, given: Given) -> int:
    """Run a hot verb whose command line has been read."""
    verb = {
        "reserve": _reserve,
        "read": _read,
        "complete": _complete,
        "fail": _fail,
        "release": _release,
        "extend": _extend,
    }[name]
    settings = settings_of(given.options, given.by_flag)
    with connect(settings) as daemon:
        try:
            verb(daemon, given)
        except InvalidStrategy as error:
            raise with_restart(error, settings, given.options["strategy"]) from None
    return 0


def _reserve(daemon: Connection, given: Given) -> None:
    options = given.options
    lease_s = _lease_s(given)
    reply = call_alive(
        daemon,
        Reserve(
            daemon.next_id(), options["count"], options["strategy"], wait_s=options["wait"], lease_s=lease_s or 0.0
        ),
        Reserved,
    )
    if not reply.grants:
        raise NothingFree(f"Nothing that {options['strategy']} may serve is free.")
    handles = [
        (grant, Handle(SubmissionId(grant.submission_id), index, token))
        for grant in reply.grants
        for token in (Token(reply.reservation_id, grant.attempt, grant.mask, grant.mac),)
        for index in mask_indexes(grant.block, grant.mask)
    ]
    if options["json"]:
        from opsq.cli.output.json_output import print_json
        from opsq.cli.output.submission_documents import ReservedChunk, ReserveDocument

        chunks = [ReservedChunk(str(h), str(h.submission_id), h.index, grant.attempt) for grant, h in handles]
        print_json(ReserveDocument(chunks, reply.deadline_s))
    else:
        sys.stdout.write("".join(f"{handle}\n" for _, handle in handles))


def _read(daemon: Connection, given: Given) -> None:
    submission_id, index = _chunk_of(given.arguments[0])
    content, store = _content_of(daemon, submission_id)
    from opsq.content.chunk_reader import ChunkReader

    if content.inline is None:
        store.check_marker(daemon.welcome.store_marker)
    chunk = ChunkReader(store, content).read(index)
    output = given.options["output"]
    if output:
        from opsq.content.result_joiner import atomic_output

        with atomic_output(output) as file:
            file.write(chunk)
    if given.options["json"]:
        from opsq.cli.output.json_output import print_json, text_or_base64
        from opsq.cli.output.submission_documents import ReadDocument

        shown = {"path": output} if output else text_or_base64(chunk)
        print_json(ReadDocument(str(submission_id), index, len(chunk), **shown))
    elif not output:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _complete(daemon: Connection, given: Given) -> None:
    source = given.options["result"]
    if source is None:
        completions = [Completion(held) for held in held_chunks(given.arguments)]
    elif len(given.arguments) > 1:
        raise UsageError(f"--result is the result of one chunk, but {len(given.arguments)} handles were given.")
    else:
        handle = parse_handle(given.arguments[0].strip())
        result = _result(daemon, handle, source)
        completions = [Completion(held_of(handle), msgspec.Raw(msgspec.msgpack.encode([result])))]
    check_refusals(daemon.call(Complete(daemon.next_id(), completions), Completed))
    _say_changed(given, len(given.arguments))


def _fail(daemon: Connection, given: Given) -> None:
    options = given.options
    if options["no_retry"] and options["delay"] is not None:
        raise UsageError("--no-retry and --delay exclude each other.")
    # What a program said may be no text, and its failure is to be told all the same.
    reason = os.fsencode(options["reason"]).decode(errors="backslashreplace")[:REASON_CHARACTERS]
    failures = [
        Failure(held, reason, delay_s=options["delay"], is_final=options["no_retry"])
        for held in held_chunks(given.arguments)
    ]
    check_refusals(daemon.call(Fail(daemon.next_id(), failures), Completed))
    _say_changed(given, len(given.arguments))


def _release(daemon: Connection, given: Given) -> None:
    consumer = given.options["consumer"]
    if bool(consumer) == bool(given.arguments):
        raise UsageError("opsq release needs either handles or --consumer.")
    if consumer:
        count = daemon.call(ReleaseConsumer(daemon.next_id(), consumer), Changed).count
        _say_changed(given, count)
    else:
        check_refusals(daemon.call(Release(daemon.next_id(), held_chunks(given.arguments)), Completed))
        _say_changed(given, len(given.arguments))


def _extend(daemon: Connection, given: Given) -> None:
    request = Extend(daemon.next_id(), held_chunks(given.arguments), _lease_s(given))
    check_refusals(daemon.call(request, Completed))
    _say_changed(given, len(given.arguments))


def _lease_s(given: Given) -> float | None:
    lease_s: float | None = given.options["lease"]
    if lease_s is not None and lease_s <= 0:
        raise UsageError("--lease: a lease is longer than 0 seconds.")
    return lease_s


def _say_changed(given: Given, count: int) -> None:
    if given.options["json"]:
        from opsq.cli.output.json_output import print_json
        from opsq.cli.output.submission_documents import ChangedDocument

        print_json(ChangedDocument(count))


def _chunk_of(text: str) -> tuple[int, int]:
    """Submission and index of a handle, or of the part of one before the @."""
    text = text.strip()
    if "@" in text:
        handle = parse_handle(text)
        return handle.submission_id, handle.index
    submission, _, index = text.partition("/")
    if submission.isascii() and submission.isdigit() and index.isascii() and index.isdigit():
        return int(submission), int(index)
    raise InvalidHandle(
        f"{text!r} names no chunk.", hint="Give a handle as `opsq reserve` prints it, or SUBMISSION/INDEX."
    )


def _content_of(daemon: Connection, submission_id: int) -> tuple[Content, Store]:
    """The description of the content of a submission, and the store of the daemon."""
    described = daemon.call(Describe(daemon.next_id(), [submission_id]), Described).submissions
    if not described:
        raise NotFound(f"There is no submission {submission_id}.", hint="`opsq list` shows what there is.")
    if not described[0].content:
        raise ContentMissing(f"Submission {submission_id} has no content.")
    from opsq.content.manifest import decode
    from opsq.content.store_kinds import open_store

    return decode(described[0].content), open_store(daemon.welcome.store)


def _result(daemon: Connection, handle: Handle, source: str) -> bytes | tuple[str, int, int]:
    """What the completion carries: the bytes of a small result, or the place in the store to which a large one went."""
    with _open_result(source) as file:
        head = _piece(file, source, RESULT_INLINE_BYTES + 1)
        if len(head) <= RESULT_INLINE_BYTES:
            return head
        return _store_result(daemon, handle, head, file, source)


def _store_result(daemon: Connection, handle: Handle, head: bytes, file: BinaryIO, source: str) -> tuple[str, int, int]:
    from opsq.content.result_objects import ResultWriter

    content, store = _content_of(daemon, handle.submission_id)
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
