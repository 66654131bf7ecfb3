"""Uploads a submission: opens its inputs, has them cut and copied, and submits them to the daemon.

The content is whole and durable before it is submitted, and is removed if the daemon says that it is not used. It must
not read options.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from opsq import traces
from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import is_of_shard
from opsq.cli.submission_template import Template
from opsq.client.core.content_access import Contents
from opsq.client.core.repeated_submission import check_same
from opsq.client.core.unused_content import by_withdrawing, delete_unused
from opsq.client.sync.connection import Connection
from opsq.content.content_copy import copy_chunks, plan_of_copy
from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import Plan, plan
from opsq.content.input_file import STDIN, InputFile, check_in_place, open_input
from opsq.content.manifest import Content, encode
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, Splitting
from opsq.errors import InputUnreadable, NoRoom, OpsqError, Unreachable, UsageError
from opsq.options.option import duration
from opsq.wire.messages import Capacity, CheckCapacity, Created, NewSubmission, Submit, Submitted

RESEND_S = 10.0
"""How long a daemon that went away during the last step may take to come back."""

FOREVER = "forever"
"""What --wait-for-room takes for no limit, and means without a value."""


class RoomDeadline(NamedTuple):
    """Until when to wait if there is no room.

    Args:
        end: by `time.monotonic`; None: without limit.
    """

    end: float | None

    @classmethod
    def of(cls, text: str | None) -> Self:
        """As an option has it: None does not wait."""
        if text == FOREVER:
            return cls(None)
        return cls(time.monotonic() + (0.0 if text is None else duration("--wait-for-room", text)))

    @property
    def left_s(self) -> float | None:
        """What is left of it, as requests have it."""
        return None if self.end is None else max(self.end - time.monotonic(), 0.0)


def expand(words: list[str]) -> list[str]:
    """The inputs with globs expanded, except those that name a file; `**` gives files at any depth, no folders.

    Raises:
        InputUnreadable: nothing matches a glob.
        UsageError: stdin is named twice.
    """
    if words.count(STDIN) > 1:
        raise UsageError("Stdin (-) can be read only once.")
    paths: list[str] = []
    for word in words:
        if word == STDIN or not glob.has_magic(word) or os.path.lexists(word):
            paths.append(word)
            continue
        found = sorted(glob.glob(word, recursive=True))
        if "**" in word:  # which matches folders as well as what is in them
            found = [path for path in found if not os.path.isdir(path)]
        if not found:
            raise InputUnreadable(f"Nothing matches {word}.")
        paths += found
    return paths


def read_whole(path: str) -> bytes:
    """The bytes of an input."""
    with open_input(path, is_decompressing=False) as file:
        try:
            return file.raw.readall()
        except OSError as error:
            raise InputUnreadable(f"{path} cannot be read: {error.strerror}.") from error


def plan_of(paths: list[str], splitting: Splitting, chunk_limit_bytes: int, *, is_in_place: bool) -> Plan:
    """The chunks as they would be; writes nothing. Raises as `Upload.hand_over`, as far as inputs are concerned."""
    with contextlib.ExitStack() as stack:

        def opened(path: str) -> tuple[str, InputFile]:
            file = stack.enter_context(_open(path, splitting))
            if not is_in_place:
                return file.name, file
            check_in_place(file.raw, path)
            return os.path.abspath(path), file

        return plan(map(opened, paths), splitting, chunk_limit_bytes=chunk_limit_bytes)


def _open(path: str, splitting: Splitting) -> InputFile:
    return open_input(path, is_decompressing=splitting.decompresses, strips_crlf=splitting.strips_crlf)


class Upload:
    """One submission on its way to the daemon.

    Args:
        caller: connects to the daemon, and shows progress.
        rules: all of the submission but its content.
        room: how long to wait if there is no room.
        template: whose chunks are taken when there are no files, and whose attachment when `rules` have none.
    """

    def __init__(
        self, caller: Caller, rules: NewSubmission, room: RoomDeadline, template: Template | None = None
    ) -> None:
        self._caller = caller
        self._rules = rules
        self._room = room
        self._template = template or Template()

    def rehearse(self, paths: list[str], splitting: Splitting, *, is_in_place: bool) -> Plan:
        """What `hand_over` would submit, refused as that would be; writes nothing.

        Without a daemon what only that can refuse is not.
        """
        try:
            with self._caller.connect() as daemon:
                limit_bytes = daemon.welcome.chunk_limit_bytes
                Contents(daemon.welcome).store  # noqa: B018  # it is seen from here
                copied = None if paths else plan_of_copy(self._template.open_source(daemon))
                rules = self._template.with_attachment(daemon, self._rules)
        except Unreachable as error:
            if not paths or type(error) is not Unreachable:
                raise
            self._caller.remark("No daemon answers, so only the command line and the files were checked.")
            return plan_of(paths, splitting, DEFAULT_CHUNK_LIMIT_BYTES, is_in_place=is_in_place)
        found = copied or plan_of(paths, splitting, limit_bytes, is_in_place=is_in_place)
        rules = replace(rules, chunks_count=found.chunks_count)
        size = found.chunks_count, 0 if is_in_place else found.total_bytes
        try:
            with self._caller.connect() as daemon:
                known_id = daemon.call(CheckCapacity(daemon.next_id(), *size, submission=rules), Capacity).submission_id
                self.note_known(daemon, known_id, found)
        except NoRoom as error:
            if self._room.left_s == 0.0:
                _hint_at_waiting(error)
                raise
            self._caller.remark(f"{error.message} It would wait.")
        return found

    def note_known(self, daemon: Connection, known_id: int | None, content: Content | Plan) -> None:
        """Remark that a submission has the idempotency key of this one already.

        Raises:
            Conflict: it has other content or options.
        """
        if known_id is not None and self._rules.idempotency_key is not None:
            check_same(daemon, known_id, self._rules, content)
            self._caller.remark(f"Submission {known_id} has this key already; nothing was submitted.")

    def hand_over(
        self, paths: list[str], splitting: Splitting, *, is_in_place: bool = False
    ) -> tuple[Content, Created]:
        """Write the content and submit it.

        Raises:
            NoRoom: too much is unfinished, or too little of the disk is free; as far as is known then, raised before
                content is written.

        Effects: durable when it returns; nothing is left in the store when it raises, unless the daemon cannot say
        whether the submission exists.
        """
        folder = self._rules.request_key.hex()
        with self._caller.connect() as daemon:
            welcome = daemon.welcome
            contents = Contents(welcome)
            store = contents.store
            source = self._template.open_source(daemon) if not paths else None
            self._rules = self._template.with_attachment(daemon, self._rules)
            if source is not None:
                size = source.content.chunks_count, source.content.total_bytes
            else:  # the number of chunks is known only after the cutting
                size = len(paths) if splitting.by == "file" else 1, 0 if is_in_place else _known_bytes(paths)
            if self._rules.idempotency_key is None:  # else it may exist already, and need no room
                self._wait_for_room(daemon, size)
        with ContentWriter(
            store, folder, chunk_limit_bytes=welcome.chunk_limit_bytes, is_durable=welcome.is_durable
        ) as writer:
            if source is not None:
                copy_chunks(source, writer)
            elif is_in_place:
                for path in paths:
                    writer.add_in_place(path, splitting)
            else:
                self._copy(writer, paths, splitting)
            content = writer.finish()
        with traces.sending() as sending:
            carrying = encode(traces.carrying(content))
            self._rules = replace(self._rules, chunks_count=content.chunks_count, content=carrying)
            created = self._submit(contents)
            sending.note(created.submission_id, content.chunks_count)
        return content, created

    def _wait_for_room(self, daemon: Connection, size: tuple[int, int]) -> None:
        """Return once there is room for `size`, in chunks and bytes; a person is informed if that takes time."""
        key = self._rules.unique_key
        try:
            daemon.call(CheckCapacity(daemon.next_id(), *size, unique_key=key), Capacity)
            return
        except NoRoom as error:
            if self._room.left_s == 0.0:
                _hint_at_waiting(error)
                raise
            self._caller.remark(f"{error.message} Waiting for it.")
        while True:
            with self._caller.connect(reconnect_s=RESEND_S) as own:
                try:
                    own.call(CheckCapacity(own.next_id(), *size, self._room.left_s, key), Capacity)
                    return
                except Unreachable as error:
                    if is_of_shard(error):
                        raise
                    continue  # the daemon is restarted, perhaps; if it is not, this ends with the next connection

    def _copy(self, writer: ContentWriter, paths: list[str], splitting: Splitting) -> None:
        with self._caller.progress("bytes") as progress:
            bar = progress.add_task("copying", total=_known_bytes(paths) or None) if progress else None
            for path in paths:
                with _open(path, splitting) as file:
                    writer.write_stream(_Counted(file, progress, bar) if progress else file, splitting, path)
                    self._caller.warn(file.check_unchanged())

    def _submit(self, contents: Contents) -> Created:
        """Send the submission; if the daemon goes away, send it again: the request key makes that safe.

        It is sent once more, and as often as that happens while it waits for room.
        """
        is_again = False
        while True:
            with self._caller.connect(reconnect_s=RESEND_S) as daemon:
                try:
                    request = Submit(daemon.next_id(), [self._rules], self._room.left_s)
                    created = daemon.call(request, Submitted).created[0]
                except Unreachable as error:
                    # A shard that is away may have it; sent again, it could go to another one.
                    if is_of_shard(error) or (is_again and self._room.left_s == 0.0):
                        raise
                    is_again = True
                    continue
                except OpsqError as error:
                    if isinstance(error, NoRoom):
                        _hint_at_waiting(error)
                    delete_unused([self._rules], contents, by_withdrawing(daemon))
                    raise
                if not created.is_new:  # another one has its key, or it has come before
                    delete_unused([self._rules], contents, by_withdrawing(daemon))
                return created


def _hint_at_waiting(error: NoRoom) -> None:
    if error.cause != "over_backlog":
        error.hint += " --wait-for-room waits for it."


def _known_bytes(paths: list[str]) -> int:
    """The bytes of those inputs whose size is known before they are read."""
    return sum(os.path.getsize(path) for path in paths if path != STDIN and os.path.isfile(path))


class _Counted:
    """An input that advances a progress bar as it is read."""

    def __init__(self, file: InputFile, progress: Any, bar: Any) -> None:
        self._file, self._progress, self._bar = file, progress, bar
        self._position = 0
        self.seekable, self.seek = file.seekable, file.seek

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read, and advance the bar by the bytes of the file, which may have others than it gives."""
        count = self._file.readinto(buffer)
        if self._file.is_converted and self._file.is_regular:
            position = self._file.raw.tell()
            self._progress.advance(self._bar, position - self._position)
            self._position = position
        else:
            self._progress.advance(self._bar, count or 0)
        return count
