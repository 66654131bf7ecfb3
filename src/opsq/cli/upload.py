"""Hands a submission over: opens its inputs, has them cut and copied, tells the daemon.

The content is whole and durable before the daemon hears of it, and is removed when the daemon refuses. Options are none of its business.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.submission_template import Template
from opsq.client.sync.connection import Connection
from opsq.content.content_store import Store
from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import Plan, open_input, plan
from opsq.content.manifest import Content, encode
from opsq.content.splitter import Splitting
from opsq.content.store_kinds import open_store
from opsq.errors import InputUnreadable, NoRoom, OpsqError, Unreachable, UsageError
from opsq.wire.messages import Capacity, CheckCapacity, Created, NewSubmission, Submit, Submitted

RESEND_S = 10.0
"""How long a daemon that went away during the last step may take to come back."""


FOREVER = "forever"
"""What --wait-for-room takes for no limit, and means without a value."""


class RoomWait(NamedTuple):
    """How long to wait when there is no room.

    Args:
        end: when it is over, by `time.monotonic`; None: never.
    """

    end: float | None

    @classmethod
    def of(cls, text: str | None) -> Self:
        """What an option says: None does not wait."""
        if text == FOREVER:
            return cls(None)
        return cls(time.monotonic() + (values.duration("--wait-for-room", text) or 0.0))

    @property
    def left_s(self) -> float | None:
        """What is left of it, as requests tell it."""
        return None if self.end is None else max(self.end - time.monotonic(), 0.0)


def expand(words: list[str]) -> list[str]:
    """The inputs, with those globs replaced that name no file themselves; `**` gives files at any depth, and no folders.

    Raises:
        InputUnreadable: nothing matches a glob.
        UsageError: stdin is named twice.
    """
    if words.count("-") > 1:
        raise UsageError("Stdin (-) can be read only once.")
    paths: list[str] = []
    for word in words:
        if word == "-" or not glob.has_magic(word) or os.path.lexists(word):
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
    """The bytes of a file, or of stdin for `-`."""
    with _opened(path) as file:
        try:
            return file.readall()
        except OSError as error:
            raise InputUnreadable(f"{path} cannot be read: {error.strerror}.") from error


def plan_of(paths: list[str], splitting: Splitting) -> Plan:
    """What the chunks would be; writes nothing."""
    with contextlib.ExitStack() as stack:
        return plan(((path, stack.enter_context(_opened(path))) for path in paths), splitting)


def hand_over(
    caller: Caller,
    rules: NewSubmission,
    template: Template,
    paths: list[str],
    splitting: Splitting,
    *,
    is_in_place: bool,
    room: RoomWait,
) -> tuple[Content, Created]:
    """Write the content and submit it.

    Args:
        rules: all of the submission but its content.
        template: whose chunks and attachment are taken when there are no `paths`, or no attachment.

    Raises:
        NoRoom: too much is unfinished, or too little of the disk is free: said before content is written, as far as is known then.

    Effects: durable when it returns; nothing is left in the store when it raises, unless the daemon vanished for good during
    the last step: then it is unknown whether the submission exists.
    """
    folder = rules.request_key.hex()
    with caller.connect() as daemon:
        welcome = daemon.welcome
        store = open_store(welcome.store)
        store.check_marker(welcome.store_marker)
        source = template.open_source(daemon, store) if not paths else None
        rules = template.with_attachment(daemon, rules)
        if source is not None:
            _ask_for_room(
                caller, daemon, (source.content.chunks_count, source.content.total_bytes), rules.unique_key, room
            )
        else:
            count = (
                len(paths) if splitting.by == "file" else 1
            )  # how many it will be in the end, only the cutting can tell
            _ask_for_room(caller, daemon, (count, 0 if is_in_place else _known_bytes(paths)), rules.unique_key, room)
    with ContentWriter(
        store, folder, chunk_limit_bytes=welcome.chunk_limit_bytes, is_durable=welcome.is_durable
    ) as writer:
        if source is not None:
            for index in range(source.content.chunks_count):
                writer.add_chunk(source.read(index))
        elif is_in_place:
            for path in paths:
                writer.add_in_place(path, splitting)
        else:
            _copy(caller, writer, paths, splitting)
        content = writer.finish()
    rules = replace(rules, chunks_count=content.chunks_count, content=encode(content))
    return content, _submit(caller, rules, store, folder, room)


def _ask_for_room(
    caller: Caller, daemon: Connection, size: tuple[int, int], unique_key: str | None, room: RoomWait
) -> None:
    """See to it that there is room, before content is written; a person is told when it takes time.

    Args:
        size: how many chunks and bytes, as far as is known.
    """
    try:
        daemon.call(CheckCapacity(daemon.next_id(), *size, unique_key=unique_key), Capacity)
        return
    except NoRoom as error:
        if room.left_s == 0.0:
            raise
        caller.remark(f"{error.message} Waiting for it.")
    while True:
        with caller.connect(reconnect_s=RESEND_S) as own:
            try:
                own.call(CheckCapacity(own.next_id(), *size, room.left_s, unique_key), Capacity)
                return
            except Unreachable:
                continue  # the daemon is restarted, perhaps; if it is not, this ends with the next connection


def _known_bytes(paths: list[str]) -> int:
    """The bytes of those inputs whose size is known before they are read."""
    return sum(os.path.getsize(path) for path in paths if path != "-" and os.path.isfile(path))


def _submit(caller: Caller, rules: NewSubmission, store: Store, folder: str, room: RoomWait) -> Created:
    """Send the submission; when the daemon goes away meanwhile, send it again: the request key makes that safe.

    It is sent once more, and as often as that happens while it waits for room.
    """
    is_again = False
    try:
        while True:
            with caller.connect(reconnect_s=RESEND_S) as daemon:
                try:
                    created = daemon.call(Submit(daemon.next_id(), [rules], room.left_s), Submitted).created[0]
                    break
                except Unreachable:
                    if is_again and room.left_s == 0.0:
                        raise
                    is_again = True
    except Unreachable:
        raise  # perhaps it was stored: its content stays
    except OpsqError:
        store.delete_folder(folder)
        raise
    if not created.is_new and not is_again:  # there was one with this unique key
        store.delete_folder(folder)
    return created


@contextlib.contextmanager
def _opened(path: str) -> Iterator[io.FileIO]:
    if path == "-":
        yield io.FileIO(0, "rb", closefd=False)
    else:
        with open_input(path) as file:
            yield file


def _copy(caller: Caller, writer: ContentWriter, paths: list[str], splitting: Splitting) -> None:
    with caller.progress("bytes") as progress:
        total_bytes = _known_bytes(paths)
        bar = progress.add_task("copying", total=total_bytes or None) if progress else None
        for path in paths:
            with _opened(path) as file:
                writer.write_stream(_Counted(file, progress, bar) if progress else file, splitting, path)


class _Counted:
    """An input that moves a progress bar as it is read."""

    def __init__(self, file: io.FileIO, progress: Any, bar: Any) -> None:
        self._file, self._progress, self._bar = file, progress, bar
        self.seekable, self.seek = file.seekable, file.seek

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read, and show it."""
        count = self._file.readinto(buffer)
        self._progress.advance(self._bar, count or 0)
        return count
