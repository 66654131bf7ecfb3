r"""Finds where CSV records end: at a line end outside quotes, by the rules that Python's `csv` module reads with.

This file must not read or write anything, and knows nothing about chunks. A quote counts only where a field begins;
inside quotes a doubled quote stands for one; what follows a closing quote up to the next delimiter is plain text. A
record ends with `\n`, alone or behind `\r`.
"""

from __future__ import annotations

import re
from itertools import accumulate, islice

import msgspec

from opsq.content.record_boundaries import LINE_END, Scanner, ends_in
from opsq.errors import UsageError

_WINDOW_BYTES = 1 << 16
_BYTE_ORDER_MARK = rb"\xef\xbb\xbf"


class CsvDialect(msgspec.Struct, frozen=True):
    r"""How fields are delimited and quoted.

    Args:
        delimiter: one byte between fields.
        quote: one byte around a field that holds delimiters, line ends or quotes; empty: there are no quotes.
        escape: one byte that takes the meaning of the byte behind it, such as a backslash; empty: there is none.

    Raises:
        UsageError: one is longer than a byte, is a line end, or is used twice.
    """

    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""

    def __post_init__(self) -> None:
        given = [each for each in (self.delimiter, self.quote, self.escape) if each]
        if not self.delimiter or max(map(len, given)) > 1:
            raise UsageError("The delimiter, the quote and the escape of CSV are one byte each.")
        if len({*given, b"\n", b"\r"}) < len(given) + 2:
            raise UsageError("CSV needs a delimiter, a quote and an escape that differ, and none of them a line end.")


class CsvScanner(Scanner):
    """Finds the ends of CSV records."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._context = LINE_END
        """A short text that leads to where the last call stopped: the line end, delimiter or quote that counts there,
        and nothing in the midst of a field."""
        self._lines_count = 0
        """Line ends before that place."""
        self._opened_line = 0
        self._dialect = dialect
        self._opaque, self._stretch, self._passed = _patterns(dialect)
        self._start = re.compile(rb"(?:\n(?:\xef(?:\xbb\xbf?)?)?|%b)\Z" % re.escape(dialect.delimiter))

    @property
    def open_line(self) -> int:
        """The line, from 1, of a quote that opened and has not closed yet; 0 if there is none."""
        quote = self._dialect.quote
        is_open = quote and self._context[1:2] == quote != self._context[2:3]
        return self._opened_line if is_open else 0

    def first(self, buffer: bytearray, low: int, high: int) -> int:
        while low < high:
            stop = min(low + _WINDOW_BYTES, high)
            lines_count = self._lines_count
            found = self.all(buffer, low, stop)
            if found:
                self._context = LINE_END
                self._lines_count = lines_count + buffer.count(LINE_END, low, found[0])
                return found[0]
            low = stop
        return -1

    def last(self, buffer: bytearray, low: int, high: int) -> int:
        windows: list[tuple[int, bytes]] = []
        while low < high:
            windows.append((low, self._context))
            self._pass(self._text(buffer, low, min(low + _WINDOW_BYTES, high)))
            low += _WINDOW_BYTES
        for start, context in reversed(windows):
            stop = min(start + _WINDOW_BYTES, high)
            if buffer.find(LINE_END, start, stop) >= 0:
                text = context + bytes(memoryview(buffer)[start:stop])
                if found := self._ends(text, start - len(context), start):
                    return found[-1]
        return -1

    def all(self, buffer: bytearray, low: int, high: int) -> list[int]:
        text = self._text(buffer, low, high)
        ends = self._ends(text, low - len(self._context), low)
        self._pass(text)
        return ends

    def _text(self, buffer: bytearray, low: int, high: int) -> bytes:
        return self._context + bytes(memoryview(buffer)[low:high])

    def _ends(self, text: bytes, position: int, low: int) -> list[int]:
        """The record ends above `low` in a text that begins at `position` with a context."""
        ends: list[int] = []
        pieces = self._opaque.split(text)
        starts = accumulate(map(len, pieces), initial=position)
        for piece, start in zip(pieces[::2], islice(starts, 0, None, 2), strict=False):
            found = piece.find(LINE_END) + 1
            if found == 0:
                continue
            if piece.find(LINE_END, found) < 0:  # the common case
                ends.append(start + found)
            else:
                ends += ends_in(piece, LINE_END, start)
        return ends[1:] if ends and ends[0] <= low else ends  # that one is the line end of the context

    def _pass(self, text: bytes) -> None:
        """Move to the end of a text that begins with the context."""
        context, quote, escape = self._context, self._dialect.quote, self._dialect.escape
        opaque = self._opaque.search(text, self._passed.match(text).end())  # type: ignore[union-attr]
        if opaque is None or opaque.end() < len(text):
            start = self._start.search(text, max(len(text) - 4, 0))
            self._context = start[0] if start else b""
        elif stretch := self._stretch.fullmatch(opaque[0]):
            if opaque.start() >= len(context):
                self._opened_line = self._lines_count + text.count(LINE_END, len(context), opaque.start()) + 1
            if not stretch["close"]:
                self._context = LINE_END + quote + stretch["rest"]
            else:  # closed, unless that was the first half of a doubled quote
                self._context = b"" if stretch["rest"] else LINE_END + 2 * quote
        else:
            is_pending = len(opaque[0]) % 2 == 1 and opaque[0].endswith(escape)
            self._context = escape if is_pending else b""
        self._lines_count += text.count(LINE_END, len(context))


def _patterns(dialect: CsvDialect) -> tuple[re.Pattern[bytes], ...]:
    """What is more than plain text: opaque stretches, whose line ends do not count, in quotes or escaped.

    Returns:
        One that finds such a stretch, one that takes a quoted one apart, one that passes over as many as there are.
    """
    delimiter, quote, escape = (re.escape(each) for each in (dialect.delimiter, dialect.quote, dialect.escape))
    if not quote + escape:
        return re.compile(b"(?!)()"), re.compile(b"(?!)"), re.compile(b"")
    plain = b"[^%b%b]*+" % (quote, escape)
    pair = b"%b%b|%b." % (quote, quote, escape) if escape else 2 * quote
    inside = b"%b(?:(?:%b)%b)*+" % (plain, pair, plain)
    maybe_escape = escape and escape + b"?"
    escaped = b"(?:%b(?:.|\\Z))++%b" % (escape, quote and quote + b"?")
    opening = rb"%b(?:(?<=[%b\n]%b)|(?<=\n\xef\xbb\xbf%b))" % (quote, delimiter, quote, quote)
    quoted = opening + inside + b"(?:%b%b|%b\\Z)" % (quote, maybe_escape, maybe_escape)
    literal = rb"%b(?<![%b\n]%b)(?<!\n\xef\xbb\xbf%b)" % (quote, delimiter, quote, quote)
    opaque = [*([escaped] if escape else []), *([quoted] if quote else [])]
    # At the end of a text, what comes next may still belong to these.
    pairs = b"(?:%b.)++%b(?!\\Z)" % (escape, quote and quote + b"?+")
    closed = opening + inside + quote + (escape and escape + b"?+") + b"(?!\\Z)"
    passed = [*([pairs] if escape else []), *([closed, literal] if quote else [])]
    return (
        re.compile(b"(%b)" % b"|".join(opaque), re.DOTALL),
        re.compile(
            b"%b%b(?P<close>%b)?(?P<rest>%b)" % (quote, inside, quote, maybe_escape) if quote else b"(?!)", re.DOTALL
        ),
        re.compile(b"(?:%b(?:%b))*+" % (plain, b"|".join(passed)), re.DOTALL),
    )
