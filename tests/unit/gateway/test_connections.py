"""Connections of a gateway to its daemon: by token, none waits for another, and none outlives its token."""

import asyncio
import contextlib

import pytest
from starlette.requests import HTTPConnection

from opsq.errors import NotPermitted, TooManyConnections, Unreachable
from opsq.gateway import connections
from opsq.gateway.access import Exposure
from opsq.gateway.connections import Connections, UnknownToken
from opsq.gateway.context import Context
from opsq.gateway.lending import Lending
from opsq.wire.frames import encode, request_reader
from opsq.wire.messages import ErrorReply, Hello
from scripted import welcome

DEADLINE_S = 120


class Daemon:
    """Lets in whom it knows, leaves some unanswered, and answers nothing else."""

    def __init__(self, *known, silent=()):
        self.known, self.silent = set(known), set(silent)
        self.hellos = []
        self._writers = {}

    async def serve(self, reader, writer):
        """Serve one connection."""
        requests = request_reader(1 << 20)
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                for request in requests.feed(data):
                    if isinstance(request, Hello):
                        self.hellos.append(request.token)
                        if request.token in self.silent:
                            continue
                        if request.token not in self.known:
                            error = NotPermitted("The token is missing or wrong.")
                            writer.write(encode([ErrorReply.of(request.id, error)]))
                            return
                        self._writers[request.token] = writer
                        writer.write(encode([welcome()]))

    def cut(self, token):
        """End the connection of a token, and know it no more."""
        self.known.discard(token)
        self._writers.pop(token).close()


@contextlib.asynccontextmanager
async def served(folder, daemon):
    """Connections to this daemon."""
    path = str(folder / "opsq.sock")
    server = await asyncio.start_unix_server(daemon.serve, path)
    found = Connections(path, name="gateway", token="own")
    try:
        yield found
    finally:
        await found.close()
        server.close()


@contextlib.contextmanager
def kept_open(found, token):
    """The connection of a token is in use."""
    release = found.keep_open(token)
    yield
    release()


async def until(condition):
    """Wait until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # what it is about has no event
            await asyncio.sleep(0.001)


def told(story):
    """Run a story."""
    asyncio.run(story)


def test_a_token_that_the_daemon_leaves_unanswered_delays_no_other(runtime_dir):
    async def story():
        slow = [f"slow{i}" for i in range(3)]
        daemon = Daemon("own", "a", silent=slow)
        async with served(runtime_dir, daemon) as found:
            waiting = [asyncio.ensure_future(found.queue(token)) for token in slow]
            await until(lambda: set(slow) <= set(daemon.hellos))
            assert await found.queue() is await found.queue()
            assert await found.queue("a") is not await found.queue()
            assert not any(each.done() for each in waiting)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in outcomes] == [asyncio.CancelledError] * 3

    told(story())


def test_requests_that_show_the_same_token_dial_once_also_where_the_first_has_gone(runtime_dir):
    async def story():
        daemon = Daemon("own", "a")
        async with served(runtime_dir, daemon) as found:
            first, *others = [asyncio.ensure_future(found.queue("a")) for _ in range(5)]
            await asyncio.sleep(0)
            first.cancel()
            assert len({id(each) for each in await asyncio.gather(*others)}) == 1
            assert daemon.hellos == ["a"]

    told(story())


def test_unknown_tokens_are_refused_and_those_that_cannot_be_one_not_even_shown(runtime_dir):
    async def story():
        daemon = Daemon("own")
        async with served(runtime_dir, daemon) as found:
            for _ in range(2):
                with pytest.raises(UnknownToken):
                    await found.queue("x")
            with pytest.raises(UnknownToken):
                await found.queue("x" * 2000)
            assert daemon.hellos == ["x", "x"]

    told(story())


def test_a_gateway_whose_own_token_is_unknown_does_not_blame_its_clients(runtime_dir):
    async def story():
        async with served(runtime_dir, Daemon("a")) as found:
            with pytest.raises(Unreachable, match="this gateway"):
                await found.queue()
            await found.queue("a")

    told(story())


def test_a_token_that_is_revoked_is_dialled_with_no_more_and_refused(runtime_dir):
    async def story():
        daemon = Daemon("own", "a")
        async with served(runtime_dir, daemon) as found:
            queue = await found.queue("a")
            daemon.cut("a")
            await until(lambda: queue.link.is_closed)
            assert daemon.hellos == ["a", "a"]
            with pytest.raises(UnknownToken):
                await found.queue("a")
            daemon.known.add("a")
            assert await found.queue("a") is not queue

    told(story())


def test_so_many_tokens_wait_for_the_daemon_and_no_more(runtime_dir, monkeypatch):
    monkeypatch.setattr(connections, "DIALS_WAITING_LIMIT_COUNT", 20)

    async def story():
        daemon = Daemon("own", silent=[str(i) for i in range(20)])
        async with served(runtime_dir, daemon) as found:
            waiting = [asyncio.ensure_future(found.queue(str(i))) for i in range(20)]
            await until(lambda: len(daemon.hellos) == connections.DIALS_LIMIT_COUNT)
            with pytest.raises(TooManyConnections):
                await found.queue("one more")
            await found.queue()
            assert len(daemon.hellos) == connections.DIALS_LIMIT_COUNT + 1
        await asyncio.gather(*waiting, return_exceptions=True)

    told(story())


def test_of_too_many_tokens_one_that_nobody_uses_is_given_up(runtime_dir, monkeypatch):
    monkeypatch.setattr(connections, "TOKENS_LIMIT", 2)

    async def story():
        async with served(runtime_dir, Daemon("own", "a", "b", "c")) as found:
            with kept_open(found, "a"):
                busy, unused = await found.queue("a"), await found.queue("b")
                with kept_open(found, "c"):
                    newest = await found.queue("c")
                    await until(lambda: unused.link.is_closed)
                    assert [await found.queue("a"), await found.queue("c")] == [busy, newest]

    told(story())


def test_too_many_tokens_in_use_all_stay_until_one_is_used_no_more(runtime_dir, monkeypatch):
    monkeypatch.setattr(connections, "TOKENS_LIMIT", 1)

    async def story():
        async with served(runtime_dir, Daemon("own", "a", "b")) as found:
            with kept_open(found, "b"):
                with kept_open(found, "a"):
                    queues = [await found.queue(token) for token in ("b", "a", None)]
                    assert [await found.queue(token) for token in ("b", "a", None)] == queues
                await until(lambda: queues[1].link.is_closed)
                assert [await found.queue("b"), await found.queue()] == [queues[0], queues[2]]
            await until(lambda: queues[0].link.is_closed)
            assert await found.queue() is queues[2]

    told(story())


def test_what_a_request_uses_stays_open_between_its_calls_until_it_is_answered(runtime_dir, monkeypatch):
    monkeypatch.setattr(connections, "TOKENS_LIMIT", 1)

    async def story():
        async with served(runtime_dir, Daemon("own", "a", "b")) as found:
            context = Context(found, Exposure.UNIX, queues_path="")
            used = []

            async def answer(scope, receive, send):
                used.append(await context.queue(HTTPConnection(scope)))
                other = await found.queue("b")
                await until(lambda: other.link.is_closed)
                assert await found.queue("a") is used[0]

            await Lending(answer)({"type": "http", "opsq.token": "a"}, None, None)
            with kept_open(found, "b"):
                await found.queue("b")
                await until(lambda: used[0].link.is_closed)

    told(story())
