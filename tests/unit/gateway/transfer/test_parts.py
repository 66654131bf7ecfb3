"""Bodies with parts that are none, or never end."""

import io

import pytest

from opsq.errors import UsageError
from opsq.gateway.transfer.parts import Parts

READS_LIMIT_COUNT = 4


class Endless(io.RawIOBase):
    """A body that repeats something behind its beginning, as long as somebody reads it."""

    def __init__(self, beginning: bytes, repeated: bytes) -> None:
        super().__init__()
        self._next, self._repeated = beginning, repeated
        self.reads_count = 0

    def read(self, size: int = -1, /) -> bytes:
        """The next piece."""
        self.reads_count += 1
        assert self.reads_count <= READS_LIMIT_COUNT, "it is read on and on"
        piece, self._next = self._next, self._repeated * (size // len(self._repeated))
        return piece


@pytest.mark.parametrize(
    ("beginning", "repeated"),
    [(b"", b"x"), (b"X: ", b"x"), (b"Content-Disposition: ", b"x"), (b"", b"X: y\r\n")],
    ids=["name", "value", "disposition", "headers"],
)
def test_headers_of_a_part_without_end_are_not_read_on(beginning: bytes, repeated: bytes) -> None:
    body = Endless(b"--x\r\n" + beginning, repeated)
    with pytest.raises(UsageError, match="cannot be told apart"):
        next(iter(Parts(body, "multipart/form-data; boundary=x")))
