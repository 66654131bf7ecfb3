"""The header Range as far as it is served: one range of bytes of something whose size is known.

It must not know what that is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from opsq.units import counted

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


class ByteRange(NamedTuple):
    """The bytes `[low, high)` of `size_bytes`."""

    low: int
    high: int
    size_bytes: int

    @property
    def headers(self) -> dict[str, str]:
        """Those that a part of the whole is sent with."""
        return {
            "Content-Range": f"bytes {self.low}-{self.high - 1}/{self.size_bytes}",
            "Content-Length": str(self.high - self.low),
        }


def wanted_range(headers: Headers, etag: str) -> tuple[str, str] | None:
    """The first and last byte that are asked for, as text; None: everything is.

    So it is, too, if several ranges are asked for, or what the client has of it is of another version.
    """
    found = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if found is None or not any(found.groups()) or headers.get("if-range", etag) != etag:
        return None
    return found[1], found[2]


def satisfied(wanted: tuple[str, str], size_bytes: int) -> ByteRange:
    """The range of so many bytes.

    Raises:
        HTTPException: there are no such bytes.
    """
    first, last = wanted
    if not first:
        low, high = max(size_bytes - int(last), 0), size_bytes
    else:
        low, high = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
    if low >= high:
        raise HTTPException(416, f"It has {counted(size_bytes, 'byte')}.", {"Content-Range": f"bytes */{size_bytes}"})
    return ByteRange(low, high, size_bytes)
