"""What becomes of chunks that were reserved for a client that has gone."""

import asyncio
from types import SimpleNamespace

import pytest

from opsq.gateway.api.taking import ReserveBody, reserve_chunks
from opsq.wire.messages import Completed, HeldChunks, Release, Reserve
from scripted import grant, reserved


class SlowCall:
    """A request whose client goes, or does not, while the answer is composed."""

    def __init__(self, goes):
        self.goes = goes
        self.queue = SimpleNamespace(link=SimpleNamespace(send=lambda requests: None))
        self.request = SimpleNamespace(receive=self._receive)
        self.released = []
        self.is_composed = False

    def next_id(self):
        """An id."""
        return 5

    async def ask(self, request, kind):
        """What the daemon answers."""
        if isinstance(request, Reserve):
            return reserved(request.id, grant(7, mask=1))
        assert isinstance(request, Release)
        self.released += request.held
        return Completed(request.id)

    async def until(self, done, wait_s):
        """Wait for something."""
        await asyncio.wait((done,))

    async def compose(self, document):
        """Compose the answer."""
        self.is_composed = True
        return "the answer"

    async def _receive(self):
        if self.goes and self.is_composed:
            return {"type": "http.disconnect"}
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("goes", [True, False])
def test_chunks_are_released_if_their_consumer_goes_before_it_is_answered(goes):
    call = SlowCall(goes)
    assert asyncio.run(reserve_chunks(call, ReserveBody())) == "the answer"
    assert call.released == ([HeldChunks.of_grant(5, grant(7, mask=1))] if goes else [])
