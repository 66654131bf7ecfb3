"""Says what about the inputs of a submission may not be meant; nothing is changed, and nothing guessed.

It looks at the beginning and the end of regular files only, and must not fail: errors are for who reads the inputs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opsq.content.input_file import COMPRESSED, STDIN, is_compressed, open_raw, suffix_of
from opsq.content.record_boundaries import LINE_END
from opsq.errors import InputUnreadable

if TYPE_CHECKING:
    from opsq.content.splitter import Splitting

_HEAD_BYTES = 1 << 16
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

_UNENDED = "{} does not end with a line end: its last result may run into the next. --end-lines ends each result."
_WIDE = "{} is UTF-16, it seems, and is cut at bytes, which may be halves of characters: convert it with iconv first."
_NULS = "{} has NUL bytes in its first {} bytes: is it text? -0 cuts at NUL bytes, --per-file does not cut."
_CRLF = "Lines of {} end with CRLF, and keep the carriage return: --crlf strip leaves it out."
_UNNAMED = "{} begins as {} files do, but is not named so: it is taken as it is."
_MISNAMED = "{} is not what its name says: it is taken as it is."


def input_remarks(paths: Sequence[str], splitting: Splitting) -> list[str]:
    """What is odd about inputs that will be cut by a rule: a sentence per kind, with the first file and their number.

    Cost: opens each regular file once and reads at most 64 KiB of it; nothing if files are not cut.
    """
    found: dict[str, list[str]] = {}
    if splitting.by != "file":
        for at, path in enumerate(paths, 1):
            for remark in _look(path, splitting, is_last=at == len(paths)):
                found.setdefault(remark, []).append(path)
    return [_sentence(remark, named) for remark, named in found.items()]


def _look(path: str, splitting: Splitting, *, is_last: bool) -> list[str]:
    """The remarks on one input, with `{}` for its name."""
    if path == STDIN or not os.path.isfile(path) or (splitting.decompresses and is_compressed(path)):
        return []
    try:
        with open_raw(path) as file:
            head, size = os.pread(file.fileno(), _HEAD_BYTES, 0), os.fstat(file.fileno()).st_size
            end = os.pread(file.fileno(), 1, size - 1) if size else b""
    except (InputUnreadable, OSError):
        return []
    remarks = []
    if splitting.decompresses:
        named = next((each for each, magic in COMPRESSED.items() if head.startswith(magic)), "")
        if named:
            return [_UNNAMED.format("{}", named)]
        if suffix_of(path) in COMPRESSED and head:
            remarks.append(_MISNAMED)
    if head.startswith(_UTF_16):
        return [*remarks, _WIDE]
    if b"\0" in head and b"\0" not in splitting.delimiter:
        return [*remarks, _NULS.format("{}", len(head))]
    keeps_crlf = splitting.delimiter == LINE_END and not (splitting.is_csv or splitting.strips_crlf)
    if keeps_crlf and head.count(b"\r\n") * 2 > head.count(LINE_END):
        remarks.append(_CRLF)
    if end and not is_last and splitting.delimiter == LINE_END != end:
        remarks.append(_UNENDED)
    return remarks


def _sentence(remark: str, paths: list[str]) -> str:
    more = len(paths) - 1
    others = f" (and {more} more)" if more else ""
    return remark.format(f"{paths[0]}{others}")
