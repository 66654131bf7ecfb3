"""What takes room on a full disk, and what of that could go: finished submissions, history, unfinished submissions.

Only looks, at a bounded number of rows and files, and so may know less than there is; must not remove anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from opsq.filesystem import space
from opsq.store.database_file import scalar

Details = dict[str, int | float | str]

_SUBMISSIONS_LIMIT: Final = 200
_FILES_LIMIT: Final = 4_000
_RESULTS_LIMIT: Final = 100
_NAMED_LIMIT: Final = 5
_KEPT_EVENTS: Final = 1_000
_EVENT_BYTES: Final = 120
"""A row of the history and what finds it, beside its texts."""
_ROW_BYTES: Final = 600
"""A submission, with what finds it, beside its texts."""
_LEAST_BYTES: Final = 32 << 10
"""To name less than this helps nobody."""
_FINISHED = "SELECT id, request_key FROM submission WHERE finished_at IS NOT NULL ORDER BY finished_at LIMIT ?"
_UNFINISHED = (
    "SELECT s.id, s.request_key FROM lane_submission l JOIN submission s ON s.id = l.submission_id "
    "WHERE l.lane_id = 0 ORDER BY l.submission_id LIMIT ?"
)
_OWN = (
    "SELECT length(content) + ifnull(length(attachment), 0) + (SELECT ifnull(sum(length(results)), 0) FROM "
    "(SELECT results FROM result WHERE submission_id = submission.id LIMIT ?2)) FROM submission WHERE id = ?1"
)


class Removable:
    """Looks at one database, and at the folders in which its submissions have content."""

    def __init__(self, reader: apsw.Connection, path: Path, folders: Sequence[Path]) -> None:
        self._reader = reader
        self._path = path
        device = path.parent.stat().st_dev
        self._folders = [folder for folder in folders if folder.exists() and folder.stat().st_dev == device]
        self._files_left = 0

    def details(self) -> Details:
        """What `wording` makes sentences of. Cost: some thousand look-ups of rows and files, about 20 ms."""
        self._files_left = _FILES_LIMIT
        finished = self._sizes(_FINISHED)
        unfinished = self._sizes(_UNFINISHED)
        found: Details = {}
        found |= _group("finished", finished)
        count, history_bytes = self._history()
        if count > _KEPT_EVENTS and history_bytes >= _LEAST_BYTES:
            found |= {"keep": _KEPT_EVENTS, "history_bytes": history_bytes * (count - _KEPT_EVENTS) // count}
        if "finished" not in found:
            found |= _group("unfinished", unfinished)
        left = space(self._path.parent)
        if left is not None and self._files_left > 0 and len(finished) + len(unfinished) < _SUBMISSIONS_LIMIT:
            ours = sum(size for size, _ in (*finished, *unfinished)) + sum(_size(path) for path in self._own_files())
            used = left.total_bytes - left.free_bytes
            if ours < used // 2:
                found |= {"used_bytes": used, "others_bytes": used - ours}
        return found

    def _sizes(self, sql: str) -> list[tuple[int, int]]:
        """(bytes, id) of submissions."""
        found: list[tuple[int, int]] = []
        rows: list[tuple[Any, ...]] = self._reader.execute(sql, (_SUBMISSIONS_LIMIT,)).fetchall()
        for number, request_key in rows:
            own_bytes = _ROW_BYTES + int(scalar(self._reader, _OWN, (number, _RESULTS_LIMIT)) or 0)
            name = request_key.hex()
            found.append((own_bytes + sum(self._folder_bytes(str(folder / name)) for folder in self._folders), number))
        return found

    def _folder_bytes(self, path: str) -> int:
        size_bytes = 0
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._files_left -= 1
                    if self._files_left <= 0:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        size_bytes += self._folder_bytes(entry.path)
                    else:
                        size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            return size_bytes
        return size_bytes

    def _history(self) -> tuple[int, int]:
        """How many events there are, and roughly their bytes."""
        first, last = self._reader.execute("SELECT (SELECT min(seq) FROM history), (SELECT max(seq) FROM history)").get
        if first is None:
            return 0, 0
        sql = (
            "SELECT avg(length(consumer) + length(reason)) FROM "
            "(SELECT consumer, reason FROM history ORDER BY seq LIMIT 200)"
        )
        count = last - first + 1
        return count, int(count * (_EVENT_BYTES + (self._reader.execute(sql).get or 0)))

    def _own_files(self) -> Iterator[Path]:
        return self._path.parent.glob("opsq.*")


def _group(name: str, sizes: list[tuple[int, int]]) -> Details:
    """The largest of some submissions by id, or all of them (""), if many small ones take the room."""
    best = sorted(sizes, reverse=True)[:_NAMED_LIMIT]
    best_bytes, all_bytes = (sum(size for size, _ in some) for some in (best, sizes))
    if all_bytes < _LEAST_BYTES:
        return {}
    if best_bytes < max(all_bytes // 2, _LEAST_BYTES):
        return {name: "", f"{name}_bytes": all_bytes}
    return {name: " ".join(str(number) for _, number in best), f"{name}_bytes": best_bytes}


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
