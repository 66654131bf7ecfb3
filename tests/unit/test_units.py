"""Durations and sizes as people write them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.units import format_address, format_duration, format_size, parse_duration, parse_size, split_address


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0", 0), ("250ms", 0.25), ("1h30m", 5400)],
)
def test_duration_in_any_unit_becomes_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-3s",
        "1:30",
        "ten",
        "1.2.3",
        "nan",
        "inf",
        "１s",
        "5 parsecs",
        "40000000000",
        "9" * 400,
        "9" * 400 + "d",
    ],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("500", 500),
        ("64K", 65536),
        ("1M", 1 << 20),
        ("2G", 2 << 30),
        ("1kB", 1000),
        ("20MB", 20_000_000),
        ("1.5K", 1536),
        ("100k", 102_400),
        ("16MiB", 16 << 20),
    ],
)
def test_size_in_any_unit_becomes_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1KB", "1mb", "0.3", "1e6", "9999999T"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_printed_size_is_read_back(size_bytes: int) -> None:
    """`parse_size` is the inverse of `format_size`."""
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.floats(0, 1e9, allow_subnormal=False))
def test_printed_duration_is_read_back(seconds: float) -> None:
    """`parse_duration` is the inverse of `format_duration`, to a nanosecond."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(("host", "text"), [("::1", "[::1]:7411"), ("127.0.0.1", "127.0.0.1:7411")])
def test_printed_address_is_read_back(host: str, text: str) -> None:
    """An IPv6 address has brackets."""
    assert format_address(host, 7411) == text
    assert split_address(text) == (host, 7411)


def test_plain_duration_does_not_load_the_library() -> None:
    """The hot verbs read durations, so the library for compound ones is loaded only when needed."""
    code = "import sys, opsq.units as u; u.parse_duration('10m'); sys.exit('pytimeparse2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
