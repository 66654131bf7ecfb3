"""A title is one line of text, and no longer than it may be in a message."""

from __future__ import annotations

import msgspec
import pytest

from opsq.errors import UsageError
from opsq.titles import TITLE_LIMIT_BYTES, check_title
from opsq.wire.messages import NewSubmission


@pytest.mark.parametrize(
    "title", ["", "Nightly import", "Übertragung — 夜間", "می‌خواهم", "👩‍🔬", "x" * TITLE_LIMIT_BYTES]
)
def test_line_of_any_script_is_a_title_and_fits_a_message(title: str) -> None:
    assert check_title(title) == title
    sent = msgspec.msgpack.encode(NewSubmission(bytes(16), 0, title=title))
    assert msgspec.msgpack.decode(sent, type=NewSubmission).title == title


@pytest.mark.parametrize(
    "title", ["a\tb", "a\nb", "a\rb", "\x1b[2J", "\x7f", "\x9b2J", "a\u2028b", "\u202eb", "\u2066", "\udcff"]
)
def test_what_a_terminal_would_act_upon_is_refused_by_name(title: str) -> None:
    with pytest.raises(UsageError, match="cannot have the character") as refused:
        check_title(title)
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("title", ["x" * 257, "é" * 129])
def test_length_is_counted_in_bytes(title: str) -> None:
    with pytest.raises(UsageError, match=r"25[78] bytes; the limit is 256"):
        check_title(title)
