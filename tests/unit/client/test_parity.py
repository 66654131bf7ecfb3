"""The asyncio client has what the blocking one has, by the same names and arguments.

So that whoever knows one knows the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from opsq.client.aio.chunk import AsyncChunk
from opsq.client.aio.consumer import AsyncConsumer
from opsq.client.aio.queue import AsyncQueue
from opsq.client.aio.submission import AsyncSubmission
from opsq.client.sync.chunk import Chunk
from opsq.client.sync.consumer import Consumer
from opsq.client.sync.queue import Queue
from opsq.client.sync.submission import Submission

PAIRS: list[tuple[type, type]] = [
    (Queue, AsyncQueue),
    (Submission, AsyncSubmission),
    (Chunk, AsyncChunk),
    (Consumer, AsyncConsumer),
]

DIFFERENT = {
    "Queue.open": "the embedded queue, which has no event loop",
    "Chunk.described": "what the chunk was made of; the blocking one asks its consumer",
    "Consumer.take": "for loops that are driven from outside, as those of `opsq consume`; an event loop needs none",
    "Consumer.want": "as take",
    "Consumer.poll": "as take",
    "Consumer.fileno": "as take",
    "Consumer.next_poll_s": "as take",
    "Consumer.unsettled_count": "as take",
    "Consumer.reserve": "blocks of chunks by hand: for throughput that a Python event loop does not reach",
    "Consumer.reservations": "as reserve",
    "Consumer.complete_blocks": "as reserve",
    "Consumer.fail_blocks": "as reserve",
    "Consumer.release_blocks": "as reserve",
    "Consumer.reserve_chunks": "chunk by chunk, in several calls at once: for who serves others on an event loop",
    "Consumer.share_chunk": "as reserve_chunks",
    "Chunk.share": "as reserve_chunks",
    "Consumer.reader": "what chunks of this side call",
    "Consumer.describe": "as reader",
    "Consumer.name": "as reader",
    "Consumer.read": "as reader",
    "Consumer.look": "as reader",
    "Consumer.release_chunk": "as reader",
    "Consumer.fail_chunk": "as reader",
    "Consumer.attachment": "as reader",
    "Consumer.complete_chunk": "as reader",
    "Consumer.extend": "as reader",
    "Consumer.run_each_chunk": "an event loop has no jobs and modes: coroutines need no threads and processes",
}
"""What may differ, and why."""


def public(kind: type) -> set[str]:
    """The names that users may use."""
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(function: object) -> Iterator[tuple[str, object, object]]:
    """Name, kind and default of each argument."""
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        yield parameter.name, parameter.kind, parameter.default


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_asyncio_client_has_the_names_of_the_blocking_one(pair: tuple[type, type]):
    blocking, awaited = pair
    apart = {f"{blocking.__name__}.{name}" for name in public(blocking) ^ public(awaited)}
    assert apart <= DIFFERENT.keys()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_arguments_are_the_same_where_names_are(pair: tuple[type, type]):
    """Those that the asyncio client passes on unread, as **options, are left out."""
    blocking, awaited = pair
    for name in public(blocking) & public(awaited):
        ours, theirs = getattr(blocking, name), getattr(awaited, name)
        if not callable(ours) or f"{blocking.__name__}.{name}" in DIFFERENT:
            continue
        known = list(arguments(theirs))
        passed_on = any(kind is inspect.Parameter.VAR_KEYWORD for _, kind, _ in known)
        wanted = [each for each in arguments(ours) if not passed_on or each[0] in {named for named, _, _ in known}]
        assert [each for each in known if not passed_on or each[1] is not inspect.Parameter.VAR_KEYWORD] == [
            each for each in wanted if not passed_on or each[1] is not inspect.Parameter.VAR_KEYWORD
        ], name


def test_every_difference_is_one():
    """An entry that is not needed any more would hide the next difference."""
    by_name = {blocking.__name__: (blocking, awaited) for blocking, awaited in PAIRS}
    for entry in DIFFERENT:
        kind, _, name = entry.partition(".")
        blocking, awaited = by_name[kind]
        assert name in public(blocking) | public(awaited), entry
        if name in public(blocking) & public(awaited):
            assert list(arguments(getattr(blocking, name))) != list(arguments(getattr(awaited, name))), entry
