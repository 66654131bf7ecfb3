"""The connection of a client to a gateway, byte by byte and second by second."""

import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from opsq.gateway import client_connection
from opsq.gateway.client_connection import ClientConnection

HOST = b"Host: localhost\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
PARKED = b"GET /parked HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /a HTTP/1.1\r\n" + HOST
HANDSHAKE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
TURNS = 20


class Transport(asyncio.Transport):
    """What is written; nothing of it is read by the client while `is_read` is false."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_read = self.is_reading = True
        self.is_closed = self.has_ended = False

    def write(self, data):
        self.written += data

    def writelines(self, pieces):
        self.written += b"".join(pieces)

    def write_eof(self):
        self.has_ended = True

    def get_write_buffer_size(self):
        return 0 if self.is_read else len(self.written)

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def set_protocol(self, protocol):
        """An upgrade: what follows goes to `protocol`."""

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = True

    @property
    def statuses(self):
        """Of the answers, in order."""
        return [int(each[:3]) for each in self.written.split(b"HTTP/1.1 ")[1:]]


class Served:
    """Connections to an application that tells what it has been asked, and waits at `/parked` until it is let."""

    def __init__(self, limit=10):
        self.asked = []
        self.may = asyncio.Event()
        self.state = ServerState()
        options = {"interface": "asgi3", "lifespan": "off", "proxy_headers": False, "log_config": None}
        self.config = uvicorn.Config(self.app, limit_concurrency=limit, ws="websockets-sansio", **options)
        self.config.load()

    async def app(self, scope, receive, send):
        """Take the body, and tell what has come."""
        if scope["type"] == "websocket":
            self.asked.append(("websocket", scope["path"]))
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        if scope["path"] in {"/early", "/quiet"}:
            if scope["path"] == "/quiet":
                await self.may.wait()
            await self.answer(send, b"{}")
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.asked.append("gone")
                return
            body += message.get("body", b"")
            if not message["more_body"]:
                break
        self.asked.append((scope["method"], scope["path"], body))
        if scope["path"] == "/parked":
            await self.may.wait()
        await self.answer(send, json.dumps(sorted({name.decode() for name, _ in scope["headers"]})).encode())

    @staticmethod
    async def answer(send, body):
        """Answer with 200."""
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def connect(self):
        """A new connection, and its transport."""
        connection = ClientConnection(self.config, self.state, {}, asyncio.get_running_loop())
        transport = Transport()
        connection.connection_made(transport)
        return connection, transport


async def settled():
    """Let everything run that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def exchanged(*pieces, limit=10):
    """What a client gets that sends so: the transport, and what the application was asked."""

    async def exchange():
        served = Served(limit)
        connection, transport = served.connect()
        for piece in pieces:
            connection.data_received(piece)
            await settled()
        return transport, served.asked

    return asyncio.run(exchange())


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /a HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET /a HTTP/1.1\r\n" + HOST + b"Host: other\r\n\r\n", id="two hosts"),
        pytest.param(b"GET /a HTTP/1.0\r\n" + HOST + HOST + b"\r\n", id="two hosts of HTTP/1.0"),
        pytest.param(b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks of HTTP/1.0"),
        pytest.param(POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="length, chunked"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", id="chunked, length"),
        pytest.param(POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", id="two lengths"),
        pytest.param(POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", id="the same length twice"),
        pytest.param(POST + b"Content-Length: 5, 5\r\n\r\nabcde", id="list of lengths"),
        pytest.param(POST + b"Content-Length: +5\r\n\r\nabcde", id="signed length"),
        pytest.param(POST + b"Content-Length: 99999999999999999999\r\n\r\n", id="length beyond 64 bits"),
        pytest.param(POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", id="chunked not last"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="unknown encoding"),
        pytest.param(POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="space before the colon"),
        pytest.param(POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", id="folded header"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", id="bare line feeds in chunks"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", id="chunk size of 0x"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n", id="negative chunk"),
        pytest.param(b"GET /a HTTP/1.1\nHost: localhost\n\n", id="bare line feeds"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n", id="bare carriage return"),
        pytest.param(b"GET /a HTTP/1.2\r\n" + HOST + b"\r\n", id="unknown version"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", id="tunnel"),
        pytest.param(b"GET /a\x00b HTTP/1.1\r\n" + HOST + b"\r\n", id="NUL"),
        pytest.param(b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", id="no UTF-8"),
        pytest.param(b"GET a HTTP/1.1\r\n" + HOST + b"\r\n", id="no path"),
        pytest.param(b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", id="space in the target"),
        pytest.param(POST + HANDSHAKE + b"Content-Length: 2\r\n\r\n{}", id="upgrade with a body"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
@pytest.mark.parametrize("is_split", [False, True])
def test_what_is_no_well_formed_request_is_refused_once_and_ends_the_connection(request_bytes, is_split):
    pieces = [request_bytes[i : i + 1] for i in range(len(request_bytes))] if is_split else [request_bytes]
    transport, asked = exchanged(*pieces, GET)
    assert transport.statuses == [400]
    assert b"application/problem+json" in transport.written
    assert transport.has_ended
    assert asked in ([], ["gone"])


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /" + b"a" * 500_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 500_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"a:b\r\n" * 20_000 + b"\r\n",
        b"\r\n" * 40_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 500_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"a:b\r\n" * 20_000,
    ],
)
def test_heads_chunk_extensions_and_trailers_have_bounds_also_before_they_end(request_bytes):
    pieces = [request_bytes[i : i + 10_000] for i in range(0, len(request_bytes), 10_000)]
    transport, asked = exchanged(*pieces)
    assert transport.statuses == [431]
    assert asked in ([], ["gone"])


def test_a_head_within_the_bounds_is_served():
    transport, _ = exchanged(b"GET /a HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 60_000 + b"\r\n\r\n")
    assert transport.statuses == [200]


def test_trailers_do_not_pass_for_headers():
    body = b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
    transport, asked = exchanged(POST + body)
    assert asked == [("POST", "/a", b"a")]
    assert b'["host", "transfer-encoding"]' in transport.written


def test_pipelined_requests_are_answered_in_order_and_so_is_what_came_before_a_wrong_one():
    transport, asked = exchanged(GET + POST + b"Content-Length: 2\r\n\r\n{}" + GET + b"NONSENSE\r\n\r\n" + GET)
    assert [each[0] for each in asked] == ["GET", "POST", "GET"]
    assert transport.statuses == [200, 200, 200]
    assert transport.is_closed


def test_a_body_that_goes_wrong_reaches_nobody_as_a_whole():
    transport, asked = exchanged(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"nonsense\r\n")
    assert transport.statuses == [400]
    assert asked == ["gone"]


def test_requests_wait_behind_a_parked_one_in_a_bounded_number():
    async def exchange():
        served = Served()
        connection, transport = served.connect()
        connection.data_received(PARKED)
        await settled()
        connection.data_received(GET * 100)
        await settled()
        assert not transport.is_reading
        assert len(connection.pipeline) == client_connection.PIPELINE_LIMIT_COUNT
        served.may.set()
        for _ in range(10):
            await settled()
        assert transport.statuses == [200] * (1 + client_connection.PIPELINE_LIMIT_COUNT)
        assert transport.is_closed

    asyncio.run(exchange())


def test_more_is_read_only_when_all_that_was_pipelined_is_under_way():
    async def exchange():
        served = Served()
        connection, transport = served.connect()
        early, quiet = (b"GET /%b HTTP/1.1\r\n%b\r\n" % (path, HOST) for path in (b"early", b"quiet"))
        connection.data_received(early + quiet + early)
        await settled()
        assert (transport.statuses, transport.is_reading) == ([200], False)
        served.may.set()
        await settled()
        assert (transport.statuses, transport.is_reading) == ([200] * 3, True)

    asyncio.run(exchange())


def test_upgrades_are_for_plain_requests_and_never_for_one_behind_another():
    upgrade = b"GET /a HTTP/1.1\r\n" + HOST + HANDSHAKE + b"\r\n"
    assert exchanged(upgrade)[1] == [("websocket", "/a")]
    assert exchanged(PARKED, upgrade)[1] == [("GET", "/parked", b"")]
    transport, asked = exchanged(POST + HANDSHAKE + b"\r\n", GET)
    assert (transport.statuses, asked, transport.is_closed) == ([200], [("POST", "/a", b"")], True)
    h2c = b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    transport, asked = exchanged(h2c, GET)
    assert (transport.statuses, asked, transport.is_closed) == ([200], [("GET", "/a", b"")], True)


# --- time -------------------------------------------------------------------------------------------------------------


def lasted(*pieces, each_second=b"", is_read=True):
    """How many seconds a connection lasts on which this is sent, and its transport; 100 stands for more."""

    async def last():
        served = Served()
        connection, transport = served.connect()
        transport.is_read = is_read
        for piece in pieces:
            connection.data_received(piece)
            await settled()
        for second in range(100):
            if transport.is_closed or transport.has_ended:
                return second, transport
            if each_second:
                connection.data_received(each_second)
            connection.tick(1.0)
            await settled()
        return 100, transport

    return asyncio.run(last())


@pytest.mark.parametrize(
    ("sent", "each_second"),
    [
        (b"GET /a HT", b""),
        (b"GET /a HTTP/1.1\r\nHost: local", b"h"),
        (b"\r\n", b"\r\n"),
        (POST + b"Content-Length: 100000\r\n\r\n", b""),
        (POST + b"Content-Length: 100000\r\n\r\n", b"a"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(sent, each_second):
    seconds, transport = lasted(sent, each_second=each_second)
    assert client_connection.PATIENCE_S <= seconds <= client_connection.PATIENCE_S + 1
    assert transport.statuses == [408]


def test_a_client_that_says_nothing_is_told_nothing():
    seconds, transport = lasted()
    assert seconds == client_connection.PATIENCE_S
    assert transport.written == b""


def test_a_slow_body_that_arrives_and_a_request_that_waits_may_take_their_time():
    rate = b"a" * client_connection.BODY_RATE
    assert lasted(POST + b"Content-Length: 1000000\r\n\r\n", each_second=rate)[0] == 100
    assert lasted(PARKED)[0] == 100


def test_what_follows_an_early_answer_has_a_short_time_to_end():
    head = b"POST /early HTTP/1.1\r\n" + HOST
    seconds, transport = lasted(head + b"Content-Length: 1000000000\r\n\r\n", each_second=b"a" * 100_000)
    assert seconds == client_connection.LINGER_S
    assert transport.statuses == [200]
    seconds, transport = lasted(head + b"Content-Length: 300000\r\n\r\n" + b"a" * 300_000)
    assert (transport.statuses, seconds > client_connection.LINGER_S) == ([200], True)


def test_a_client_that_reads_nothing_of_its_answer_is_given_up():
    seconds, _ = lasted(GET, is_read=False)
    assert seconds == client_connection.STALL_S + 1


def test_a_refused_client_has_a_short_time_to_read_why():
    async def last():
        served = Served()
        connection, transport = served.connect()
        connection.data_received(b"NONSENSE\r\n")
        for _ in range(client_connection.LINGER_S):
            assert not transport.is_closed
            connection.data_received(GET)
            connection.tick(1.0)
        assert transport.is_closed
        assert transport.statuses == [400]

    asyncio.run(last())


# --- how many ---------------------------------------------------------------------------------------------------------


def test_one_connection_more_ends_the_one_that_waits_longest_for_its_client():
    async def exchange():
        served = Served(limit=3)
        (parked, parked_way), (_, idle_way), (_, other_way) = (served.connect() for _ in range(3))
        parked.data_received(PARKED)
        await settled()
        newest, newest_way = served.connect()
        newest.data_received(GET)
        await settled()
        assert newest_way.statuses == [200]
        assert [way.is_closed for way in (parked_way, idle_way, other_way)] == [False, True, False]

    asyncio.run(exchange())


def test_where_all_connections_wait_for_answers_one_more_is_told_to_come_later():
    async def exchange():
        served = Served(limit=2)
        ways = []
        for _ in range(2):
            connection, transport = served.connect()
            connection.data_received(PARKED)
            ways.append(transport)
        await settled()
        _, transport = served.connect()
        assert transport.statuses == [503]
        assert b"retry-after" in transport.written.lower()
        served.may.set()
        await settled()
        assert [way.statuses for way in ways] == [[200], [200]]

    asyncio.run(exchange())
