"""Heads of requests have a bound, and pages of other sites come in only if they are named."""

import socket
from urllib.parse import urlsplit

import pytest

from acceptance.http_api.conftest import serving
from acceptance.http_api.test_inspecting import document, problem

PAGE = "https://page.example"


def answered(api, *parts):
    """The first line, and whether the connection is closed, after sending these parts."""
    url = urlsplit(str(api.base_url))
    with socket.create_connection((url.hostname, url.port), timeout=180) as peer:
        received = b""
        try:
            for part in parts:
                peer.sendall(part)
            while piece := peer.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


def test_head_of_any_length_is_refused_and_others_are_served(api):
    line = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n"
    endless = answered(api, line, b"X: ", *[b"x" * 65536] * 100)
    assert endless[0] in {"HTTP/1.1 431 Request Header Fields Too Large", ""}
    many = answered(api, line, *[b"X: y\r\n" * 1000] * 20, b"\r\n")
    assert many[0] in {"HTTP/1.1 431 Request Header Fields Too Large", ""}
    assert problem(api.get("status", headers={"X": "x" * 65536})) == (431, "http")
    assert problem(api.get("status", params={"by": "x" * 65000})) == (400, "usage")
    assert answered(api, b"nonsense\r\n\r\n")[0] == "HTTP/1.1 400 Bad Request"
    assert document(api, "status")["state"] == "running"


def test_head_that_comes_in_pieces_and_a_long_body_are_no_long_head(api):
    body = b'{"metadata":{"a":1},"all":false' + b" " * 200_000 + b"}"
    head = b"POST /api/v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body)
    for cut in (1, 2, 3, 4):
        pieces = [bytes([byte]) for byte in request[:-cut]]
        assert answered(api, *pieces, request[-cut:] + body)[0] == "HTTP/1.1 200 OK"
    long = b"X: " + b"x" * 60_000 + b"\r\n"
    line = b"GET /api/v1/rules HTTP/1.1\r\nHost: localhost\r\n"
    pair = answered(api, line + long + b"\r\n" + line + b"Connection: close\r\n" + long + b"\r\n")
    assert pair[1].count(b'"pauses"') == 2  # each has a bound of its own


def test_pages_of_named_origins_may_use_the_json_api_and_nothing_else(queue):
    preflight = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(queue, "--allow-origin", PAGE, "--allow-origin", "http://localhost:3000") as api:
        reply = api.options("submissions/1", headers=preflight)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "DELETE" in reply.headers["access-control-allow-methods"]
        reply = api.get("status", headers={"Origin": PAGE})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, PAGE)
        reply = api.get("status", headers={"Origin": PAGE, "Sec-Fetch-Site": "cross-site"})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, PAGE)
        assert api.get("status", headers={"Origin": "https://other.example"}).status_code == 403
        assert api.options("status", headers=preflight | {"Origin": "https://other.example"}).status_code == 400
        assert api.get(api.base_url.join("/record"), headers={"Origin": PAGE}).status_code == 403


def test_pages_of_other_sites_are_refused_unless_they_are_named(api):
    reply = api.get("status", headers={"Origin": PAGE})
    assert problem(reply) == (403, "http")
    assert "access-control-allow-origin" not in reply.headers
    assert api.options("status", headers={"Origin": PAGE}).status_code == 403


@pytest.mark.parametrize("origin", ["*", "page.example", "https://page.example/", "null"])
def test_what_is_no_origin_is_a_usage_error(queue, origin):
    refused = queue("gateway", "--listen", "127.0.0.1:0", "--allow-origin", origin)
    assert refused.status == 2
    assert "--allow-origin" in refused.err
