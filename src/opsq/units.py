"""Durations, sizes, rates, addresses and signals as people write them: `90`, `1.5s`, `10m`, `1d`.

`64K`, `1M`, `20MB`; `5/15m`; `[::1]:7411`.

This file must stay cheap to import, because every process imports it at start: the library that parses compound
durations is loaded only when needed.
"""

from __future__ import annotations

import time

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_BYTES = {
    "": 1,
    "B": 1,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def parse_duration(text: str) -> float:
    """Parse a duration, into seconds.

    Args:
        text: a number with one of the units ms, s, m, h, d (none: seconds), or several such pairs as in `1h30m`.

    Raises:
        ValueError: `text` is not a duration, is negative, or is longer than 10⁹ seconds.
    """
    number, unit = _split(text)
    if number is not None and unit in _SECONDS:
        seconds = min(number, 10**13) * _SECONDS[unit]  # a whole number of any length is no float
    else:
        seconds = _compound(text)
    if seconds > 1e9:
        raise ValueError(f"{text!r} is longer than the longest duration (1000000000 s, about 31 years)")
    return seconds


def parse_count(text: str) -> int | None:
    """Parse a count, an index or a cursor; None: the text is none, or it has more digits than any has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def parse_size(text: str) -> int:
    """Parse a size, into bytes: `K M G T`, also small or as `KiB`, are powers of 1024, `kB MB GB TB` of 1000.

    Without a unit, bytes.

    Raises:
        ValueError: `text` is not a size, is negative, or is not a whole number of bytes.
    """
    number, unit = _split(text)
    if number is None or unit not in _BYTES:
        raise ValueError(
            f"{text!r} is not a size; write it like 500, 64K, 1M (powers of 1024) or 20MB (powers of 1000)"
        )
    size_bytes = number * _BYTES[unit]
    if size_bytes != int(size_bytes) or size_bytes >= 1 << 63:
        raise ValueError(f"{text!r} is not a whole number of bytes below 2**63")
    return int(size_bytes)


def split_address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT` into host and port.

    Raises:
        ValueError: `text` is not such an address.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write it like 127.0.0.1:7411 or [::1]:7411")
    return host, int(port)


_NEXT_ADDRESS = r",\s*(?=$|,|\.{0,2}/|(?:unix|tcp|tls):|[^/,]+:[0-9]+\s*(?:$|,))"


def split_addresses(text: str) -> list[str]:
    """Split addresses with commas between them; a comma in a path, before what is no address, is a part of it."""
    if "," not in text:
        return [text.strip()]
    import re  # hot verbs do without it

    return [part.strip() for part in re.split(_NEXT_ADDRESS, text)]


def format_address(host: str, port: int) -> str:
    """Format an address; `split_address` reads it back."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that keeps it exact; `parse_duration` reads it back."""
    for unit in ("d", "h", "m"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.15g}s" if seconds >= 1e-4 or seconds == 0 else f"{seconds:.9f}s"


def format_span(seconds: float) -> str:
    """Format a duration roughly, for people: its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f}s" if 0 < seconds < 10 and round(seconds, 1) % 1 else f"{seconds:.0f}s"
    found: list[str] = []
    rest = round(seconds)
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_SECONDS[unit]))
        if count or found:
            found.append(f"{count}{unit}" if count else "")
        if len(found) == 2:
            break
    return " ".join(filter(None, found))


def format_instant(wall_ms: int) -> str:
    """An instant, given in milliseconds since 1970, in RFC 3339, UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_ms // 1000)) + f".{wall_ms % 1000:03}Z"


def format_rate(rate_per_s: float, span_s: float = 1.0, digits: int = 6) -> str:
    """Format a rate per the span it was given for; else per second, minute or hour, the first that gives at least 1."""
    if span_s != 1:
        span = format_duration(span_s)
        return f"{rate_per_s * span_s:.6g}/{span.removeprefix('1') if span in {'1m', '1h', '1d'} else span}"
    for unit, seconds in (("s", 1), ("m", 60)):
        if rate_per_s * seconds >= 1:
            return f"{_rounded(rate_per_s * seconds, digits)}/{unit}"
    return f"{_rounded(rate_per_s * 3600, digits)}/h"


def _rounded(number: float, digits: int) -> str:
    return f"{float(f'{number:.{digits}g}'):.6g}"


def format_size(size_bytes: int) -> str:
    """Format a size in the largest power of 1024 that keeps it exact; `parse_size` reads it back."""
    for unit in ("T", "G", "M", "K"):
        if size_bytes and size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return str(size_bytes)


def format_roughly(size_bytes: int) -> str:
    """Format a size for people: one decimal, in powers of 1024."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.1f} {unit}"
    return counted(size_bytes, "byte")


def counted(number: object, noun: str) -> str:
    """A number of things, in words: `1 chunk`, `2 chunks`, `0 deliveries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def format_number(number: float) -> str:
    """A number as people write it, without an exponent: `0.5`, `1000000`."""
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def signal_name(number: int) -> str:
    """Name a signal: `SIGKILL` for 9; a number without a name of its own stays a number."""
    import signal  # not for the verbs that only count something

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _split(text: str) -> tuple[float | int | None, str]:
    """Split `text` into its leading number (None if there is none) and the rest."""
    digits = 0
    while digits < len(text) and text[digits] in "0123456789.":
        digits += 1
    number = text[:digits]
    try:
        return (int(number) if "." not in number else float(number)), text[digits:].strip(" ")
    except ValueError:
        return None, text


def _compound(text: str) -> float:
    import pytimeparse2

    seconds = pytimeparse2.parse(text) if text.isascii() and ":" not in text else None
    if seconds is None or seconds < 0:
        raise ValueError(f"{text!r} is not a duration; write it like 90, 1.5s, 10m, 2h, 1d or 1h30m")
    return float(seconds)
