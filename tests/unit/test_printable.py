"""Nothing of a peer's text moves a cursor, forges a line or hides what follows."""

from __future__ import annotations

import pytest

from opsq.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé 日本", "plain ünïcödé 日本"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202exyz\u2028", r"abc\u202exyz\u2028"),
        ("bad\udcff.txt", r"bad\xff.txt"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text: str, shown: str):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_kept_characters_stay():
    assert printable("a\tb\n", keep="\t") == "a\tb\\n"
