"""Webhooks against receivers that answer wrongly, slowly, or not at all; all of it is real HTTP."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from opsq.documents.event_cursor import EventCursor
from opsq.notify.notifier import Notifier, Tries
from opsq.notify.target import Delivery, Failure
from opsq.notify.webhooks import WebhookTarget
from opsq.store.deliveries import Deliveries
from opsq.targets import Webhook
from unit.notify.test_notifier import Source, event
from unit.notify.test_webhooks import SECRET
from unit.notify.test_webhooks import event as document

DELIVERY = Delivery("msg_1", document())
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Receiver(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers each request as the next of `answers` does, then with 204."""

    daemon_threads = True

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?token=t"

    def handle_error(self, *_: object) -> None:
        """A client that went away is what some tests are about."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Notes a request."""

    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
        (self.server.answers.pop(0) if self.server.answers else status(204))(self)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def status(code: int, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)  # until the other side gives up


def slam(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 204 No Content\r\nx: ")
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.01)


def garbage(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"hey!\n")


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"x" * 65536)


@contextlib.contextmanager
def receiving(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    with Receiver(*answers) as receiver:
        if tls:
            receiver.socket = tls.wrap_socket(receiver.socket, server_side=True)
        thread = threading.Thread(target=receiver.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


def target(receiver: Receiver, timeout_s: float = 30.0) -> WebhookTarget:
    return WebhookTarget(Webhook("ops", receiver.url, SECRET, timeout_s=timeout_s))


def test_receiver_can_verify_who_has_sent() -> None:
    with receiving() as receiver:
        assert target(receiver).deliver(DELIVERY) is None
        [(headers, body)] = receiver.requests
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = hmac.new(base64.b64decode(SECRET.removeprefix("whsec_")), text, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(wanted).decode()}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    assert (headers["webhook-id"], headers["content-type"]) == ("msg_1", "application/json")


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (status(500), Failure("HTTP status 500")),
        (status(404), Failure("HTTP status 404")),
        (status(302, location="http://127.0.0.1:1/"), Failure("HTTP status 302")),
        (status(410), Failure("HTTP status 410", is_final=True)),
        (status(429, retry_after="7"), Failure("HTTP status 429", retry_after_s=7.0)),
        (status(503, retry_after="Fri, 31 Dec 1999 23:59:59 GMT"), Failure("HTTP status 503")),
        (slam, Failure("no HTTP answer (RemoteDisconnected)")),
        (garbage, Failure("no HTTP answer (BadStatusLine)")),
    ],
)
def test_answer_that_is_no_success_is_a_failure_that_says_why(answer: Answer, failure: Failure) -> None:
    with receiving(answer) as receiver:
        assert target(receiver).deliver(DELIVERY) == failure
        assert target(receiver).deliver(DELIVERY) is None


@pytest.mark.parametrize("answer", [hang, drip])
def test_receiver_that_never_ends_its_answer_costs_its_time_only(answer: Answer) -> None:
    with receiving(answer) as receiver:
        assert target(receiver, timeout_s=0.2).deliver(DELIVERY) == Failure("no answer in time")


@pytest.mark.parametrize("answer", [hang, drip])
def test_abandoned_call_ends_at_once(answer: Answer) -> None:
    is_asked = threading.Event()

    def noted(handler: http.server.BaseHTTPRequestHandler) -> None:
        is_asked.set()
        answer(handler)

    with receiving(noted) as receiver, ThreadPoolExecutor() as threads:
        called = target(receiver, timeout_s=600.0)
        delivering = threads.submit(called.deliver, DELIVERY)
        is_asked.wait()
        called.abandon()
        assert delivering.result() == Failure("no answer in time")


def test_receiver_is_known_by_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with receiving(tls=tls) as receiver:
        webhook = Webhook("ops", f"https://localhost:{receiver.server_address[1]}/", SECRET)
        failure = WebhookTarget(webhook).deliver(DELIVERY)
        assert failure is not None
        assert failure.text.startswith("TLS failed: ")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert WebhookTarget(webhook).deliver(DELIVERY) is None


def test_endless_answer_is_not_read() -> None:
    with receiving(endless) as receiver:
        assert target(receiver).deliver(DELIVERY) is None


def test_no_receiver_is_a_failure_without_the_address() -> None:
    with receiving() as receiver:
        gone = target(receiver)
    receiver.server_close()
    assert gone.deliver(DELIVERY) == Failure("no connection: Connection refused")


def test_all_events_arrive_in_order_at_a_receiver_that_fails_in_every_way(tmp_path: Path) -> None:
    answers = (status(500), status(204), slam, hang, status(204), garbage, status(503, retry_after="0"))
    file = Deliveries(tmp_path / "notify.sqlite")
    with receiving(*answers) as receiver:
        found = Notifier(
            file,
            [target(receiver, 0.2)],
            Source(*(event(seq) for seq in range(1, 8))).ask,
            jobs=4,
            tries=Tries(10, 0.001),
            on_failure=lambda _: None,
            dead_days=30,
        )
        found.begin(EventCursor(0))
        found.run(once=True)
        while found.waiting_count:
            found.run(once=True)
        ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    file.close()
    assert ids == sorted(ids)
    assert (len(set(ids)), found.delivered_count) == (7, 7)
    assert len(ids) == 7 + 5
