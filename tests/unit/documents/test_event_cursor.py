"""Cursors as text: what is written is read again, older ones too, and nothing else is."""

from __future__ import annotations

import pytest

from opsq.documents.event_cursor import EventCursor


@pytest.mark.parametrize("text", ["0", "120", "120@1800000000000", "120@-5"])
def test_cursor_that_is_written_is_read_again(text: str) -> None:
    assert str(EventCursor.parse(text)) == text


def test_number_alone_is_of_no_known_instant() -> None:
    assert EventCursor.parse("120") == (120, None)


@pytest.mark.parametrize("text", ["", "-1", "x", "1@", "@1", "1@x", "1 @2", "1" * 19, "1@" + "2" * 19, "٣"])
def test_text_that_is_no_cursor_is_none(text: str) -> None:
    assert EventCursor.parse(text) is None
