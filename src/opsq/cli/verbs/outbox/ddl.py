"""The verb outbox ddl: the tables of an outbox, as statements."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.documents.outbox import DdlDocument
from opsq.errors import UsageError
from opsq.options.option import option
from opsq.outbox.ddl import ddl as statements


def ddl(
    caller: Caller,
    dialect: str | None = option("--for postgresql|sqlite", "The database that the statements are for."),
) -> None:
    """Print the statements that make the tables of an outbox; to run them again changes nothing."""
    if dialect is None:
        raise UsageError("--for is missing.", hint="Give --for postgresql or --for sqlite.")
    text = statements(dialect)
    caller.document(DdlDocument(text))
    caller.lines(text.splitlines())
