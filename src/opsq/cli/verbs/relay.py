"""The verb relay: moves rows of an outbox into the queue.

Of PostgreSQL's driver it must not import anything before it is needed.
"""

from __future__ import annotations

import os

from opsq.cli.caller import Caller
from opsq.documents.outbox import AsideShape, LeftShape, RelayDocument
from opsq.errors import OpsqError, UsageError, WorkFailed
from opsq.options.option import Whole, argument, option, positive_duration
from opsq.outbox.hand_over import HandOver
from opsq.outbox.relay import Relay
from opsq.outbox.waiting_rows import Left, Outbox
from opsq.runner.stop_signals import StopSignals
from opsq.units import counted


def relay(
    caller: Caller,
    url: str = argument("URL", "The database: postgresql://… as libpq has it, or sqlite:PATH."),
    once: bool = option("--once", "End when all rows that are there have been handed over."),
    batch: int = option("--batch N", "Hand over so many rows at once, at most.", Whole(1, 1000), 500),
    poll_s: float = option(
        "--poll D", "Look for rows this often, even if nothing tells of new ones.", positive_duration, 5.0
    ),
    keep_s: float = option(
        "--keep D",
        "Keep completions this long after they were handed over, so that no chunk is completed twice.",
        positive_duration,
        7 * 86_400.0,
    ),
    retry: bool = option("--retry", "First have rows that were set aside tried again."),
) -> None:
    """Hand the rows of an outbox over to the daemon.

    Runs until SIGTERM. Each row arrives once, whatever is killed when; it waits while the database or daemon is away.

    A row that the daemon refuses for good is set aside with its reason, and the exit status is 1.
    """
    relay = Relay(
        _outbox_of(url),
        HandOver(lambda: caller.connect(name=f"relay-{os.getpid()}")),
        batch=batch,
        poll_s=poll_s,
        keep_s=keep_s,
        on_aside=lambda aside: caller.warn(f"row {aside.seq} of {aside.table} was set aside: {aside.reason}"),
        on_outage=lambda error: _tell(caller, error),
    )
    left = None
    try:
        with StopSignals() as stop:
            if retry:
                relay.put_back()
            if once:
                left = relay.run_once(stop)
            else:
                relay.run(stop)
    finally:
        relay.close()
    _conclude(caller, relay, left)


def _outbox_of(url: str) -> Outbox:
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        from opsq.outbox.sqlite import SqliteOutbox

        return SqliteOutbox(rest.removeprefix("///"))  # three of them, as SQLAlchemy writes it
    if scheme in {"postgresql", "postgres"}:
        try:
            from opsq.outbox.postgresql import PostgresqlOutbox
        except ImportError as error:
            raise UsageError(
                f"A relay from PostgreSQL needs {error.name}, which is not installed.",
                hint="Install it: pip install 'opsq[postgresql]'",
            ) from error
        return PostgresqlOutbox(url)
    hint = "Give postgresql://… or sqlite:PATH." if scheme != url else f"Is it a file? Then write sqlite:{url}."
    raise UsageError("An outbox is in a database of PostgreSQL or SQLite, named by a URL.", hint=hint)


def _tell(caller: Caller, error: OpsqError | None) -> None:
    """Say that an outage has begun, or is over."""
    caller.warn("connected again." if error is None else f"{error.message} Trying again until it works.")


def _conclude(caller: Caller, relay: Relay, left: Left | None) -> None:
    failure = None
    if relay.aside_count:
        failure = WorkFailed(
            f"{counted(relay.aside_count, 'row')} {'was' if relay.aside_count == 1 else 'were'} set aside.",
            hint="Once the reason is gone: `opsq relay --retry URL`.",
        )
    caller.conclude(
        RelayDocument(
            submitted=relay.submitted_count,
            completed=relay.completed_count,
            aside=relay.aside_count,
            rows=[AsideShape(*row) for row in relay.aside],
            left=None if left is None else LeftShape(*left),
        ),
        failure,
    )
