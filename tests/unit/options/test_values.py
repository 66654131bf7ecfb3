"""Values of options: what people type is read exactly, or refused with the name of the option."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.documents.submission_text import pairs_text, value_text
from opsq.errors import UsageError
from opsq.options import conditions, values
from opsq.options.option import Option, duration
from opsq.wire.messages import Backoff


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=30))
def test_value_that_is_printed_is_read_back(value: int | str) -> None:
    assert values.value(value_text(value)) == value


def test_numbers_and_texts_are_told_apart() -> None:
    found = [
        values.value(text) for text in ("7", "-7", "007", "+7", '"7"', "9223372036854775808", "7.0", "", "a=b", "-0")
    ]
    assert found == [7, -7, "007", "+7", "7", "9223372036854775808", "7.0", "", "a=b", 0]


def test_metadata_keeps_its_order_and_prints_as_given() -> None:
    pairs = ["tenant=a", "n=5", 's="7"']
    assert pairs_text(values.metadata(pairs)) == " ".join(pairs)


@pytest.mark.parametrize(
    "pairs", [["a"], ["=1"], ["1a=1"], ["a=1", "a=1"], ["submission=1"], ['a="open'], ["a" * 65 + "=1"]]
)
def test_wrong_metadata_is_refused(pairs: list[str]) -> None:
    with pytest.raises(UsageError):
        values.metadata(pairs)


def test_instants_with_and_without_zone() -> None:
    assert values.instant("--at", "2025-01-01T00:00:00Z") == 1735689600000
    assert values.instant("--at", "2025-01-01 02:00+02:00") == 1735689600000
    assert values.instant("--at", "@1735689600.5") == 1735689600500
    assert abs(values.instant("--at", "2025-01-01") - 1735689600000) <= 14 * 3600 * 1000


@pytest.mark.parametrize("text", ["", "tomorrow", "@", "@nan", "@-1", "2025-13-01", "@1e30"])
def test_other_instants_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--at"):
        values.instant("--at", text)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the local zone, by a rule, since a machine may have no table of zones."""

    def choose(rule: str) -> None:
        monkeypatch.setenv("TZ", rule)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
HAVANA = "CST5CDT,M3.2.0/0,M11.1.0/1"
LORD_HOWE = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0"


@pytest.mark.parametrize(
    ("rule", "text", "before", "after"),
    [
        (BERLIN, "2026-03-29T02:30", "2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"),
        (BERLIN, "2026-03-29T02:00", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"),
        (BERLIN, "2026-03-29 02:59:59.5", "2026-03-29T01:59:59.500000+01:00", "2026-03-29T03:59:59.500000+02:00"),
        (HAVANA, "2026-03-08T00:00", "2026-03-07T23:00:00-05:00", "2026-03-08T01:00:00-04:00"),
        (LORD_HOWE, "2026-10-04T02:15", "2026-10-04T01:45:00+10:30", "2026-10-04T02:45:00+11:00"),
    ],
)
def test_time_that_the_clocks_leave_out_is_refused_with_both_that_may_be_meant(
    zone: Callable[[str], None], rule: str, text: str, before: str, after: str
) -> None:
    zone(rule)
    with pytest.raises(UsageError, match=f"^--at {text}: ") as raised:
        values.instant("--at", text)
    assert raised.value.hint == f"Write {before} or {after}."
    step_ms = values.instant("--at", after) - values.instant("--at", before)
    assert step_ms == (1800_000 if rule == LORD_HOWE else 3600_000)


def test_time_that_comes_twice_is_the_first(zone: Callable[[str], None]) -> None:
    zone(BERLIN)
    twice = [values.instant("--at", f"2026-10-25T02:30{offset}") for offset in ("", "+02:00", "+01:00")]
    assert twice == [twice[0], twice[0], twice[0] + 3600_000]


def test_times_beside_a_change_of_clocks_are_taken(zone: Callable[[str], None]) -> None:
    zone(BERLIN)
    found = [values.instant("--at", f"2026-03-29T{at}") for at in ("01:59:59.999", "03:00", "02:30Z", "02:30+01:00")]
    change = values.instant("--at", "2026-03-29T01:00Z")
    assert found == [change - 1, change, change + 90 * 60_000, change + 30 * 60_000]


def test_day_whose_midnight_is_left_out_begins_after_it(zone: Callable[[str], None]) -> None:
    zone(HAVANA)
    assert values.instant("--since", "2026-03-08") == values.instant("--since", "2026-03-08T01:00-04:00")


@pytest.mark.parametrize("option", [conditions.SINCE, conditions.UNTIL])
def test_conditions_read_local_times_alike(zone: Callable[[str], None], option: Option) -> None:
    zone(BERLIN)
    with pytest.raises(UsageError, match="leave this time out"):
        option.read(option.flags[0], "2026-03-29T02:30")
    with pytest.raises(UsageError, match="leave this time out"):
        values.duration_or_instant("--expires", "2026-03-29T02:30")


def test_expiry_is_a_duration_or_an_instant() -> None:
    assert values.duration_or_instant("--expires", "1h") == (3600.0, None)
    assert values.duration_or_instant("--expires", "@5") == (None, 5000)
    assert values.duration_or_instant("--expires", None) == (None, None)


def test_back_off_has_up_to_three_parts() -> None:
    assert values.backoff("--backoff", "2") == Backoff(2.0, 2.0, 300.0)
    assert values.backoff("--backoff", "10m") == Backoff(600.0, 2.0, 600.0)
    assert values.backoff("--backoff", "1s,1.5,1m") == Backoff(1.0, 1.5, 60.0)


@pytest.mark.parametrize("text", ["", "1,0.5", "1,x", "1,2,3,4", "1,nan", "x", "1,2,x"])
def test_other_back_offs_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--backoff"):
        values.backoff("--backoff", text)


def test_delimiters_have_escapes() -> None:
    found = [values.delimiter("--delimiter", text) for text in (r"\n", r"\0", r"\x1e", "--", r"\\", "é")]
    assert found == [b"\n", b"\0", b"\x1e", b"--", b"\\", "é".encode()]
    for text in ("", "\\", r"\x1"):
        with pytest.raises(UsageError, match="--delimiter"):
            values.delimiter("--delimiter", text)


def test_two_options_that_exclude_each_other_are_both_named() -> None:
    values.exclude(per_file=False, lines=None, size=3)
    with pytest.raises(UsageError, match="--per-file and --lines"):
        values.exclude(per_file=True, lines=3)


def test_0_is_a_value_that_other_options_are_excluded_by() -> None:
    for nothing in (0, 0.0):
        with pytest.raises(UsageError, match="--since and --cursor-file"):
            values.exclude(since=nothing, cursor_file="seen")


def test_durations_and_sizes_name_their_option() -> None:
    assert duration("--delay", "1.5s") == 1.5
    assert values.size("--bytes", "1K") == 1024
    assert math.isfinite(values.now_ms())
    with pytest.raises(UsageError, match="--bytes 0"):
        values.size("--bytes", "0")
    with pytest.raises(UsageError, match="--delay: 'x'"):
        duration("--delay", "x")
