"""Operations of a chunk: makes of a function for operations one for chunks.

This file must not know where the function runs or what becomes of the chunk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from opsq.client.core.outcome import Done
from opsq.serialisation import Serialisation, find

Decode = Callable[[bytes], Iterable[Any]]


class AwaitedContent(Protocol):
    """A chunk whose content is awaited."""

    async def data(self) -> bytes:
        """Its bytes."""


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

    def __call__(self, chunk: Any) -> bytes | Done:
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
        return self._result(results)

    async def awaited(self, chunk: AwaitedContent) -> bytes | Done:
        """As a call, for a function to be awaited: one operation after the other."""
        f: Callable[[Any], Awaitable[Any]] = self._f
        operations = self._decode(await chunk.data())
        results: list[Any] = []
        try:
            for operation in operations:
                results.append(await f(operation))  # noqa: PERF401  # their count says where it failed
        except Exception as error:
            error.add_note(_place(results, operations))
            raise
        return self._result(results)

    def _result(self, results: list[Any]) -> bytes | Done:
        """The result of the chunk, with the follow-ups of all operations."""
        then: list[Any] = []
        if Done in set(map(type, results)):
            for number, result in enumerate(results):
                if isinstance(result, Done):
                    then += result.then
                    results[number] = result.result
        encoded = self._encode(results) if self._keeps_results else b""
        return Done(encoded, then) if then else encoded


def _place(results: list[Any], operations: list[Any]) -> str:
    return f"operation {len(results) + 1} of {len(operations)}"


def formats(
    serialisation: Serialisation | str | None, result_serialisation: Serialisation | str | None
) -> tuple[Serialisation | None, Decode | None]:
    """What encodes operations and decodes results; None for chunks and results as they are."""
    operations = None if serialisation is None else find(serialisation)
    results = operations if result_serialisation is None else find(result_serialisation)
    return operations, None if results is None else results.decode
