"""The interface of a content store: whole objects, streamed objects, ranges, folders; `store_kinds` opens one.

This file must not know the kinds of stores. Names are relative to the root of the store, with `/` between folder and object. Each
submission has one folder; the root also holds the marker.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator

from opsq.content.file_io import Buffer, FileReader
from opsq.errors import ContentMissing, StoreNotVisible, UsageError

MARKER = "store-id"
"""The object by which a client sees that it looks at the same store as the daemon."""


class ObjectWriter(ABC):
    """An object that is being written. It exists for readers only after `close`."""

    @abstractmethod
    def write(self, content: Buffer) -> None:
        """Append all of `content`.

        Raises:
            StorageFull: there is no room; the object is of no use any more.
        """

    @abstractmethod
    def close(self) -> None:
        """End the object. Effects: it is whole, and durable if that was asked for; its folder may still need a sync."""

    @abstractmethod
    def abort(self) -> None:
        """Throw the object away; harmless after `close` and when called again."""


class Store(ABC):
    """A place where the bytes of chunks lie."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = FileReader()
        """Reads the files of a local store, and in every kind those that were submitted in place."""

    @abstractmethod
    def create_folder(self, folder: str) -> None:
        """Make the folder of a new submission.

        Raises:
            Conflict: it exists, so another submission with this request key was written before.
        """

    @abstractmethod
    def ensure_folder(self, folder: str) -> None:
        """Make the folder of a submission that several processes write, if none of them has made it yet."""

    @abstractmethod
    def open_writer(self, name: str, *, is_durable: bool) -> ObjectWriter:
        """Begin a new object in an existing folder."""

    @abstractmethod
    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        """Write a whole object, or replace it; readers see the old or the new one. Makes a missing folder."""

    @abstractmethod
    def sync_folder(self, folder: str) -> None:
        """Make the existence of the folder and of the objects in it durable."""

    @abstractmethod
    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes from `offset`.

        Raises:
            ContentMissing: the object is not there, or ends before.
        """

    @abstractmethod
    def size_bytes(self, name: str) -> int:
        """The size of an object.

        Raises:
            ContentMissing: the object is not there.
        """

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Delete a folder and all in it; nothing happens if it is not there.

        Cost: a call per object; not for an event loop.
        """

    @abstractmethod
    def delete_object(self, name: str) -> None:
        """Delete one object; nothing happens if it is not there."""

    @abstractmethod
    def objects(self, folder: str) -> Iterator[str]:
        """The names in a folder of the objects that lie in it directly, in no order; none if the folder is not there."""

    @abstractmethod
    def folders(self) -> Iterator[str]:
        """The names of all folders, in no order."""

    @abstractmethod
    def modified_at(self, folder: str) -> float | None:
        """When something in the folder was last written, in seconds since 1970 UTC; None if the folder is gone."""

    @abstractmethod
    def path(self, name: str) -> str | None:
        """The path of an object as a local file; None in a store that has no files."""

    def close(self) -> None:
        """Let go of what is held open; it opens again by itself when it is used."""
        self.files.close()

    def mark(self) -> str:
        """The id in the marker; makes one if there is none. Only the daemon calls this. Effects: durable on return."""
        try:
            return self.marker()
        except ContentMissing:
            marker = os.urandom(16).hex()
            self.write_object(MARKER, marker.encode(), is_durable=True)
            return marker

    def marker(self) -> str:
        """The id in the marker.

        Raises:
            ContentMissing: there is no marker.
        """
        return self.read_range(MARKER, 0, 32).decode("ascii", "replace")

    def check_marker(self, expected: str) -> None:
        """See to it that this is the store of the daemon whose marker says `expected`.

        Raises:
            StoreNotVisible: the marker is not there or says something else.
        """
        try:
            found = self.marker()
        except ContentMissing:
            found = ""
        if found != expected:
            raise StoreNotVisible(
                f"The content store of the daemon, {self.url}, cannot be seen from here"
                + ("." if not found else ": another store lies in its place."),
                hint="Mount it at the same path, or set the daemon's store to an s3://, gs:// or az:// URL.",
            )


def check_name(name: str) -> str:
    """Give `name` back if it stays below the root of the store.

    Raises:
        UsageError: it is absolute, empty, or has an empty, `.` or `..` step.
    """
    steps = f"/{name}/"
    if "//" in steps or "/./" in steps or "/../" in steps or "\0" in name:
        raise UsageError(f"{name!r} is no name of an object in a store.")
    return name
