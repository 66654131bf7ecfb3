"""What a title of a submission may be: a line of text for people, so that it can be shown as it is.

It must not know where titles are kept or shown.
"""

from __future__ import annotations

import re

from opsq.errors import UsageError
from opsq.printable import printable

TITLE_LIMIT_BYTES = 256
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves a cursor, ends a line or turns the direction of text, and what is no character."""


def check_title(title: str) -> str:
    """Give a title back if it can be one.

    Raises:
        UsageError: it is too long, or has a character that is not for one line of text.
    """
    if found := _CONTROL.search(title):
        raise UsageError(cause="title_character", character=printable(found[0]))
    size_bytes = len(title.encode())
    if size_bytes > TITLE_LIMIT_BYTES:
        raise UsageError(cause="long_title", size_bytes=size_bytes, limit_bytes=TITLE_LIMIT_BYTES)
    return title
