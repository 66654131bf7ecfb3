"""The interface of a content store: whole objects, streamed objects, ranges, folders; `store_kinds` opens one.

This file must not know the kinds of stores. Names are relative to the root of the store, with `/` between folder and
object. Each submission has one folder; the root also holds the marker.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from opsq.content.file_io import Buffer, FileReader, Roots
from opsq.errors import ContentMissing, StoreNotVisible, UsageError

Version = Mapping[str, str | None]
"""What tells one content of an object from the next, for `swap_object` of the same store."""

MARKER = "store-id"
"""The object by which a client verifies that it uses the same store as the daemon."""
SHARED = "store-shared"
"""The object that says that several daemons have content there: nobody knows of all of it which is orphaned."""
OWNER = "store-owner"
"""The object that names the first queue with content there, by the identity of its file; empty, it names none."""


class ObjectWriter(ABC):
    """An object being written; readers see it only after `close`."""

    @abstractmethod
    def write(self, content: Buffer) -> None:
        """Append all of `content`.

        Raises:
            StorageFull: the storage is full; the object cannot be used any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the object. Effects: it is complete, and durable if requested; its folder may still need a sync."""

    @abstractmethod
    def abort(self) -> None:
        """Delete the object; does nothing after `close` or a second time."""


class Store(ABC):
    """A place where the bytes of chunks are stored."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = FileReader()
        """Reads the files of a local store, and with every kind of store the files submitted in place."""
        self._expected_marker = ""

    @abstractmethod
    def create_folder(self, folder: str) -> None:
        """Create the folder of a new submission.

        Raises:
            Conflict: it exists, so content with this request key was written before.
        """

    @abstractmethod
    def ensure_folder(self, folder: str) -> None:
        """Create the folder of a submission that several processes write, unless it exists."""

    @abstractmethod
    def open_writer(self, name: str, *, is_durable: bool) -> ObjectWriter:
        """Start a new object in an existing folder."""

    @abstractmethod
    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        """Write or replace a whole object; readers see the old or the new one. Creates a missing folder."""

    @abstractmethod
    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        """Read a small object with its version; None: there is none."""

    @abstractmethod
    def swap_object(self, name: str, content: bytes, version: Version | None) -> Version:
        """Write a small object, but only over this version of it (None: only if there is none); returns the new one.

        Of several that swap the same version, one does so. Effects: durable on return.

        Raises:
            Conflict: another version is there, or none.
        """

    @abstractmethod
    def sync_folder(self, folder: str) -> None:
        """Make the existence of the folder and of the objects in it durable."""

    @abstractmethod
    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes from `offset`.

        Raises:
            ContentMissing: the object does not exist, or is too short.
        """

    @abstractmethod
    def size_bytes(self, name: str) -> int:
        """Return the size of an object.

        Raises:
            ContentMissing: the object does not exist.
        """

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything in it, if it exists.

        Cost: one call per object; do not call on an event loop.
        """

    @abstractmethod
    def delete_object(self, name: str) -> None:
        """Delete one object, if it exists."""

    @abstractmethod
    def objects(self, folder: str) -> Iterator[str]:
        """Yield the names of the objects directly in a folder, unordered; none if it does not exist."""

    @abstractmethod
    def folders(self) -> Iterator[str]:
        """Yield the names of all folders, unordered."""

    @abstractmethod
    def modified_at(self, folder: str) -> float | None:
        """Return when the folder was last written to, in seconds since 1970 UTC; None if it does not exist."""

    @property
    def roots(self) -> Roots | None:
        """Where all files of the store really are; None in a store without files."""
        return None

    def is_own(self, name: str) -> bool:
        """Whether only this user and root can have written an object; False where that cannot be known."""
        return False

    def set_group(self, gid: int | None) -> None:
        """Let a group read and write all that is in the store and will be, or (None) only its owner.

        Does nothing in a store without files.

        Raises:
            NotPermitted: that is not for this user to do.
        """
        return

    @abstractmethod
    def path(self, name: str) -> str | None:
        """Return the path of an object as a local file; None in a store without files."""

    def close(self) -> None:
        """Close open files; they are reopened when used again."""
        self.files.close()

    def mark(self) -> str:
        """Return the id in the marker, creating it if there is none; only the daemon calls this.

        Effects: durable on return.
        """
        try:
            return self.marker()
        except ContentMissing:
            marker = os.urandom(16).hex()
            self.write_object(MARKER, marker.encode(), is_durable=True)
            return marker

    def claim(self, owner: str) -> None:
        """Note that content of this queue is here, and if another was first, `share`; only a daemon calls this.

        Of several that do so at once only the last is noted, so it is to be repeated before anything relies on it.
        """
        found = self.read_version(OWNER)
        if found is None or not found[0]:
            self.write_object(OWNER, owner.encode(), is_durable=True)
        elif found[0] != owner.encode():
            self.share()

    def share(self) -> None:
        """Note that content of several daemons may be here; only a daemon calls this."""
        if not self.is_shared():
            self.write_object(SHARED, b"shared", is_durable=True)

    def is_shared(self) -> bool:
        """Whether content of several daemons may be here."""
        try:
            self.size_bytes(SHARED)
        except ContentMissing:
            return False
        return True

    def marker(self) -> str:
        """Return the id in the marker.

        Raises:
            ContentMissing: there is no marker.
        """
        return self.read_range(MARKER, 0, 32).decode("ascii", "replace")

    def check_marker(self, expected: str) -> None:
        """Check that this is the store of the daemon, whose marker is `expected`.

        Raises:
            StoreNotVisible: the marker is missing or differs.
            ContentNotPermitted: this user may not read the marker.
        """
        try:
            found = self.marker()
        except ContentMissing:
            found = ""
        if found != expected:
            raise StoreNotVisible(
                f"The daemon's content store, {self.url}, is not accessible from here"
                + ("." if not found else ": there is a different store in its place."),
                hint="Mount it at the same path, or set the daemon's store to an s3://, gs:// or az:// URL.",
            )
        self._expected_marker = expected

    def check_again(self) -> None:
        """Raise as `check_marker` did, if what it found then is not there any more."""
        if self._expected_marker:
            self.check_marker(self._expected_marker)


class WholeObjectWriter(ObjectWriter):
    """Writes an object at once, so that readers of one that is there already see the old one or the new one."""

    def __init__(self, store: Store, name: str, *, is_durable: bool) -> None:
        self._store = store
        self._name = name
        self._is_durable = is_durable
        self._pieces: list[bytes] = []

    def write(self, content: Buffer) -> None:
        """Keep it in memory."""
        self._pieces.append(bytes(content))

    def close(self) -> None:
        """Put the object in place."""
        self._store.write_object(self._name, b"".join(self._pieces), is_durable=self._is_durable)

    def abort(self) -> None:
        """Write nothing."""
        self._pieces.clear()


def check_name(name: str) -> str:
    """Return `name` if it stays below the root of the store.

    Raises:
        UsageError: it is absolute, empty, or has an empty, `.` or `..` component.
    """
    steps = f"/{name}/"
    if "//" in steps or "/./" in steps or "/../" in steps or "\0" in name:
        raise UsageError(f"{name!r} is not a valid object name in a store.")
    return name
