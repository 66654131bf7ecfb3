"""An outbox in PostgreSQL: rows are locked while they are handed over, so that several relays share them.

This file must not know what is in a row. It needs psycopg, of `opsq[postgresql]`.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import conninfo

from opsq.errors import Unreachable, UsageError
from opsq.outbox.ddl import CHANNEL
from opsq.outbox.rows import ORDER_LOCKS
from opsq.outbox.waiting_rows import (
    BATCH_LIMIT_BYTES,
    COMPLETIONS,
    LEFT,
    MISSING_HINT,
    PUT_BACK,
    SUBMISSIONS,
    Completion,
    Left,
    Submission,
)

_CONNECT_S = 10
_WAIT_LIMIT_S = 86_400.0
"""After so long it looks for itself in any case; poll(2) takes less than 25 days."""

# A relay that is cut off must not hold its rows until the system gives the connection up, in hours. What a lost commit
# of a relay would cost is a second hand-over under the same key, so it need not wait for the disk. And rows must come
# by the index, one by one: to sort them, PostgreSQL would take the lock of every order key in the table. (Without what
# is switched off for that, plans look so expensive that they would be compiled, which takes longer than to run them.)
_SETTINGS = """
    SET idle_in_transaction_session_timeout = '120s';
    SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;
    SET synchronous_commit = off; SET jit = off;
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off
"""

_TAKE = f"""
    SELECT seq, order_key FROM opsq_outbox
    WHERE refusal IS NULL
      AND (order_key IS NULL OR pg_try_advisory_xact_lock({ORDER_LOCKS + 1}, hashtext(order_key)))
    ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
"""
# The lock of an order key keeps rows that have to wait out of the batch, but not the order by itself: a relay that had
# it when `_TAKE` passed the first of them may have let go of both since, without success. Then the others wait, too.
_OVERTAKING = """
    SELECT seq FROM opsq_outbox JOIN (
        SELECT order_key, max(seq) AS last, count(*) AS count FROM opsq_outbox WHERE seq = ANY(%(taken)s)
        GROUP BY order_key
    ) AS keys USING (order_key)
    WHERE seq = ANY(%(taken)s) AND keys.count <> (
        SELECT count(*) FROM opsq_outbox AS one
        WHERE one.order_key = keys.order_key AND one.seq <= keys.last AND one.refusal IS NULL
    )
"""
_READ = """
    SELECT seq, submission, chunks FROM (
        SELECT seq, submission, chunks, length(submission) + coalesce(length(chunks), 0) AS own,
            sum(length(submission) + coalesce(length(chunks), 0)) OVER (ORDER BY seq) AS up_to
        FROM opsq_outbox WHERE seq = ANY(%s)
    ) AS taken
    WHERE up_to <= %s OR up_to = own ORDER BY seq
"""
_TAKE_COMPLETED = """
    WITH taken AS MATERIALIZED (
        SELECT seq, handle, result FROM opsq_outbox_completed WHERE told_at IS NULL AND refusal IS NULL
        ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
    )
    SELECT seq, handle, result FROM (
        SELECT seq, handle, result, length(result) AS own, sum(length(result)) OVER (ORDER BY seq) AS up_to FROM taken
    ) AS summed
    WHERE up_to <= %s OR up_to = own ORDER BY seq
"""
_DONE = {
    SUBMISSIONS: "DELETE FROM opsq_outbox WHERE seq = ANY(%s)",
    COMPLETIONS: "UPDATE opsq_outbox_completed SET told_at = now() WHERE told_at IS NULL AND seq = ANY(%s)",
}
_ASIDE = {
    SUBMISSIONS: "UPDATE opsq_outbox SET refusal = %s WHERE seq = %s",
    COMPLETIONS: "UPDATE opsq_outbox_completed SET refusal = %s WHERE told_at IS NULL AND seq = %s",
}


class PostgresqlOutbox:
    """The outbox of a database of PostgreSQL; see `Outbox`.

    Args:
        url: what libpq connects by.

    Raises:
        UsageError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connected: psycopg.Connection[Any] | None = None
        self._is_notified = True
        try:
            parts = conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"That is no URL of a PostgreSQL database: {_line(error)}.") from error
        host = f"{parts['host']}/" if parts.get("host") else ""
        self.name = f"{host}{parts.get('dbname', '')}" or "the database"

    def open(self) -> None:
        """See `Outbox`."""
        if self._connected is not None:
            return
        self._is_notified = True
        try:
            self._connected = psycopg.connect(
                self._url, autocommit=True, connect_timeout=_CONNECT_S, application_name="opsq relay"
            )
        except psycopg.Error as error:
            raise Unreachable(f"{self.name} cannot be reached: {_line(error)}.") from error
        self._connected.add_notify_handler(self._heard)
        with self._explained() as connection:
            connection.execute(_SETTINGS)
            connection.execute(f"LISTEN {CHANNEL}")

    def take_submissions(self, limit: int) -> list[Submission]:
        """See `Outbox`."""
        self._is_notified = False
        with self._explained() as connection:
            connection.execute("BEGIN")
            found = connection.execute(_TAKE, (limit,)).fetchall()
            taken = [seq for seq, _ in found]
            keyed = [seq for seq, key in found if key is not None]
            if keyed:
                waiting = {seq for (seq,) in connection.execute(_OVERTAKING, {"taken": keyed})}
                taken = [seq for seq in taken if seq not in waiting]
            rows = connection.execute(_READ, (taken, BATCH_LIMIT_BYTES)).fetchall() if taken else []
        return [Submission(*row) for row in rows]

    def take_completions(self, limit: int) -> list[Completion]:
        """See `Outbox`."""
        with self._explained() as connection:
            connection.execute("BEGIN")
            return [Completion(*row) for row in connection.execute(_TAKE_COMPLETED, (limit, BATCH_LIMIT_BYTES))]

    def settle(self, table: str, done: list[int], refused: dict[int, str]) -> None:
        """See `Outbox`."""
        with self._explained() as connection:
            if done:
                connection.execute(_DONE[table], (done,))
            for seq, reason in refused.items():
                connection.execute(_ASIDE[table], (reason, seq))
            connection.execute("COMMIT")

    def leave(self) -> None:
        """See `Outbox`."""
        if self._connected is not None and not self._connected.closed:
            with self._explained() as connection:
                connection.execute("ROLLBACK")

    def put_back(self) -> int:
        """See `Outbox`."""
        with self._explained() as connection:
            return sum(connection.execute(statement).rowcount for statement in PUT_BACK)

    def prune(self, keep_s: float) -> None:
        """See `Outbox`."""
        with self._explained() as connection:
            connection.execute(
                "DELETE FROM opsq_outbox_completed WHERE told_at < now() - make_interval(secs => %s)", (keep_s,)
            )

    def left(self) -> Left:
        """See `Outbox`."""
        with self._explained() as connection:
            return Left(*connection.execute(LEFT).fetchall()[0])

    def wait(self, stop_fd: int, timeout_s: float) -> None:
        """See `Outbox`."""
        if self._is_notified:
            return
        with self._explained() as connection:
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN)
            poll.register(stop_fd, select.POLLIN)
            poll.poll(min(timeout_s, _WAIT_LIMIT_S) * 1000)

    def close(self) -> None:
        """See `Outbox`."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _heard(self, _: psycopg.Notify) -> None:
        self._is_notified = True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection; errors of the driver inside become ours."""
        try:
            if self._connected is None:
                raise Unreachable(f"There is no connection to {self.name}.")
            yield self._connected
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise UsageError(f"There is no outbox in {self.name}: {_line(error)}.", hint=MISSING_HINT) from error
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.SyntaxError) as error:
            raise UsageError(f"The outbox in {self.name} cannot be used: {_line(error)}.") from error
        except psycopg.Error as error:
            with contextlib.suppress(psycopg.Error):
                self.close()
            raise Unreachable(f"{self.name} cannot be used: {_line(error)}.") from error


def _line(error: Exception) -> str:
    """The first line of what the driver says."""
    return str(error).strip().partition("\n")[0].rstrip(".")
