"""Cuts operations into chunks, in constant memory.

This file must not know where the chunks go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from opsq.client.core.arguments import converted
from opsq.errors import UsageError
from opsq.serialisation import Serialisation, find


def chunks_of(
    operations: Iterable[Any], serialisation: Serialisation | str, operations_per_chunk: int
) -> Iterator[bytes]:
    """Cut operations into chunks of `operations_per_chunk` each; the last one may have fewer.

    Raises:
        UsageError: an operation cannot be written; it is named.
    """
    return _encoded(operations, find(serialisation), operations_per_chunk)


def _encoded(operations: Iterable[Any], serialisation: Serialisation, count: int) -> Iterator[bytes]:
    rest = converted("operations", operations, iter, "an iterable of operations")
    first = 1
    while some := list(islice(rest, count)):
        try:
            chunk = serialisation.encode(some)
        except UsageError as error:
            raise UsageError(
                f"Of the operations from number {first} on, one cannot be sent: {error.message}", hint=error.hint
            ) from error
        yield chunk
        first += len(some)
