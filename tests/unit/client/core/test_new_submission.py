"""What a producer says becomes a valid frame, or a clear complaint before anything is written or sent."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from opsq.client.core.new_submission import check_count, made_before, new_submission
from opsq.errors import UsageError
from opsq.wire.messages import Backoff, Created, NewSubmission

KEY = bytes(16)


def test_all_options_reach_the_frame() -> None:
    new = new_submission(
        KEY,
        b"content",
        3,
        metadata={"tenant": "x", "n": -4},
        attachment=b"\0",
        priority=-2,
        max_attempts=7,
        max_lost=8,
        backoff=(2.0, 3.0, 4.0),
        on_dead="keep",
        delay_s=1.5,
        expires_at=dt.datetime(2027, 1, 1, tzinfo=dt.UTC),
        unique_key="once",
        reservation_s=9.0,
    )
    assert new == NewSubmission(
        KEY,
        3,
        b"content",
        {"tenant": "x", "n": -4},
        b"\0",
        -2,
        7,
        8,
        Backoff(2.0, 3.0, 4.0),
        True,
        1.5,
        None,
        None,
        1798761600000,
        "once",
        9.0,
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"priority": 1 << 63}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"metadata": {"not a key": 1}}, "metadata"),
        ({"metadata": {"key": 1.5}}, "metadata"),
        ({"metadata": {"key": 1 << 64}}, "metadata|int"),
        ({"metadata": {"key": "x" * 1025}}, "metadata"),
        ({"backoff": (1.0, 0.5, 2.0)}, "backoff"),
        ({"delay_s": -1}, "delay_s"),
        ({"delay_s": 1, "not_before_at": 5}, "delay_s and not_before_at cannot be combined"),
        ({"expires_s": 1, "expires_at": 5}, "expires_s and expires_at cannot be combined"),
        ({"on_dead": "ignore"}, "'ignore'"),
        ({"on_dead": None}, "on_dead is None"),
        ({"unique_until": None}, "unique_until is None"),
        ({"priority": None}, "priority"),
        ({"not_before_at": dt.datetime(2027, 1, 1)}, "time zone"),  # noqa: DTZ001  # that is the mistake
        ({"unique_key": ""}, "unique_key"),
        ({"reservation_s": 0.0}, "reservation_s"),
        ({"reservation_s": 0.09}, "reservation_s"),
        ({"attachment": "text"}, "attachment"),
    ],
)
def test_an_impossible_option_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        new_submission(KEY, b"", 0, **options)


@pytest.mark.parametrize("name", ["not_before_at", "expires_at"])
def test_moment_that_the_clocks_leave_out_is_refused_with_both_that_may_be_meant(name: str) -> None:
    """One that comes twice is what its `fold` says."""
    berlin = ZoneInfo("Europe/Berlin")
    for fold in (0, 1):
        left_out: Any = {name: dt.datetime(2026, 3, 29, 2, 30, fold=fold, tzinfo=berlin)}
        with pytest.raises(UsageError, match="leave this time out") as raised:
            new_submission(KEY, b"", 0, **left_out)
        assert raised.value.hint == "Use 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00."
        twice: Any = {name: dt.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=berlin)}
        assert getattr(new_submission(KEY, b"", 0, **twice), name) == 1_792_888_200_000 + fold * 3_600_000


def test_too_many_submissions_for_a_frame_are_refused() -> None:
    with pytest.raises(UsageError, match="10001"):
        check_count([new_submission(KEY, b"", 0)] * 10_001)


def test_submission_may_have_been_made_by_another_call_only_if_it_has_a_key() -> None:
    keys = [bytes([number]) * 16 for number in range(3)]
    news = [new_submission(key, key, 1, unique_key="once" if number else None) for number, key in enumerate(keys)]
    assert made_before(news, [Created(1, False), Created(2, False), Created(3, True)]) == [news[1]]
