"""Makes of a function for operations one for chunks: decode, call for each, encode.

This file must not know where it runs or what becomes of the chunk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from opsq.serialisation import Serialisation, find

if TYPE_CHECKING:
    from opsq.client.aio.chunk import AsyncChunk


class EachOperation:
    """A function for chunks that calls another one for each operation; can be sent to a process if its parts can.

    Args:
        f: operation → result.
        serialisation: of the chunks.
        result_serialisation: of the results; None: the same, but for its type.
        keeps_results: False: what `f` returns is dropped, and the chunk's result is empty.
    """

    def __init__(
        self,
        f: Callable[[Any], Any],
        serialisation: Serialisation | str,
        result_serialisation: Serialisation | str | None = None,
        *,
        keeps_results: bool = True,
    ) -> None:
        self._f = f
        self._decode = find(serialisation).decode
        self._encode = find(result_serialisation or serialisation).encode
        self._keeps_results = keeps_results

    def __call__(self, chunk: Any) -> bytes:
        """Work through the operations of a chunk, in order.

        Raises:
            InputUnreadable: the chunk cannot be decoded.
            Exception: what `f` raised, with a note that says for which operation.
        """
        operations = self._decode(chunk.data)
        results: list[Any] = []
        try:
            results.extend(map(self._f, operations))
            if len(results) != len(operations):
                raise RuntimeError("The function raised StopIteration.")  # map takes it for the end
        except Exception as error:
            error.add_note(_place(results, operations))
            raise
        return self._encode(results) if self._keeps_results else b""

    async def awaited(self, chunk: AsyncChunk) -> bytes:
        """As a call, for a function to be awaited: one operation after the other."""
        f: Callable[[Any], Awaitable[Any]] = self._f
        operations = self._decode(await chunk.data())
        results: list[Any] = []
        try:
            for operation in operations:
                results.append(await f(operation))  # noqa: PERF401  # what is there tells where it failed
        except Exception as error:
            error.add_note(_place(results, operations))
            raise
        return self._encode(results) if self._keeps_results else b""


def _place(results: list[Any], operations: list[Any]) -> str:
    return f"operation {len(results) + 1} of {len(operations)}"
