"""Calls a webhook: the event as JSON, signed as Standard Webhooks are, so that the receiver knows who sends.

See https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from opsq.clock import now
from opsq.errors import InputUnreadable, UsageError
from opsq.notify.target import Delivery, Failure
from opsq.targets import Webhook
from opsq.version import __version__

SECRET_LEAST_BYTES = 16
RETRY_AFTER_MOST_S = 86_400.0
_PREFIX = "whsec_"
_GONE = 410


class WebhookTarget:
    """A receiver over HTTP; anything but a status of 200 to 299 within its time is a failure.

    Raises:
        UsageError: its secret or its address is not valid.
        InputUnreadable: the file of its secret cannot be read.
    """

    def __init__(self, webhook: Webhook) -> None:
        self.name = f"webhook.{webhook.name}"
        self._webhook = webhook
        self._key = key_of(_secret(webhook), self.name)
        url = urlsplit(webhook.url)
        try:
            self._host, self._port = url.hostname or "", url.port
        except ValueError as error:
            raise UsageError(f"The url of {self.name} is not valid: {error}.") from error
        self._path = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()

    def takes(self, kind: str) -> bool:
        """Whether events of this kind are for it."""
        return not self._webhook.events or kind in self._webhook.events

    def deliver(self, delivery: Delivery) -> Failure | None:
        """Send an event."""
        body = content(delivery)
        headers = {
            "content-type": "application/json",
            "user-agent": f"opsq/{__version__}",
            **signed(self._key, delivery.message, now().wall // 1000, body),
        }
        with self._called() as call:
            try:
                status, retry_after = call.answer(self._path, body, headers)
            except (http.client.HTTPException, OSError, ValueError) as error:
                return Failure("no answer in time" if call.is_ended else _reason(error))
        return None if 200 <= status < 300 else Failure(f"HTTP status {status}", status == _GONE, _wait_s(retry_after))

    def abandon(self) -> None:
        """End all calls."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.end()

    @contextlib.contextmanager
    def _called(self) -> Iterator[_Call]:
        """A call, for as long as it may take."""
        limit_s = self._webhook.timeout_s
        if self._tls:
            call = _Call(http.client.HTTPSConnection(self._host, self._port, timeout=limit_s, context=self._tls))
        else:
            call = _Call(http.client.HTTPConnection(self._host, self._port, timeout=limit_s))
        timer = threading.Timer(limit_s, call.end)
        timer.daemon = True
        with self._lock:
            self._calls.add(call)
        timer.start()
        try:
            yield call
        finally:
            timer.cancel()
            with self._lock:
                self._calls.discard(call)
            call.close()


class _Call:
    """A request on a connection of its own, which another thread may end.

    The timeout of a socket bounds each piece that comes, so a receiver could answer for ever, a byte at a time.
    """

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.is_ended = False

    def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """POST; the status of the answer and its Retry-After. The body is not read: it may be any length."""
        self._connection.connect()
        if not self.is_ended:
            self._connection.request("POST", path, body, headers)
            with self._connection.getresponse() as response:
                status, retry_after = response.status, response.headers.get("retry-after", "")
        if self.is_ended:
            raise TimeoutError  # what came may have been cut off
        return status, retry_after

    def end(self) -> None:
        """Have it fail."""
        self.is_ended = True  # first: until there is a connection, `answer` looks
        if (open_ := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(open_, socket.SHUT_RDWR)  # not that of TLS, which belongs to the other thread

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


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


def _wait_s(given: str) -> float:
    """What Retry-After says in seconds; 0 for a date."""
    return min(float(given), RETRY_AFTER_MOST_S) if given.isascii() and given.isdigit() and len(given) < 9 else 0.0


def _reason(error: Exception) -> str:
    """Why nothing came back; without the address, which may hold a secret."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {str(error)[:200]}"
    if isinstance(error, OSError) and error.strerror:
        return f"no connection: {error.strerror}"
    return f"no HTTP answer ({type(error).__name__})"
