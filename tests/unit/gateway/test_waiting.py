"""Whether a client has gone, without waiting for it."""

import asyncio

from starlette.requests import Request

from opsq.gateway.waiting import is_gone


class Connection:
    """What a server receives from a client, as uvicorn hands it on."""

    def __init__(self):
        self.news = asyncio.Event()
        self.is_closed = False

    async def receive(self):
        """The rest of the body, or that the client has gone."""
        if not self.is_closed:
            await self.news.wait()
            self.news.clear()
        return {"type": "http.disconnect"} if self.is_closed else {"type": "http.request", "body": b""}

    def close(self):
        """The client goes."""
        self.is_closed = True
        self.news.set()


def test_a_client_is_gone_once_its_connection_is_closed_and_can_be_waited_for_before():
    async def look():
        connection = Connection()
        request = Request({"type": "http"}, connection.receive)
        connection.news.set()
        assert not is_gone(request)  # the body came
        assert not is_gone(request)  # nothing more did
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        assert not is_gone(request)
        connection.close()
        assert (await waiting)["type"] == "http.disconnect"
        assert is_gone(request)

    asyncio.run(look())
