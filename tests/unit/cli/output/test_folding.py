"""Sentences on a terminal: broken between words only, commands whole; elsewhere as they are."""

import io

import pytest

from opsq.cli.output.folding import folded


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("fits", ["fits"]),
        ("opsq: twenty letters", ["opsq: twenty letters"]),
        ("opsq: twenty-one words go on", ["opsq: twenty-one", "words go on"]),
        ("see `opsq dead list 123`, or not", ["see", "`opsq dead list 123`,", "or not"]),
        ("a stray ` mark does not keep the rest", ["a stray ` mark does", "not keep the rest"]),
        ("  two  blanks stay where they fit", ["  two  blanks stay", "where they fit"]),
        ("one\nand another line of text", ["one", "and another line of", "text"]),
        ("a/path/that/is/longer/than/a/line is kept", ["a/path/that/is/longer/than/a/line", "is kept"]),
        ("das ist 漢字漢字漢字漢字", ["das ist", "漢字漢字漢字漢字"]),
        ("", [""]),
    ],
)
def test_words_and_commands_stay_whole(text, lines):
    assert folded(text, Terminal()).split("\n") == lines


def test_pipe_gets_the_text_as_it_is():
    assert folded("opsq: twenty-one words go on", io.StringIO()) == "opsq: twenty-one words go on"


def test_terminal_that_does_not_know_its_width_gets_the_text_as_it_is(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    assert folded("opsq: twenty-one words go on", Terminal()) == "opsq: twenty-one words go on"
