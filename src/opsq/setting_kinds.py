"""What values of settings may look like: each kind reads what a flag, a variable or a file gives, or raises `ValueError`.

Must not know any setting, and stays cheap to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from opsq.units import parse_duration, parse_size, split_address


def path(given: object) -> str:
    """An absolute path; a relative one starts from the working folder, `~` from home."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise ValueError(f"{given!r} is not a path")
    return os.path.abspath(os.path.expanduser(given))


def text(given: object) -> str:
    """Any text."""
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is not a text")
    return given


def store(given: object) -> str:
    """A store as URL; a plain path becomes one, so that every side reads it alike."""
    url = text(given)
    return url if "://" in url else "file://" + path(url).replace("%", "%25")


def address(given: object) -> str:
    """HOST:PORT, or nothing."""
    found = text(given)
    if found:
        split_address(found)
    return found


def mode(given: object) -> int:
    """A file mode: text is octal, as with chmod; a TOML number counts as it is (0o660)."""
    found = given if isinstance(given, int) else -1
    if isinstance(given, str) and given and not set(given.removeprefix("0o")) - set("01234567"):
        found = int(given, 8)
    if not 0 <= found <= 0o777 or isinstance(given, bool):
        raise ValueError(f"{given!r} is not a file mode; write it like 0660")
    return found


def boolean(given: object) -> bool:
    """True or false, in TOML or in words."""
    if isinstance(given, bool):
        return given
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(given, str) and given.lower() in words:
        return words[given.lower()]
    raise ValueError(f"{given!r} is neither true nor false")


def choice(*choices: str) -> Callable[[object], str]:
    """One of these words."""

    def read(given: object) -> str:
        if given not in choices:
            raise ValueError(f"{given!r} is none of {', '.join(choices)}")
        return str(given)

    return read


def number(
    parse: Callable[[str], float], low: float, high: float, *, unit: str = "", is_whole: bool = False
) -> Callable[[object], Any]:
    """Read a number between `low` and `high`: text by `parse`, a TOML number as it is."""

    def read(given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError(f"{given!r} is not a number")
        found = parse(given) if isinstance(given, str) else given
        if is_whole and found % 1:
            raise ValueError(f"{given!r} is not a whole number")
        if not low <= found <= high:
            raise ValueError(f"{given!r} is not between {low:g} and {high:g}{unit}")
        return int(found) if is_whole else float(found)

    return read


def real(text: str) -> float:
    """A number from text."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def count(low: int, high: int) -> Callable[[object], Any]:
    """A whole number."""
    return number(real, low, high, is_whole=True)


def duration(low: float, high: float = 1e9) -> Callable[[object], Any]:
    """A duration in seconds."""
    return number(parse_duration, low, high, unit=" seconds")


def size(low: int, high: int) -> Callable[[object], Any]:
    """A size in bytes."""
    return number(parse_size, low, high, unit=" bytes", is_whole=True)


def write_boolean(value: bool) -> str:
    """A truth as one writes it in TOML."""
    return "true" if value else "false"


def write_mode(value: int) -> str:
    """A file mode as one writes it for chmod."""
    return f"0{value:o}"
