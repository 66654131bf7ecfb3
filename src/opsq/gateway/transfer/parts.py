"""The parts of a `multipart/form-data` body, one after the other, while it comes in.

It must not keep a part, nor know what becomes of it.
"""

from __future__ import annotations

import io
import logging
from collections import deque
from collections.abc import Iterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from opsq.errors import UsageError

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what it warns of, the client is told
PARTS_LIMIT_COUNT = 10_000
_READ_BYTES = 1 << 18


class Part(io.RawIOBase):
    """A part that is coming in; to be read before the next one.

    Attributes:
        name: of the field.
        filename: None: it is not a file.
    """

    def __init__(self, parts: Parts, name: str, filename: str | None) -> None:
        super().__init__()
        self.name = name
        self.filename = filename
        self._parts = parts
        self._held: deque[memoryview] = deque()
        self.is_ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def add(self, piece: memoryview) -> None:
        """Bytes of it that came."""
        self._held.append(piece)

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # all that is read into is one
        """Fill a part of `buffer`; returns 0 at the end."""
        while not self._held and not self.is_ended:
            self._parts.read_on()
        if not self._held:
            return 0
        piece = self._held.popleft()
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if count < len(piece):
            self._held.appendleft(piece[count:])
        return count


class Parts:
    """Iterates over the parts of a body.

    Args:
        body: what comes in.
        content_type: of it, with the boundary.

    Raises:
        UsageError: it is no such body, also while it is read.
    """

    def __init__(self, body: io.RawIOBase, content_type: str) -> None:
        self._body = body
        self._begun: deque[Part] = deque()
        self._count = 0
        self._is_whole = False
        self._field, self._value = b"", b""
        self._disposition = b""
        _, parameters = parse_options_header(content_type)
        try:
            self._parser = MultipartParser(
                parameters.get(b"boundary", b""),
                {
                    "on_part_begin": self._on_begin,
                    "on_header_field": self._on_field,
                    "on_header_value": self._on_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise UsageError(f"The body has no parts: {error}.") from error
        if not parameters.get(b"boundary"):
            raise UsageError("The body has no parts: Content-Type names no boundary.")

    def __iter__(self) -> Iterator[Part]:
        """The parts; each is to be read to its end."""
        while True:
            while not self._begun:
                if self._is_whole:
                    return
                self.read_on()
            part = self._begun[0]
            yield part
            while part.read(_READ_BYTES):
                pass
            self._begun.popleft()

    def read_on(self) -> None:
        """Read a piece of the body, which adds to the part that comes in, or begins others."""
        piece = self._body.read(_READ_BYTES)
        if not piece:
            raise UsageError("The body ends before its last part does.")
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise UsageError(f"The parts of the body cannot be told apart: {error}.") from error

    # --- what the parser says -----------------------------------------------------------------------------------------

    def _on_begin(self) -> None:
        self._count += 1
        if self._count > PARTS_LIMIT_COUNT:
            raise UsageError(f"A body may have {PARTS_LIMIT_COUNT} parts.")
        self._disposition = b""

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field, self._value = b"", b""

    def _on_headers_finished(self) -> None:
        _, parameters = parse_options_header(self._disposition)
        name, filename = parameters.get(b"name", b""), parameters.get(b"filename")
        shown = None if filename is None else filename.decode(errors="surrogateescape").replace("\0", "")
        self._begun.append(Part(self, name.decode(errors="replace"), shown))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._begun[-1].add(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        self._begun[-1].is_ended = True

    def _on_end(self) -> None:
        self._is_whole = True
