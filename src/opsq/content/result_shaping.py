"""Changes results on their way into one output: keeps one header, ends each result with a line end.

It must not write, and knows nothing about chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opsq.content.content_store import Store
from opsq.content.csv_records import CsvDialect, CsvScanner
from opsq.content.record_boundaries import LINE_END
from opsq.content.result_joiner import Result, part_of, size_of

_READ_BYTES = 1 << 16


class ResultShaping:
    """What is done to the results of one output, which must pass through in order.

    Args:
        header_once: how the results are written as CSV: the first record of the first result that has one is the
            header, and a result that begins with the same loses it; one that begins with anything else stays whole.
            None: results have no header.
        ends_lines: a result that does not end with a line end gets one; an empty result stays empty.
    """

    def __init__(self, *, header_once: CsvDialect | None = None, ends_lines: bool = False) -> None:
        self._dialect = header_once
        self._ends_lines = ends_lines
        self._header = b""

    def apply(self, results: Iterable[Result], store: Store, folder: str) -> Iterator[Result]:
        """Yield what is to be written.

        Args:
            results: in the order to write.
            store: has the large ones, in `folder`.

        Raises:
            ContentMissing: a result is missing.
        """
        for result in results:
            if self._dialect is not None:
                result = self._without_header(result, store, folder, self._dialect)  # noqa: PLW2901
            yield result
            if self._ends_lines:
                size = size_of(result)
                if size and _piece(result, size - 1, 1, store, folder) != LINE_END:
                    yield LINE_END

    def _without_header(self, result: Result, store: Store, folder: str, dialect: CsvDialect) -> Result:
        if not self._header:
            self._header = _first_record(result, store, folder, dialect)
            return result
        length = len(self._header)
        start = _piece(result, 0, length + len(b"\r\n"), store, folder)
        for end in (LINE_END, b"\r\n"):
            if start.startswith(self._header + end):
                return part_of(result, length + len(end), size_of(result))
        return b"" if start == self._header else result


def _first_record(result: Result, store: Store, folder: str, dialect: CsvDialect) -> bytes:
    """The first record of a result, without its line end; all of the result if it has no line end."""
    scanner, buffer, size = CsvScanner(dialect), bytearray(), size_of(result)
    while len(buffer) < size:
        low = len(buffer)
        buffer += _piece(result, low, _READ_BYTES, store, folder)
        end = scanner.first(buffer, low, len(buffer))
        if end >= 0:
            del buffer[end:]
            break
    return bytes(buffer).rstrip(b"\r\n")


def _piece(result: Result, low: int, size: int, store: Store, folder: str) -> bytes:
    """At most `size` bytes of a result from `low` on."""
    size = min(size, size_of(result) - low)
    if isinstance(result, tuple | list):
        name, offset, _ = result
        return bytes(store.read_range(f"{folder}/{name}", offset + low, size)) if size else b""
    return bytes(result[low : low + size])
