"""Follow-ups as lines of JSON: every field, and what is wrong with a line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest

from opsq.client.core import follow_up_lines
from opsq.client.core.follow_up_lines import FollowUpLine, FollowUpShape, follow_ups_of
from opsq.client.core.new_submission import SubmitOptions
from opsq.errors import UsageError

PAGE = Path(__file__).parents[4] / "man/opsq-complete.1"


def test_fields_are_the_options_of_submit():
    """So that a new option of the one is not forgotten in the other; `ack` is for a call that returns."""
    assert set(FollowUpShape.__struct_fields__) - {"chunks"} == set(SubmitOptions.__annotations__) - {"ack"}


def test_manual_names_every_field():
    described = PAGE.read_text().split(".SH FOLLOW", 1)[1].split(".SH EXIT STATUS", 1)[0]
    assert set(FollowUpLine.__struct_fields__) <= set(re.findall(r"\w+", described))


def test_every_field_can_be_given():
    line = {
        "chunks": ["a", {"base64": "/w=="}],
        "metadata": {"a": 1, "b": "c"},
        "title": "title",
        "priority": -1,
        "attachment": {"base64": "/w=="},
        "max_attempts": 2,
        "max_lost": 3,
        "on_dead": "keep",
        "backoff": {"base_s": 1, "factor": 2, "max_s": 3},
        "weights": {"a": 2},
        "delay_s": 1.5,
        "expires_at": "2030-01-01T00:00:00+01:00",
        "reservation_s": 5,
        "unique_key": "u",
        "unique_until": "start",
        "idempotency_key": "i",
        "idempotency_keep_s": 60,
        "after": [{"submission_id": "7", "needs": "ended"}, {"key": "batch", "value": 7}],
        "on_failed_dependency": "run",
    }
    others = {"file": "f", "lines": 3, "not_before_at": "2030-01-01T00:00:00Z", "expires_s": 1}
    assert {*line, *others, "bytes"} == set(FollowUpLine.__struct_fields__)
    file = io.BytesIO(msgspec.json.encode(line) + b"\n\n" + msgspec.json.encode(others))
    assert len(list(follow_ups_of(file, "then"))) == 2


def test_lines_are_read_as_they_are_taken_and_numbered_in_complaints():
    found = follow_ups_of(io.BytesIO(b'{"chunks": []}\n \n{"chunks": 1}\n'), "then")
    next(found)
    with pytest.raises(UsageError, match="Line 3 of then"):
        next(found)


def test_too_many_lines_and_too_long_ones_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follow_up_lines, "FOLLOW_UPS_LIMIT", 2)
    monkeypatch.setattr(follow_up_lines, "LINE_LIMIT_BYTES", 30)
    with pytest.raises(UsageError, match="Line 3 of then: A chunk may have 2"):
        list(follow_ups_of(io.BytesIO(b'{"chunks": []}\n' * 3), "then"))
    with pytest.raises(UsageError, match="Line 1 of then: It is longer than 30 bytes"):
        list(follow_ups_of(io.BytesIO(b'{"chunks": ["%b"]}\n' % (b"x" * 30)), "then"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"chunks": [], "file": "f"}', "`chunks` and `file` cannot be combined"),
        (b'{"chunks": [], "lines": 2}', "`lines` and `bytes` cut a `file`, and there is none"),
    ],
)
def test_what_contradicts_itself_is_refused(line: bytes, complaint: str):
    with pytest.raises(UsageError, match=f"Line 1 of then: {complaint}"):
        list(follow_ups_of(io.BytesIO(line), "then"))
