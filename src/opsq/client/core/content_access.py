"""The bytes of chunks and results as a client reaches them: the daemon's store, checked once to be the same one.

This file decides nothing about formats (content/ does) and opens the store only when something needs it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opsq.users import is_trusted
from opsq.wire.messages import SubmissionContent, Welcome

if TYPE_CHECKING:
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.content_store import Store
    from opsq.content.file_io import Roots
    from opsq.content.manifest import Content, InputRange
    from opsq.content.result_objects import ResultWriter

_READERS_LIMIT = 64


class Contents:
    """Reads chunks and results of any submission, and writes results. Reading is safe from many threads.

    Args:
        welcome: names the store.
    """

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._store: Store | None = None
        self._opening = threading.Lock()
        self._local = threading.local()

    @property
    def store(self) -> Store:
        """The daemon's store.

        Raises:
            StoreNotVisible: it cannot be seen from here.
        """
        if self._store is None:
            from opsq.content.store_kinds import open_store

            with self._opening:
                if self._store is None:
                    store = open_store(self._welcome.store)
                    store.check_marker(self._welcome.store_marker)
                    self._store = store
        return self._store

    @property
    def unchecked(self) -> Store:
        """The store for what needs nothing of it, without a look whether it can be seen."""
        from opsq.content.store_kinds import open_store

        return self._store or open_store(self._welcome.store)

    def reader(self, described: SubmissionContent) -> ChunkReader:
        """What reads the chunks of a submission; kept for the next calls of this thread."""
        readers: dict[int, ChunkReader] = self._local.__dict__.setdefault("readers", {})
        reader = readers.get(described.submission_id)
        if reader is None:
            from opsq.content.chunk_reader import ChunkReader
            from opsq.content.manifest import decode

            content = decode(described.content)
            store = self._store_for(content)
            reader = ChunkReader(store, content, self._roots_of(described, content, store))
            if len(readers) >= _READERS_LIMIT:
                del readers[next(iter(readers))]
            readers[described.submission_id] = reader
        return reader

    def known_input(self, content: bytes, index: int) -> InputRange | None:
        """The input of a chunk of the submission with this content, if it can be found out."""
        from opsq.content.chunk_reader import input_of

        return input_of(self.unchecked, content, index)

    def result_writer(self, described: SubmissionContent, consumer: str) -> ResultWriter:
        """A new writer for the large results of a submission."""
        from opsq.content.manifest import decode
        from opsq.content.result_objects import ResultWriter

        folder = decode(described.content).folder
        return ResultWriter(self.store, folder, consumer, is_durable=self._welcome.is_durable)

    def read_result(self, content: bytes, place: tuple[str, int, int]) -> bytes:
        """The bytes of a large result.

        Args:
            content: of its submission.
            place: object, offset and length.
        """
        from opsq.content.manifest import decode

        return self.store.read_range(f"{decode(content).folder}/{place[0]}", place[1], place[2])

    def close(self) -> None:
        """Let go of open files."""
        if self._store is not None:
            self._store.close()

    def _roots_of(self, described: SubmissionContent, content: Content, store: Store) -> Roots | None:
        """Where files that a submission names in place must be; None: this user, or root, has named them.

        A daemon of another user, or on another machine, may say anything, and so may who can write to the store.
        """
        is_own = self._welcome.is_own and described.submitter is not None and is_trusted(described.submitter)
        if is_own and (content.parts_object is None or store.is_own(f"{content.folder}/{content.parts_object}")):
            return None
        from opsq.content.file_io import roots_of
        from opsq.settings import load

        return roots_of(*load().in_place_roots)

    def _store_for(self, content: Content) -> Store:
        return self.unchecked if content.inline is not None and content.header_object is None else self.store
