"""A disk as POSIX promises it: what was written is there after a loss of power only if it was synced.

It replays recorded operations and says what a crash may leave. It must not touch real files, nor know what they mean.

Two things are lost independently: the bytes of a file (until the file is synced) and its name (until the folder that
holds the name is synced). Each kind of inode is a durable state and a list of changes that may or may not have reached
it; a sync makes all of them durable, a crash keeps any of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

ROOT = 0
"""The inode of the root folder, whose own name is durable."""

# --- what is recorded: changes of the inode with that number, and syncs of it -----------------------------------------


class Create(NamedTuple):
    """A new inode, empty, without a name."""

    inode: int
    is_folder: bool


class Write(NamedTuple):
    """Bytes at an offset of a file."""

    inode: int
    offset: int
    content: bytes


class Truncate(NamedTuple):
    """A file gets this size."""

    inode: int
    size: int


class Rename(NamedTuple):
    """Names in a folder lead to other inodes, or (None) are gone, all at once: create, rename, link and unlink."""

    inode: int
    names: dict[str, int | None]


class Sync(NamedTuple):
    """What is pending of a file or folder is durable."""

    inode: int


class FailedSync(NamedTuple):
    """The system could not write what is pending of a file: it says so once, and forgets it."""

    inode: int


class Promise(NamedTuple):
    """Something was acknowledged: it holds at every cut until `Release`, since when it may or may not."""

    key: str
    fact: Any


class Release(NamedTuple):
    """An operation begins that may end what was promised under this key."""

    key: str


Change = Write | Truncate | Rename
Operation = Create | Change | Sync | FailedSync | Promise | Release

# --- what a crash keeps ---------------------------------------------------------------------------------------------


class Luck(NamedTuple):
    """Which of the changes that were not synced have reached the disk all the same.

    Args:
        share: of them; 0 and 1 are certain.
        sector_bytes: writes are torn into pieces at multiples of this, each with its own luck; 0: they are whole.
        seed: of the choice.
    """

    share: float
    sector_bytes: int = 0
    seed: int = 0

    def survivors(self, pending: Iterable[Change], rng: random.Random) -> Iterator[Change]:
        """Those of the changes, or parts of them, that are on the disk."""
        for change in pending:
            pieces = _torn(change, self.sector_bytes) if isinstance(change, Write) and self.sector_bytes else [change]
            yield from (piece for piece in pieces if rng.random() < self.share)


def _torn(write: Write, sector_bytes: int) -> Iterator[Write]:
    start, end = write.offset, write.offset + len(write.content)
    while start < end:
        next_start = min(start - start % sector_bytes + sector_bytes, end)
        yield Write(write.inode, start, write.content[start - write.offset : next_start - write.offset])
        start = next_start


# --- the disk -------------------------------------------------------------------------------------------------------


class Disk:
    """The inodes, and the promises in force, after the operations that were applied so far."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {}
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        self.pending: dict[int, list[Change]] = {}
        self.promises: dict[str, Any] = {}

    def apply(self, operation: Operation) -> None:
        """What the next operation does."""
        match operation:
            case Create(inode, is_folder):
                if is_folder:
                    self.folders[inode] = {}
                else:
                    self.files[inode] = bytearray()
            case Sync(inode):
                for change in self.pending.pop(inode, ()):
                    _reach(self._durable(inode), change)
            case FailedSync(inode):
                self.pending.pop(inode, None)
            case Promise(key, fact):
                self.promises[key] = fact
            case Release(key):
                self.promises.pop(key, None)
            case _:
                self.pending.setdefault(operation.inode, []).append(operation)

    def after_crash(self, luck: Luck) -> dict[str, bytes | None]:
        """The files by their paths, and the folders (None), parents first, that are found when the power is back."""
        rng = random.Random(luck.seed)
        return {
            path: None if inode in self.folders else bytes(self._survived(inode, luck, rng))
            for path, inode in self._walk(luck, rng)
        }

    def unsynced(self) -> list[str]:
        """Files with bytes, and folders with new names, that a crash may lose now."""

        def is_loss(change: Change) -> bool:
            return not isinstance(change, Rename) or any(change.names.values())

        found = [(".", ROOT), *self._walk(Luck(1.0), random.Random(0))]
        return [path for path, inode in found if any(map(is_loss, self.pending.get(inode, ())))]

    def _walk(self, luck: Luck, rng: random.Random) -> Iterator[tuple[str, int]]:
        """The names that a crash leaves, each with its inode; parents first."""
        folders = [("", ROOT)]
        for prefix, folder in folders:
            for name, inode in sorted(self._survived(folder, luck, rng).items()):
                yield prefix + name, inode
                if inode in self.folders:
                    folders.append((f"{prefix}{name}/", inode))

    def _durable(self, inode: int) -> Any:
        return self.files[inode] if inode in self.files else self.folders[inode]

    def _survived(self, inode: int, luck: Luck, rng: random.Random) -> Any:
        state = self._durable(inode).copy()
        for change in luck.survivors(self.pending.get(inode, ()), rng):
            _reach(state, change)
        return state


def _reach(state: Any, change: Change) -> None:
    """Have a change reach the bytes of a file or the names of a folder."""
    match change:
        case Write(_, offset, content):
            if offset > len(state):
                state.extend(bytes(offset - len(state)))
            state[offset : offset + len(content)] = content
        case Truncate(_, size):
            del state[size:]
            state.extend(bytes(size - len(state)))
        case Rename(_, names):
            for name, inode in names.items():
                if inode is None:
                    state.pop(name, None)
                else:
                    state[name] = inode
