"""Clients that mean no good to a gateway: the others are served meanwhile, and it ends as it should."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from waiting import wait_until

DEADLINE_S = 180
HOST = b"Host: localhost\r\n"
GROWTH_LIMIT_BYTES = 200 << 20


@contextlib.contextmanager
def gateway(queue, *options):
    """A gateway that is ready, as a client with its URL and its process; ended by SIGTERM, in silence."""
    with queue.running("gateway", "--listen", "127.0.0.1:0", *options) as process:
        url = process.stdout.readline().decode().strip()
        assert url, process.stderr.read().decode()
        with httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False) as http:
            http.process = process
            yield http
        process.terminate()
        assert process.communicate(timeout=DEADLINE_S)[1] == b""
        assert process.returncode == 0


@pytest.fixture
def connect():
    """Makes connections to a gateway, each with what is sent at once; they are closed afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with contextlib.ExitStack() as stack:

        def made(http, sent=b""):
            peer = stack.enter_context(socket.create_connection((http.base_url.host, http.base_url.port), DEADLINE_S))
            peer.sendall(sent)
            return peer

        yield made
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answer(peer):
    """All that comes until the end of a connection, however it ends."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := peer.recv(1 << 16):
            received += piece
    return received


def status(peer):
    """The status of the last answer on a connection that ends."""
    return int(answer(peer).rpartition(b"HTTP/1.1 ")[2][:3] or b"0")


def memory_bytes(process):
    """What a process holds in memory."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def is_served(http):
    """Whether a record goes in, comes out and is acknowledged."""
    assert http.post("/queues/mine/record", json={"payload": "a"}).status_code == 204
    record = http.get("/queues/mine/record", params={"wait": 60}).json()
    return http.post(f"/ack/{record['id']}").status_code == 200


def test_thousands_of_idle_parked_slow_and_endless_clients_take_nothing_from_others(queue, connect):
    with gateway(queue) as http:
        assert is_served(http)
        before_bytes = memory_bytes(http.process) if Path("/proc/self/statm").exists() else 0
        idle = [connect(http) for _ in range(1000)]
        parked = [connect(http, b"GET /record?wait=3600 HTTP/1.1\r\n" + HOST + b"\r\n") for _ in range(1000)]
        slow_head = connect(http, b"GET /healthz HTTP/1.1\r\nHost: local")
        slow_body = connect(http, b"POST /record HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{")
        post, chunked = b"POST %b HTTP/1.1\r\n" + HOST, b"Transfer-Encoding: chunked\r\n\r\n"
        endless = [
            (connect(http), post % b"/record" + b"X: ", b"a" * 65536, 431),
            (connect(http), b"GET /", b"a" * 65536, 431),
            (connect(http), post % b"/record" + chunked + b"1;", b"a" * 65536, 431),
            (connect(http), post % b"/record" + chunked, b"8000\r\n%b\r\n" % (b"a" * 0x8000), 413),
            (connect(http), post % b"/nothing" + chunked, b"8000\r\n%b\r\n" % (b"a" * 0x8000), 404),
            (connect(http), post % b"/ack/1" + chunked, b"8000\r\n%b\r\n" % (b"a" * 0x8000), 400),
        ]
        for peer, head, piece, _ in endless:
            peer.sendall(head)
            for _ in range(64):
                with contextlib.suppress(ConnectionError):
                    peer.sendall(piece)
        greedy = connect(http)
        greedy.settimeout(1)
        with contextlib.suppress(OSError):  # whoever reads no answers is read no more
            while True:
                greedy.sendall((b"GET /record?wait=3600 HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)
        assert is_served(http)
        assert http.get("/readyz").status_code == 200
        if before_bytes:
            assert memory_bytes(http.process) - before_bytes < GROWTH_LIMIT_BYTES
        assert [status(peer) for peer, *_ in endless] == [expected for *_, expected in endless]
        assert [status(peer) for peer in (slow_head, slow_body)] == [408, 408]
        assert {answer(peer) for peer in idle} == {b""}
        assert is_served(http)
        http.process.send_signal(signal.SIGTERM)
        assert {status(peer) for peer in parked} == {204}


def test_a_client_that_goes_away_in_the_middle_of_anything_is_no_error(queue, connect):
    with gateway(queue) as http:
        for sent in (
            b"GET",
            b"POST /record HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{",
            b"GET /record?wait=3600 HTTP/1.1\r\n" + HOST + b"\r\n",
            b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
            b"POST /ack/1 HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{",
        ):
            connect(http, sent).close()
        assert is_served(http)


REQUESTS = (
    (b"GET /record HTTP/1.1\r\nHost: [\r\n", 403),
    (b"GET /record HTTP/1.1\r\nHost: a]b:c\r\n", 403),
    (b"GET /record HTTP/1.1\r\n" + HOST + b"Origin: http://[\r\n", 403),
    (b"GET /record HTTP/1.1\r\n" + HOST + b"Origin: http://localhost\r\nOrigin: http://elsewhere\r\n", 403),
    (b"GET /record HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + b"x" * 20_000 + b"\r\n", 401),
    (b"GET /record HTTP/1.1\r\n" + HOST + b"Authorization: Bearer \xff\r\n", 401),
    (b"GET /queues/a%00b/record HTTP/1.1\r\n" + HOST, 400),
    (b"GET /queues/a%ffb/record HTTP/1.1\r\n" + HOST, 400),
    (b"GET /queues/../record HTTP/1.1\r\n" + HOST, 400),
    (b"GET /queues/%2e%2e/record HTTP/1.1\r\n" + HOST, 400),
    (b"GET /queues/a%2Fb/record HTTP/1.1\r\n" + HOST, 404),
    (b"GET //record HTTP/1.1\r\n" + HOST, 404),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST, 404),
    (b"POST /record HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n", 413),
)
"""Heads without their last line, and the status of the answer."""

BODIES = (
    b'{"payload":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"payload":"\\ud800"}',
    b'{"payload":"a","delay_ms":1e999}',
    b'{"payload":"a","delay_ms":1e300}',
    b"\xff\xfe",
    b"",
)


def test_requests_and_bodies_that_mean_no_good_are_refused(queue, connect):
    with gateway(queue) as http:
        for sent, expected in REQUESTS:
            assert status(connect(http, sent + b"Connection: close\r\n\r\n")) == expected, sent
        for body in BODIES:
            reply = http.post("/record", content=body)
            assert (reply.status_code, reply.json()) == (400, {"message": "Invalid body"}), body
        assert is_served(http)


def test_a_new_connection_takes_the_place_of_an_idle_one(queue, connect):
    with gateway(queue, "--connection-limit", "10") as http:
        idle = [connect(http) for _ in range(30)]
        assert is_served(http)
        assert {answer(peer) for peer in idle[:20]} == {b""}


def limited(queue, descriptors, *words):
    """A command line for a process that may open so many files."""
    return ["/bin/sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *queue.program, *words]


def test_descriptors_bound_the_connections_too_and_too_few_are_refused(queue, connect):
    words = limited(queue, 400, "gateway", "--listen", "127.0.0.1:0")
    with subprocess.Popen(words, env=queue.environ, stdout=subprocess.PIPE) as process:
        url = process.stdout.readline().decode().strip()
        with httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False) as http:
            idle = [connect(http) for _ in range(500)]
            assert is_served(http)
            assert {answer(peer) for peer in idle[:400]} == {b""}
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    refused = subprocess.run(limited(queue, 300, "gateway"), env=queue.environ, capture_output=True, timeout=DEADLINE_S)
    assert refused.returncode == 2
    assert b"file descriptors" in refused.stderr


# --- without a daemon that answers ------------------------------------------------------------------------------------

DOORS = ("/readyz", "/record", "/api/v1/status")


def is_unreachable(reply):
    """Whether an answer says that there is no daemon, and when to come again."""
    assert reply.status_code == 503, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert int(reply.headers["retry-after"]) > 0
    return reply.json()["code"] == "unreachable"


def test_every_door_says_that_there_is_no_daemon_and_serves_when_there_is(opsq):
    opsq.ok("start")
    opsq.ok("stop")
    with gateway(opsq) as http:
        assert all(is_unreachable(http.get(path)) for path in DOORS)
        assert is_unreachable(http.post("/record", json={"payload": "a"}))
        opsq.ok("start")
        assert is_served(http)
        opsq.kill_daemon()
        (opsq.state_dir / "opsq.sock").unlink(missing_ok=True)
        opsq.ok("start")
        assert is_served(http)
        assert all(http.get(path).status_code < 300 for path in DOORS)


def test_a_daemon_that_hangs_is_not_ready_and_lets_nobody_in_until_it_goes_on(queue):
    pid = queue.ok("status", "--json").json["pid"]
    with gateway(queue) as http:
        assert http.get("/readyz").status_code == 200
        os.kill(pid, signal.SIGSTOP)
        try:
            assert is_unreachable(http.get("/readyz"))
            assert is_unreachable(http.get("/record", headers={"Authorization": "Bearer " + "0" * 64}))
            assert http.get("/healthz").status_code == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: http.get("/readyz").status_code == 200, DEADLINE_S, "it is ready again")
        assert is_served(http)
