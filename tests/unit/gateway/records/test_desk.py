"""What a desk asks of the daemon for records that arrive together."""

import asyncio
import contextlib

from opsq.client.aio.queue import AsyncQueue
from opsq.gateway.records.desk import INLINE_BYTES, Desk, NewRecord
from opsq.gateway.records.queue_defaults import QueueDefaults
from opsq.traces import TRACESTATE_LIMIT, TraceContext
from opsq.wire.frames import encode, request_reader
from opsq.wire.messages import Created, Hello, Reserve, Reserved, SubmissionContent, Submit, Submitted
from scripted import grant, welcome

FRAME_LIMIT_BYTES = 1 << 16
DEFAULTS = QueueDefaults(max_attempts=1 << 31, backoff=(1e9, 100.0, 1e9), expires_s=1e9)


class Daemon:
    """Takes all submissions, and hands out records that are as long as any, each of a submission of its own."""

    def __init__(self):
        self.counts = []
        """Of records, by request."""
        self.answers_bytes = []

    async def serve(self, reader, writer):
        """Serve one connection."""
        requests = request_reader(FRAME_LIMIT_BYTES)
        with contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                for request in requests.feed(data):
                    if answer := self._answer(request):
                        frame = encode([answer])
                        self.answers_bytes.append(len(frame) - 4)
                        writer.write(frame)

    def _answer(self, request):
        if isinstance(request, Hello):
            return welcome(frame_limit_bytes=FRAME_LIMIT_BYTES)
        if isinstance(request, Submit):
            self.counts.append(len(request.submissions))
            return Submitted(request.id, [Created(number, True) for number, _ in enumerate(request.submissions, 1)])
        if isinstance(request, Reserve):
            self.counts.append(request.count)
            numbers = range(1, request.count + 1)
            content = [SubmissionContent(n, 1, bytes(INLINE_BYTES), {"queue": "q" * 64}, False) for n in numbers]
            return Reserved(request.id, 1, 600.0, [grant(number, mask=1) for number in numbers], content)
        return None


@contextlib.asynccontextmanager
async def desk_of(folder, daemon):
    """A desk at this daemon."""
    path = str(folder / "opsq.sock")
    server = await asyncio.start_unix_server(daemon.serve, path)
    async with server, AsyncQueue(path, name="gateway", token="", reconnect_s=None) as queue:
        yield Desk(queue, lambda _: DEFAULTS, no_limit)


async def no_limit(name, wanted):
    """There is room for any number."""


def longest_record(number):
    """A record of which nothing can be longer, and which shares its submission with no other."""
    trace = TraceContext(f"00-{number:032x}-{1:016x}-01", f"vendor={'x' * (TRACESTATE_LIMIT - 7)}")
    return NewRecord("q" * 64, bytes(INLINE_BYTES), 1e8 + number / 8, trace)


def test_records_that_are_too_long_for_one_frame_go_in_several(runtime_dir):
    async def story():
        daemon = Daemon()
        async with desk_of(runtime_dir, daemon) as desk:
            await asyncio.gather(*(desk.post(longest_record(number)) for number in range(1, 41)))
        assert sum(daemon.counts) == 40
        assert max(daemon.counts) >= FRAME_LIMIT_BYTES // (2 * INLINE_BYTES)

    asyncio.run(story())


def test_no_more_records_are_taken_at_once_than_one_answer_has_room_for(runtime_dir):
    async def story():
        daemon = Daemon()
        async with desk_of(runtime_dir, daemon) as desk:
            assert all(await asyncio.gather(*(desk.take("q") for _ in range(40))))
        assert sum(daemon.counts) == 40
        assert FRAME_LIMIT_BYTES // 2 < max(daemon.answers_bytes) <= FRAME_LIMIT_BYTES

    asyncio.run(story())
