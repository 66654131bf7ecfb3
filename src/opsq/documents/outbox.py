"""The JSON documents about outboxes.

It must not print.
"""

from __future__ import annotations

from opsq.documents.shape import ErrorShape, Shape


class DdlDocument(Shape):
    """`opsq outbox ddl`. `sql`: the statements."""

    sql: str


class AsideShape(Shape):
    """A row that was set aside: its table, its number there (`seq`), and why."""

    table: str
    seq: int
    reason: str


class LeftShape(Shape):
    """What is in an outbox: rows that wait, and rows that were set aside."""

    waiting: int
    aside: int


class RelayDocument(Shape):
    """`opsq relay`, at its end: how many rows it has handed over, and set aside.

    `rows` are the first 100 that it has set aside. `left`: what is in the outbox, with `--once`.
    """

    submitted: int
    completed: int
    aside: int
    rows: list[AsideShape]
    left: LeftShape | None
    error: ErrorShape | None = None
