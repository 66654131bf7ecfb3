"""Work that commits with your own transaction: `submit` and `complete` write rows, which `opsq relay` hands over.

This package is a client: the daemon knows nothing of outboxes. `ddl` has the tables, `rows` writes them, `relay` moves
what is in them, through `postgresql` or `sqlite`.

    with psycopg.connect("dbname=shop") as connection:
        connection.execute("INSERT INTO orders …")
        opsq.outbox.submit(connection, [b"order 17"])
"""

from __future__ import annotations

from opsq.outbox.ddl import ddl
from opsq.outbox.rows import complete, completed, submit

__all__ = ["complete", "completed", "ddl", "submit"]
