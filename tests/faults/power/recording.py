"""Records what this process does to files below one folder: through `os`, as opsq does, and through SQLite's VFS.

It must not change what happens, except that a test can have syncs fail. What bypasses it is noticed at the end, when
the recorded disk is compared with the real one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from faults.power.disk import (
    ROOT,
    Create,
    Disk,
    FailedSync,
    Luck,
    Operation,
    Promise,
    Release,
    Rename,
    Sync,
    Truncate,
    Write,
)

UNRECORDED = frozenset({"opsq.ballast", "opsq.log", "opsq.options", "opsq.options.new", "opsq.sqlite-shm"})
"""Room, a log for people, a note for a restart of what runs, and memory that SQLite makes anew: nothing that is
acknowledged rests on them."""

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
_os = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}


class Recording:
    """The operations so far, and what the names and descriptors of this process mean.

    Args:
        root: an existing folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.operations: list[Operation] = []
        self.on_sync: Callable[[str], None] = lambda _: None
        """Called with the path before each sync; an error that it raises is the sync's own."""
        self.on_write: Callable[[str], None] = lambda _: None
        """The same of what SQLite writes."""
        self.trusts_sqlite = True
        """Whether SQLite syncs the folder of a new journal, as it is documented; not all its builds do."""
        self.lock = threading.RLock()  # the order of the operations is that in which they happened
        self._inodes = {self.root: ROOT}
        self._paths = {ROOT: self.root}
        self._numbers = {_number(os.stat(self.root)): ROOT}

    def promise(self, key: str, fact: Any) -> None:
        """Note that something was acknowledged."""
        self._note(Promise(key, fact))

    def release(self, key: str) -> None:
        """Note that an operation begins which may end what was promised."""
        self._note(Release(key))

    def unlike(self) -> list[str]:
        """Where the recorded disk and the real one differ: paths that were written in a way that is not recorded."""
        disk = Disk()
        for operation in self.operations:
            if not isinstance(operation, FailedSync):  # the program still reads what the disk will never have
                disk.apply(operation)
        recorded = disk.after_crash(Luck(1.0))
        real: dict[str, bytes | None] = {}
        for place in Path(self.root).rglob("*"):
            real[str(place.relative_to(self.root))] = None if place.is_dir() else place.read_bytes()
        paths = {path for path in recorded.keys() | real.keys() if os.path.basename(path) not in UNRECORDED}
        missing = object()
        return sorted(path for path in paths if recorded.get(path, missing) != real.get(path, missing))

    # --- what happens to names and inodes ---------------------------------------------------------------------------

    def inode_of(self, path: Any) -> int | None:
        """The inode at a path; None: there is none, or it is not ours to record."""
        return self._inodes.get(self._place(path))

    def opened(self, descriptor: int) -> int | None:
        """The inode that a descriptor leads to, however it was opened."""
        return self._numbers.get(_number(os.fstat(descriptor)))

    def created(self, path: Any, *, is_folder: bool = False) -> int | None:
        """A name was perhaps made, by whoever opened it or made the folder."""
        place = self._place(path)
        folder, name = os.path.split(place)
        if place in self._inodes or folder not in self._inodes or name in UNRECORDED:
            return self._inodes.get(place)
        inode = self._inodes[place] = self._numbers[_number(os.stat(place))] = len(self._paths)
        self._paths[inode] = place
        self._note(Create(inode, is_folder))
        self._note(Rename(self._inodes[folder], {name: inode}))
        return inode

    def moved(self, source: Any, target: Any) -> None:
        """A file has another name in the same folder, in place of what had it."""
        source, target = self._place(source), self._place(target)
        if source not in self._inodes:
            return
        folder, name = os.path.split(source)
        assert os.path.dirname(target) == folder, "only names within one folder change at once"
        inode = self._inodes[target] = self._inodes.pop(source)
        self._paths[inode] = target
        self._note(Rename(self._inodes[folder], {name: None, os.path.basename(target): inode}))

    def gone(self, path: Any) -> None:
        """A name was removed."""
        place = self._place(path)
        if self._inodes.pop(place, None) is not None:
            self._note(Rename(self._inodes[os.path.dirname(place)], {os.path.basename(place): None}))

    def written(self, inode: int | None, offset: int, content: Any) -> None:
        """Bytes were written."""
        if inode is not None:
            self._note(Write(inode, offset, bytes(content)))

    def truncated(self, inode: int | None, size: int) -> None:
        """A file has another size."""
        if inode is not None:
            self._note(Truncate(inode, size))

    def sync(self, inode: int | None, sync: Callable[[], None]) -> None:
        """Sync, if the test lets it."""
        with self.lock:
            if inode is None:
                sync()
                return
            try:
                self.on_sync(self._paths[inode])
                sync()
            except (OSError, apsw.IOError):
                self._note(FailedSync(inode))
                raise
            self._note(Sync(inode))

    def sync_all(self) -> None:
        """Everything was synced."""
        for inode in self._paths:
            self._note(Sync(inode))

    def concerns(self, what: Any) -> bool:
        """Whether a path or descriptor is below the root."""
        return self.opened(what) is not None if isinstance(what, int) else self._place(what).startswith(self.root)

    def _place(self, path: Any) -> str:
        return os.path.abspath(os.fsdecode(path))

    def _note(self, operation: Operation) -> None:
        with self.lock:
            self.operations.append(operation)

    # --- the functions of `os` ----------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        inode_before = self.inode_of(path)
        descriptor: int = _os["open"](path, flags, mode, **options)
        inode = self.created(path) if flags & os.O_CREAT else inode_before
        if flags & os.O_TRUNC and inode_before is not None:
            self.truncated(inode, 0)
        return descriptor

    def write(self, descriptor: int, content: Any) -> int:
        count: int = _os["write"](descriptor, content)
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        self.written(self.opened(descriptor), end - count, memoryview(content)[:count])
        return count

    def pwrite(self, descriptor: int, content: Any, offset: int) -> int:
        count: int = _os["pwrite"](descriptor, content, offset)
        self.written(self.opened(descriptor), offset, memoryview(content)[:count])
        return count

    def ftruncate(self, descriptor: int, size: int) -> None:
        _os["ftruncate"](descriptor, size)
        self.truncated(self.opened(descriptor), size)

    def truncate(self, path: Any, size: int) -> None:
        _os["truncate"](path, size)
        self.truncated(self.inode_of(path), size)

    def fsync(self, descriptor: int) -> None:
        self.sync(self.opened(descriptor), lambda: _os["fsync"](descriptor))

    def fdatasync(self, descriptor: int) -> None:
        self.sync(self.opened(descriptor), lambda: _os["fdatasync"](descriptor))

    def mkdir(self, path: Any, mode: int = 0o777, **options: Any) -> None:
        _os["mkdir"](path, mode, **options)
        self.created(path, is_folder=True)

    def rename(self, source: Any, target: Any) -> None:
        _os["rename"](source, target)
        self.moved(source, target)

    def unlink(self, path: Any) -> None:
        _os["unlink"](path)
        self.gone(path)

    def rmdir(self, path: Any) -> None:
        _os["rmdir"](path)
        self.gone(path)

    def replace(self, source: Any, target: Any) -> None:
        self.rename(source, target)

    def remove(self, path: Any) -> None:
        self.unlink(path)


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._recording = recording
        path = name if isinstance(name, str) or name is None else name.filename()
        self._path = path or ""
        self._inode = recording.created(path) if path and flags[0] & apsw.SQLITE_OPEN_CREATE else None
        if path and self._inode is None:
            self._inode = recording.inode_of(path)
        self._folder = recording.inode_of(os.path.dirname(path)) if path and flags[0] & _JOURNALS else None

    def xLock(self, level: int) -> None:  # noqa: N802
        try:
            super().xLock(level)
        except apsw.IOError as error:  # a file that is open for reading only: SQLite passes over it, apsw would not
            raise apsw.BusyError from error

    def xWrite(self, content: bytes, offset: int) -> None:  # noqa: N802  # the names are SQLite's
        with self._recording.lock:
            self._recording.on_write(self._path)
            super().xWrite(content, offset)
            self._recording.written(self._inode, offset, content)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        with self._recording.lock:
            super().xTruncate(size)
            self._recording.truncated(self._inode, size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._recording.sync(self._inode, lambda: super(_File, self).xSync(flags))
        if (
            self._folder is not None and self._recording.trusts_sqlite
        ):  # SQLite syncs the folder of a new journal with its first sync
            self._recording.sync(self._folder, lambda: None)
            self._folder = None


class _Vfs(apsw.VFS):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        super().__init__("recording", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        with self._recording.lock:
            return _File(self._recording, name, flags)

    def xRandomness(self, size: int) -> bytes:  # noqa: N802
        return bytes(size)

    def xDelete(self, path: str, is_synced: bool) -> None:  # noqa: N802
        with self._recording.lock:
            super().xDelete(path, is_synced)
            self._recording.gone(path)
            if is_synced:
                self._recording.sync(self._recording.inode_of(os.path.dirname(path)), lambda: None)


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record what this process does below `root` while the block runs."""
    recording = Recording(root)

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not recording.concerns(args[0]):
                return _os[function.__name__](*args, **options)
            with recording.lock:
                return function(*args, **options)

        return call

    names = "open write pwrite ftruncate truncate fsync fdatasync mkdir rename unlink rmdir replace remove"
    default = apsw.vfs_names()[0]
    vfs = _Vfs(recording)
    for name in names.split():
        setattr(os, name, locked(getattr(recording, name)))
    try:
        yield recording
    finally:
        for name in names.split():
            setattr(os, name, _os[name])
        vfs.unregister()
        assert apsw.vfs_names()[0] == default
