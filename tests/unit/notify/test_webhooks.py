"""Signatures as Standard Webhooks has them, and what is sent."""

from __future__ import annotations

import json

import pytest

from opsq.documents.events import EventDocument
from opsq.errors import InputUnreadable, UsageError
from opsq.notify.target import Delivery
from opsq.notify.webhooks import WebhookTarget, content, key_of, signed
from opsq.targets import Webhook
from opsq.wire.messages import Event

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def event(kind: str = "failed", submission_id: int | None = 7, schedule: str = "") -> EventDocument:
    return EventDocument.of(Event(5, 1_764_363_600_000, kind, submission_id, schedule, {}, None, None, 1, 0, "", "no"))


def test_signature_is_that_of_the_published_example() -> None:
    """The one of the specification's libraries."""
    headers = signed(key_of(SECRET, "it"), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", SECRET.removeprefix("whsec_"), "whsec_hey!", "7"])
def test_secret_that_is_none_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(UsageError, match=r"webhook\.ops") as refused:
        key_of(secret, "webhook.ops")
    assert len(secret) < 8 or secret not in str(refused.value)


def test_secret_may_stand_in_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    WebhookTarget(Webhook("ops", "http://localhost/", secret_file=str(path)))
    with pytest.raises(InputUnreadable, match="ops"):
        WebhookTarget(Webhook("ops", "http://localhost/", secret_file=str(tmp_path / "none")))


def test_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"url of webhook\.ops"):
        WebhookTarget(Webhook("ops", "http://localhost:99999/", SECRET))


@pytest.mark.parametrize(
    ("kind", "submission_id", "schedule", "name"),
    [
        ("failed", 7, "", "submission.failed"),
        ("fired", 7, "nightly", "schedule.fired"),
        ("paused", None, "", "pause.paused"),
        ("lost", None, "", "events.lost"),
    ],
)
def test_content_has_type_time_and_event(kind: str, submission_id: int | None, schedule: str, name: str) -> None:
    sent = json.loads(content(Delivery("msg_1", event(kind, submission_id, schedule))))
    assert (sent["type"], sent["timestamp"]) == (name, "2025-11-28T21:00:00.000Z")
    assert (sent["data"]["cursor"].partition("@")[0], sent["data"]["kind"]) == ("5", kind)


def test_webhook_takes_the_kinds_that_it_names_or_all() -> None:
    some = WebhookTarget(Webhook("ops", "http://localhost/", SECRET, events=("failed",)))
    every = WebhookTarget(Webhook("ops", "http://localhost/", SECRET))
    assert [some.takes("failed"), some.takes("dead"), every.takes("dead")] == [True, False, True]
