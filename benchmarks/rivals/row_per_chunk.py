"""The rival of `insert`: one row per chunk and an index in random order, as Opsqueue keeps its backlog.

Written for this comparison, with the same apsw as ours and Opsqueue's generous cache (1 GiB), but with
`synchronous = FULL`, because ours answers only after the fsync.
"""

from __future__ import annotations

import time
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


class RowPerChunk:
    """A database file with one row per chunk."""

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def size_bytes(self) -> int:
        """The size of the file once its log is copied into it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _keys(submission_id: int, chunks_count: int) -> Iterator[tuple[int, int]]:
    return ((submission_id, index) for index in range(chunks_count))
