"""What takes room on a full disk, and what of that could go: submissions, history, logs, files of others.

Only looks, at a bounded number of rows and files, and so may know less than there is; must not remove anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from opsq.store.database_file import scalar
from opsq.store.disk_use import LEAST_BYTES, NAMED_LIMIT, Details, FileSizes, logs, old_logs, others, own_bytes

_SUBMISSIONS_LIMIT: Final = 200
_RESULTS_LIMIT: Final = 100
_KEPT_EVENTS: Final = 1_000
_KEPT_SHARE: Final = 10
"""Of the events, if they are few and long."""
_EVENT_BYTES: Final = 120
"""A row of the history and what finds it, beside its texts."""
_ROW_BYTES: Final = 600
"""A submission, with what finds it, beside its texts."""
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

    def details(self, *, is_spent: bool) -> Details:
        """What `wording` makes sentences of. Cost: some thousand look-ups of rows and files, about 20 ms.

        Args:
            is_spent: nothing can be removed any more for want of room.
        """
        sizes = FileSizes()
        finished = self._sizes(_FINISHED, sizes)
        unfinished = self._sizes(_UNFINISHED, sizes)
        found: Details = {}
        found |= _group("finished", finished)
        count, history_bytes = self._history()
        if history_bytes >= LEAST_BYTES:
            kept = min(_KEPT_EVENTS, count // _KEPT_SHARE)
            found |= {"keep": kept, "history_bytes": history_bytes * (count - kept) // count}
        found |= old_logs(self._path.parent)
        if "finished" not in found:
            found |= _group("unfinished", unfinished)
            found |= logs(self._path.parent)
        free_bytes = int(scalar(self._reader, "PRAGMA freelist_count")) * int(scalar(self._reader, "PRAGMA page_size"))
        if free_bytes >= LEAST_BYTES:
            found["returning_bytes"] = free_bytes
        if not sizes.is_cut and len(finished) + len(unfinished) < _SUBMISSIONS_LIMIT:
            ours = sizes.total_bytes + own_bytes(self._path.parent)
            found |= others(ours, self._path.parent, is_last_hope=is_spent)
        return found

    def _sizes(self, sql: str, sizes: FileSizes) -> list[tuple[int, int]]:
        """(bytes, id) of submissions."""
        found: list[tuple[int, int]] = []
        rows: list[tuple[Any, ...]] = self._reader.execute(sql, (_SUBMISSIONS_LIMIT,)).fetchall()
        for number, request_key in rows:
            own_bytes = _ROW_BYTES + int(scalar(self._reader, _OWN, (number, _RESULTS_LIMIT)) or 0)
            name = request_key.hex()
            found.append((own_bytes + sum(sizes.below(str(folder / name)) for folder in self._folders), number))
        return found

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


def _group(name: str, sizes: list[tuple[int, int]]) -> Details:
    """The largest of some submissions by id, or all of them (""), if many small ones take the room."""
    best = sorted(sizes, reverse=True)[:NAMED_LIMIT]
    best_bytes, all_bytes = (sum(size for size, _ in some) for some in (best, sizes))
    if all_bytes < LEAST_BYTES:
        return {}
    if best_bytes < max(all_bytes // 2, LEAST_BYTES):
        return {name: "", f"{name}_bytes": all_bytes}
    return {name: " ".join(str(number) for _, number in best), f"{name}_bytes": best_bytes}
