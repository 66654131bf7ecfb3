"""Calls a webhook: the event as JSON, signed as Standard Webhooks are, so that the receiver knows who sends.

See https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING

import msgspec

from opsq.clock import now
from opsq.errors import InputUnreadable, UsageError
from opsq.notify.target import Delivery, Failure
from opsq.targets import Webhook
from opsq.version import __version__

if TYPE_CHECKING:
    import urllib3

SECRET_LEAST_BYTES = 16
RETRY_AFTER_MOST_S = 86_400.0
_PREFIX = "whsec_"
_GONE = 410


class WebhookTarget:
    """A receiver over HTTP; anything but a status of 200 to 299 within its time is a failure.

    Raises:
        UsageError: its secret is not valid, or `opsq[notify]` is not installed.
        InputUnreadable: the file of its secret cannot be read.
    """

    def __init__(self, webhook: Webhook) -> None:
        self.name = f"webhook.{webhook.name}"
        self._webhook = webhook
        self._key = key_of(_secret(webhook), self.name)
        self._pool = _pool(webhook.timeout_s)

    def takes(self, kind: str) -> bool:
        """Whether events of this kind are for it."""
        return not self._webhook.events or kind in self._webhook.events

    def deliver(self, delivery: Delivery) -> Failure | None:
        """Send an event."""
        import urllib3

        body = content(delivery)
        headers = {
            "content-type": "application/json",
            "user-agent": f"opsq/{__version__}",
            **signed(self._key, delivery.message, now().wall // 1000, body),
        }
        try:
            response = self._pool.request(
                "POST", self._webhook.url, body=body, headers=headers, redirect=False, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return Failure(_reason(error))
        # What a receiver says is not read: it may be any length, and come at any speed.
        response.close()
        if 200 <= response.status < 300:
            return None
        return Failure(f"HTTP status {response.status}", response.status == _GONE, _retry_after_s(response))

    def abandon(self) -> None:
        """Close what is open."""
        self._pool.clear()


def content(delivery: Delivery) -> bytes:
    """What is sent: the type, when it was, and the event."""
    event = delivery.event
    subject = event.subject.partition(" ")[0]
    payload = {"type": f"{subject}.{event.kind}", "timestamp": event.at, "data": event}
    return msgspec.json.encode(payload)


def signed(key: bytes, message: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks."""
    text = b".".join((message.encode(), str(timestamp).encode(), body))
    signature = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return {"webhook-id": message, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}


def key_of(secret: str, name: str) -> bytes:
    """The key behind a secret, `whsec_` and base64.

    Raises:
        UsageError: it is not written so, or is too short.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SECRET_LEAST_BYTES or not secret.startswith(_PREFIX):
        raise UsageError(
            f"The secret of {name} is not valid: "
            f"it must be `{_PREFIX}` followed by at least {SECRET_LEAST_BYTES} bytes in base64.",
            hint=f'Make one: echo "{_PREFIX}$(openssl rand -base64 24)"',
        )
    return key


def _secret(webhook: Webhook) -> str:
    if webhook.secret:
        return webhook.secret
    try:
        with open(webhook.secret_file, encoding="utf-8") as file:
            return file.read(1024).strip()
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        raise InputUnreadable(f"Cannot read the secret of webhook {webhook.name}: {text}.") from error


def _pool(timeout_s: float) -> urllib3.PoolManager:
    try:
        import urllib3
    except ImportError as error:
        text = f"Webhooks need {error.name}, which is not installed."
        raise UsageError(text, hint="Install it: pip install 'opsq[notify]'") from error
    return urllib3.PoolManager(timeout=urllib3.Timeout(total=timeout_s), retries=False, maxsize=4)


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    given = response.headers.get("retry-after", "")
    return min(float(given), RETRY_AFTER_MOST_S) if given.isascii() and given.isdigit() and len(given) < 9 else 0.0


def _reason(error: Exception) -> str:
    """Why nothing came back; without the address, which may hold a secret."""
    import urllib3

    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return f"no connection: {str(error).rpartition(': ')[2]}"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.SSLError):
        return f"TLS failed: {str(error)[:200]}"
    return f"no connection ({type(error).__name__})"
