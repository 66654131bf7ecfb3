"""The rival of `insert` and `backlog`: a row per chunk, an index in random order, and who has a chunk in memory.

So Opsqueue keeps its backlog, and hands it out by queries. Written for this comparison from what it publishes of them,
with the same apsw as ours and Opsqueue's generous cache (1 GiB), but with `synchronous = FULL`, because ours answers
only after the fsync.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw

_CHECKPOINT = "wal_autocheckpoint = 16384"
"""64 MiB of log, at which ours copies too."""

_SCHEMA = """
CREATE TABLE chunk(
  submission_id INTEGER NOT NULL,
  chunk_index   INTEGER NOT NULL,
  content       BLOB,
  retries       INTEGER NOT NULL DEFAULT 0,
  random_order  INTEGER NOT NULL GENERATED ALWAYS AS (
    (submission_id + (submission_id >> 22) + chunk_index) % 65536 * 40503 % 65536) VIRTUAL,
  PRIMARY KEY (submission_id, chunk_index)
) WITHOUT ROWID, STRICT;
CREATE INDEX chunk_in_random_order ON chunk(random_order, submission_id, chunk_index);
CREATE TABLE submission(
  id           INTEGER PRIMARY KEY,
  chunks_total INTEGER NOT NULL,
  chunks_done  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE submission_metadata(
  submission_id  INTEGER NOT NULL,
  metadata_key   TEXT NOT NULL,
  metadata_value BLOB NOT NULL,
  PRIMARY KEY (submission_id, metadata_key, metadata_value)
) WITHOUT ROWID, STRICT;
CREATE INDEX submission_by_metadata ON submission_metadata(metadata_key, metadata_value, submission_id);
"""

_OF_BUSY_VALUES = """
submission_id {} (SELECT submission_id FROM submission_metadata
  WHERE metadata_key = :key AND metadata_value IN (SELECT CAST(value AS BLOB) FROM json_each(:values)))
"""
_QUERIES = {
    "OldestFirst": ("SELECT submission_id, chunk_index FROM chunk ORDER BY submission_id, chunk_index",),
    "Random": tuple(
        "SELECT submission_id, chunk_index FROM chunk"
        f" WHERE random_order {side} :place ORDER BY random_order, submission_id, chunk_index"
        for side in (">=", "<")
    ),
    "PreferDistinct": tuple(
        f"SELECT submission_id, chunk_index FROM chunk WHERE {_OF_BUSY_VALUES.format(which)}"
        " ORDER BY submission_id, chunk_index"
        for which in ("NOT IN", "IN")
    ),
}
"""By strategy: the first row of these that nobody has is next. Random enters a fixed order anywhere and goes round."""

Chunk = tuple[int, int]


class RowPerChunk:
    """A database file with one row per chunk, and the chunks that were handed out, in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rng = random.Random(1)
        self._held: dict[Chunk, str] = {}
        self._busy: Counter[str] = Counter()
        self._order: deque[Chunk] = deque()
        self._connection = apsw.Connection(str(path))
        for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -1000000", _CHECKPOINT):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection.execute(_SCHEMA).fetchall()
        self._submissions_count = 0

    def insert(self, chunks_count: int, metadata: Sequence[Mapping[str, int | str]]) -> float:
        """Insert a submission of `chunks_count` chunks for each entry of `metadata`, all in one durable transaction.

        Returns:
            The seconds that it took.
        """
        started = time.perf_counter()
        with self._connection:
            for pairs in metadata:
                self._submissions_count += 1
                submission_id = self._submissions_count << 22
                self._connection.execute(
                    "INSERT INTO submission(id, chunks_total) VALUES (?, ?)", (submission_id, chunks_count)
                )
                self._connection.executemany(
                    "INSERT INTO submission_metadata VALUES (?, ?, ?)",
                    [(submission_id, key, str(value).encode()) for key, value in pairs.items()],
                )
                self._connection.executemany(
                    "INSERT INTO chunk(submission_id, chunk_index) VALUES (?, ?)", _keys(submission_id, chunks_count)
                )
        return time.perf_counter() - started

    def reserve(self, strategy: str, key: str = "") -> Chunk:
        """Hand out the next chunk. Of a `PreferDistinct` over `OldestFirst`, `key` is what it tells apart by."""
        bindings = {"place": self._rng.randrange(65536), "key": key, "values": json.dumps(list(self._busy))}
        for query in _QUERIES[strategy]:
            for row in self._connection.execute(query, {name: bindings[name] for name in _names(query)}):
                chunk = (int(row[0]), int(row[1]))
                if chunk not in self._held:
                    self._hold(chunk, key)
                    return chunk
        raise RuntimeError("a chunk was to be handed out; none is free")

    def _hold(self, chunk: Chunk, key: str) -> None:
        value = ""
        if key:
            found = self._connection.execute(
                "SELECT metadata_value FROM submission_metadata WHERE submission_id = ? AND metadata_key = ?",
                (chunk[0], key),
            ).get
            value = bytes(found).decode()
            self._busy[value] += 1
        self._held[chunk] = value
        self._order.append(chunk)

    def finish(self, most_held: int, back_every: int) -> None:
        """Complete what has been held longest until so much is left, and give back each `back_every`-th instead."""
        with self._connection:
            while len(self._order) > most_held:
                chunk = self._order.popleft()
                value = self._held.pop(chunk)
                self._busy[value] -= 1
                if self._busy[value] <= 0:
                    del self._busy[value]
                if self._rng.randrange(back_every):
                    self._connection.execute("DELETE FROM chunk WHERE submission_id = ? AND chunk_index = ?", chunk)
                    self._connection.execute(
                        "UPDATE submission SET chunks_done = chunks_done + 1 WHERE id = ?", chunk[:1]
                    )

    def size_bytes(self) -> int:
        """The size of the file once its log is copied into it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _names(query: str) -> Iterator[str]:
    return (name for name in ("place", "key", "values") if f":{name}" in query)


def _keys(submission_id: int, chunks_count: int) -> Iterator[tuple[int, int]]:
    return ((submission_id, index) for index in range(chunks_count))
