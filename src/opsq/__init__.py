r"""opsq: a durable batch-work queue for one machine or many.

The names in `__all__` are all that is promised; each is loaded when it is first used, so that importing the package
costs next to nothing.

    with opsq.connect() as queue:
        submission = queue.submit([b"a\n", b"b\n"])
        for chunk in queue.consume():
            chunk.complete(chunk.data.upper())
        print(list(submission.results()))
"""

from __future__ import annotations

from opsq.version import __version__

TYPE_CHECKING = False  # type checkers take it for true; importing typing for it would cost more than all the rest
if TYPE_CHECKING:
    from opsq import errors, outbox, serialisation, strategy, testing, types
    from opsq.client.aio.chunk import AsyncChunk, AsyncReservation
    from opsq.client.aio.consumer import AsyncConsumer
    from opsq.client.aio.queue import AsyncQueue, connect_async
    from opsq.client.aio.submission import AsyncSubmission
    from opsq.client.core.follow_ups import FollowUp
    from opsq.client.core.outcome import Bury, Done, Retry, Tally
    from opsq.client.sync.chunk import Chunk, Reservation
    from opsq.client.sync.consumer import Consumer
    from opsq.client.sync.producer import Producer
    from opsq.client.sync.queue import Queue, connect
    from opsq.client.sync.result_stream import ResultStream
    from opsq.client.sync.submission import Submission
    from opsq.queue.policy import Policy
    from opsq.wire.messages import Backoff

__all__ = [
    "AsyncChunk",
    "AsyncConsumer",
    "AsyncQueue",
    "AsyncReservation",
    "AsyncSubmission",
    "Backoff",
    "Bury",
    "Chunk",
    "Consumer",
    "Done",
    "FollowUp",
    "Policy",
    "Producer",
    "Queue",
    "Reservation",
    "ResultStream",
    "Retry",
    "Submission",
    "Tally",
    "__version__",
    "connect",
    "connect_async",
    "errors",
    "outbox",
    "serialisation",
    "strategy",
    "testing",
    "types",
]

_PLACES = {
    "AsyncChunk": "opsq.client.aio.chunk",
    "AsyncConsumer": "opsq.client.aio.consumer",
    "AsyncQueue": "opsq.client.aio.queue",
    "AsyncReservation": "opsq.client.aio.chunk",
    "AsyncSubmission": "opsq.client.aio.submission",
    "Backoff": "opsq.wire.messages",
    "Bury": "opsq.client.core.outcome",
    "Chunk": "opsq.client.sync.chunk",
    "Consumer": "opsq.client.sync.consumer",
    "Done": "opsq.client.core.outcome",
    "FollowUp": "opsq.client.core.follow_ups",
    "Policy": "opsq.queue.policy",
    "Producer": "opsq.client.sync.producer",
    "Queue": "opsq.client.sync.queue",
    "Reservation": "opsq.client.sync.chunk",
    "ResultStream": "opsq.client.sync.result_stream",
    "Retry": "opsq.client.core.outcome",
    "Submission": "opsq.client.sync.submission",
    "Tally": "opsq.client.core.outcome",
    "connect": "opsq.client.sync.queue",
    "connect_async": "opsq.client.aio.queue",
}
_MODULES = ("errors", "outbox", "serialisation", "strategy", "testing", "types")


def _load(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"opsq.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'opsq' has no attribute {name!r}")
    found: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:  # which would take any misspelt name for one of the package
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(__all__)
