"""The number that the file has among the shards of a queue: it stands in every submission id that is made here.

It must not know what a client does with it.
"""

from __future__ import annotations

import apsw

from opsq.errors import Conflict
from opsq.store import meta, submissions
from opsq.store.database import Database
from opsq.store.database_file import no_room

_KEY = "shard"


def number(connection: apsw.Connection) -> int | None:
    """The shard number of the file, 0 to 1023; None: it has none, and its ids say 0."""
    text = meta.get_text(connection, _KEY)
    return int(text) if text else None


def claim(database: Database, asked: int | None) -> None:
    """Give the file the number that was asked for, for good; None asks for none.

    Raises:
        Conflict: it has another, or has made submissions without one, whose ids say 0.
        StorageFull: there is no room for it.
    """
    known = number(database.reader)
    if asked is None or asked == known:
        return
    if known is not None:
        raise Conflict(
            f"{database.path} is shard {known}, and shard {asked} was asked for.",
            hint=f"Leave out --shard, or give --shard {known}; another shard needs another --state-dir.",
        )
    if asked and submissions.last_id(database.reader):
        raise Conflict(
            f"{database.path} has made submissions without a shard number, so it cannot be shard {asked}.",
            hint="Give --shard 0, which is what their ids say, or another --state-dir.",
        )
    try:
        database.begin()
        meta.put(database.writer, _KEY, asked)
        database.commit()
    except (apsw.FullError, apsw.IOError) as error:
        database.rollback()
        raise no_room(database.path, error) from error
