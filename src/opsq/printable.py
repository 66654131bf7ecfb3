"""Text of others made safe to show: every control character escaped, for logs, terminals and lines of output.

This file must not cut or colour text; what programs print to a terminal is cleaned by `documents.readable`.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""The text with each character that does not print as Python would escape it: `\x1b`, `\n`, `\u202e`.

    Marks that turn the direction of text count as such. Lone surrogates, which stand for bytes of file names that are
    not UTF-8, are shown as those bytes: `\xff`.

    Args:
        keep: characters that stay as they are, such as the tab between fields.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
