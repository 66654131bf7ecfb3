"""The kinds of values that settings have: each reads what a flag, a variable or a file gives, or raises `ValueError`.

It must not know any setting, and must stay cheap to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from opsq.ids import SHARD_MAX
from opsq.units import (
    format_duration,
    format_number,
    format_size,
    parse_duration,
    parse_size,
    split_address,
    split_addresses,
)


class Kind(msgspec.Struct, frozen=True):
    """How values of a setting are read, and how they are written so that they can be read again.

    Args:
        metavar: what help calls a value; words between bars for a choice, empty for a truth.
    """

    read: Callable[[object], Any]
    write: Callable[[Any], str] = str
    metavar: str = "N"


def _path(given: object) -> str:
    """An absolute path; a relative one starts from the working folder, `~` from home."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise ValueError(f"{given!r} is not a path")
    return os.path.abspath(os.path.expanduser(given))


def _paths(given: object) -> tuple[str, ...]:
    """Absolute paths: a list, or a text with colons between them, as PATH has."""
    if isinstance(given, str):
        given = [path for path in given.split(":") if path]
    if not isinstance(given, list | tuple):
        raise ValueError(f"{given!r} is not a list of paths")
    return tuple(_path(path) for path in given)


def _text(given: object) -> str:
    """Any text."""
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is not a text")
    return given


def _store(given: object) -> str:
    """A store as URL; a plain path becomes one, so that every side reads it alike."""
    url = _text(given)
    return url if "://" in url else "file://" + _path(url).replace("%", "%25")


def _address(given: object) -> str:
    """HOST:PORT, or nothing."""
    found = _text(given)
    if found:
        split_address(found)
    return found


def _daemon_address(given: object) -> str:
    """HOST:PORT, maybe with tls:// in front and files behind, or a path; several with commas, @FILE, or nothing."""
    found = _text(given)
    if not found.startswith("@"):
        for part in split_addresses(found) if found else ():
            plain = part.removeprefix("tcp://")
            if plain.startswith("tls://"):
                split_address(plain.removeprefix("tls://").partition("?")[0])
            elif "/" not in plain:
                split_address(plain)
    return found


def _numbers(given: object) -> frozenset[int]:
    """Numbers and ranges of them with commas between, as in 0-3,7; or nothing."""
    found: set[int] = set()
    for part in str(given).split(",") if given else ():
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ValueError(f"{given!r} is not like 0-3,7")
        if int(last or first) < int(first) or int(last or first) > SHARD_MAX:
            raise ValueError(f"{part.strip()!r} is no range of shards: they have the numbers 0 to {SHARD_MAX}")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _ranges(numbers: frozenset[int]) -> str:
    """Numbers as `_numbers` reads them."""
    return ",".join(map(str, sorted(numbers)))


def _mode(given: object) -> int:
    """A file mode: text is octal, as with chmod; a TOML number counts as it is (0o660)."""
    found = given if isinstance(given, int) else -1
    if isinstance(given, str) and given and not set(given.removeprefix("0o")) - set("01234567"):
        found = int(given, 8)
    if not 0 <= found <= 0o777 or isinstance(given, bool):
        raise ValueError(f"{given!r} is not a file mode; write it like 0660")
    return found


def _boolean(given: object) -> bool:
    """True or false, in TOML or in words."""
    if isinstance(given, bool):
        return given
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(given, str) and given.lower() in words:
        return words[given.lower()]
    raise ValueError(f"{given!r} is neither true nor false")


def choice(*choices: str) -> Kind:
    """One of these words."""

    def read(given: object) -> str:
        if given not in choices:
            raise ValueError(f"{given!r} is not one of {', '.join(choices)}")
        return str(given)

    return Kind(read, metavar="|".join(choices))


def _number(
    parse: Callable[[str], float],
    low: float,
    high: float,
    write: Callable[[Any], str] = format_number,
    *,
    is_whole: bool = False,
) -> Callable[[object], Any]:
    """Read a number between `low` and `high`: text by `parse`, a TOML number as it is."""

    def read(given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError(f"{given!r} is not a number")
        found = parse(given) if isinstance(given, str) else given
        if is_whole and found % 1:
            raise ValueError(f"{given!r} is not a whole number")
        if not low <= found <= high:
            raise ValueError(f"{given!r} is not between {write(low)} and {write(high)}")
        return int(found) if is_whole else float(found)

    return read


def _real(text: str) -> float:
    """A number from text."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def number(low: float, high: float) -> Kind:
    """Any number."""
    return Kind(_number(_real, low, high))


def count(low: int, high: int) -> Kind:
    """A whole number."""
    return Kind(_number(_real, low, high, is_whole=True))


def optional_count(low: int, high: int) -> Kind:
    """A whole number, or none."""
    read = count(low, high).read
    return Kind(lambda given: None if given == "" else read(given), lambda value: "" if value is None else str(value))


def duration(low: float, high: float = 1e9) -> Kind:
    """A duration in seconds."""
    return Kind(_number(parse_duration, low, high, format_duration), format_duration, "D")


def size(low: int, high: int) -> Kind:
    """A size in bytes."""
    return Kind(_number(parse_size, low, high, format_size, is_whole=True), format_size, "SIZE")


PATH = Kind(_path, metavar="FILE")
PATHS = Kind(_paths, ":".join, "DIR[:DIR…]")
OPTIONAL_PATH = Kind(lambda given: given and _path(given), metavar=PATH.metavar)
STORE = Kind(_store, metavar="URL")
OPTIONAL_STORE = Kind(lambda given: given and _store(given), metavar=STORE.metavar)
ADDRESS = Kind(_address, metavar="HOST:PORT")
DAEMON_ADDRESS = Kind(_daemon_address, metavar="[tls://]HOST:PORT")
KEY = Kind(_text, metavar="KEY")
SHARDS = Kind(_numbers, _ranges, "N-M")
MODE = Kind(_mode, "0{:o}".format, "MODE")
BOOLEAN = Kind(_boolean, lambda value: "true" if value else "false", "")
