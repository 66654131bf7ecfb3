"""What a link of asyncio sends when, over one end of a pair of sockets; the test is the daemon at the other."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from opsq.client.core.async_link import AsyncLink
from opsq.errors import UsageError
from opsq.wire.frames import encode, request_reader
from opsq.wire.messages import VERSION, Alive, CancelWait, Heartbeat, Hello, Request, Welcome


class OtherEnd:
    """A daemon that welcomes and answers heartbeats; `frames` has what came in each frame after the hello."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.frames: list[list[Request]] = []
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def _answer(self) -> None:
        while (head := self.far.recv(4, socket.MSG_WAITALL)) and len(head) == 4:
            frame = head + self.far.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            requests = list(request_reader().feed(frame))
            replies: list[Welcome | Alive] = []
            for request in requests:
                if isinstance(request, Hello):
                    replies.append(Welcome(request.id, VERSION, "1", "c", 60.0, 1 << 20, 1 << 20, True, True, "", ""))
                elif isinstance(request, Heartbeat):
                    replies.append(Alive(request.id))
            if not any(isinstance(request, Hello) for request in requests):
                self.frames.append(requests)  # type: ignore[arg-type]  # none is impossible
            if replies:
                self.far.sendall(encode(replies))

    def close(self) -> None:
        self.near.close()
        self.thread.join()
        self.far.close()


@pytest.fixture
def other_end() -> Iterator[OtherEnd]:
    end = OtherEnd()
    yield end
    end.close()


async def opened(end: OtherEnd) -> AsyncLink:
    return await AsyncLink("/fake", name="test", token="", connect=lambda _: end.near).open()


def test_what_is_sent_soon_in_one_turn_travels_in_one_frame_in_order(other_end: OtherEnd) -> None:
    async def work() -> None:
        link = await opened(other_end)
        answers: asyncio.Queue[object] = asyncio.Queue()
        beats = [Heartbeat(link.next_id()) for _ in range(3)]
        for beat in beats:
            link.send_soon([beat], answers.put_nowait)
        link.send_soon([CancelWait(77)])
        assert [await answers.get() for _ in beats] == [Alive(beat.id) for beat in beats]
        await link.close()
        other_end.thread.join()
        assert other_end.frames == [[*beats, CancelWait(77)]]

    asyncio.run(work())


def test_what_is_sent_soon_is_sent_though_the_link_is_closed_in_the_same_turn(other_end: OtherEnd) -> None:
    async def work() -> None:
        link = await opened(other_end)
        link.send_soon([CancelWait(77)])
        await link.close()
        other_end.thread.join()
        assert other_end.frames == [[CancelWait(77)]]
        with pytest.raises(UsageError):
            link.send_soon([CancelWait(78)])

    asyncio.run(work())
