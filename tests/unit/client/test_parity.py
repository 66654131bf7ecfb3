"""The asyncio client has what the blocking one has, by the same names and arguments.

So that whoever knows one knows the other.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator

import pytest

import opsq.types
from opsq.client.aio.chunk import AsyncChunk, AsyncReservation
from opsq.client.aio.consumer import AsyncConsumer
from opsq.client.aio.queue import AsyncQueue
from opsq.client.aio.submission import AsyncSubmission
from opsq.client.aio.verdict_sender import AsyncVerdictSender
from opsq.client.core.consume_options import AsyncRunOptions, ConsumerOptions, RunOptions
from opsq.client.sync.chunk import Chunk, Reservation
from opsq.client.sync.consumer import Consumer
from opsq.client.sync.queue import Queue
from opsq.client.sync.submission import Submission
from opsq.client.sync.verdict_sender import VerdictSender

PAIRS: list[tuple[type, type]] = [
    (Queue, AsyncQueue),
    (Submission, AsyncSubmission),
    (Chunk, AsyncChunk),
    (Consumer, AsyncConsumer),
    (Reservation, AsyncReservation),
]

DIFFERENT = {
    "Queue.open": "the embedded queue, which has no event loop",
    "Chunk.described": "what the chunk was made of; the blocking one asks its consumer",
    "Consumer.poll": "for loops over selectors, as that of `opsq consume`; an event loop needs none",
    "Consumer.fileno": "as poll",
    "Consumer.next_poll_s": "as poll",
    "Consumer.reserve_chunks": "chunk by chunk, in several calls at once: for who serves others on an event loop",
    "Consumer.share_chunk": "as reserve_chunks",
    "Chunk.share": "as reserve_chunks",
    "Consumer.reader": "what chunks of this side call",
    "Consumer.read": "as reader",
    "Consumer.look": "as reader",
    "Consumer.attachment": "as reader",
    "Consumer.extend": "as reader",
}
"""What may differ, and why."""
FOR_PROCESSES = RunOptions.__annotations__.keys() - AsyncRunOptions.__annotations__.keys()
"""What only a run in processes of its own, by signals of its own, can heed: an event loop belongs to its program."""


def public(kind: type) -> set[str]:
    """The names that users may use."""
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(function: object) -> Iterator[tuple[str, object, object, object]]:
    """Name, kind, default and type of each argument; keywords that are typed by a record are its fields."""
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        of_record = re.fullmatch(r"Unpack\[(?:\w+\.)?(\w+)\]", str(parameter.annotation))
        if parameter.kind is not parameter.VAR_KEYWORD or of_record is None:
            yield parameter.name, parameter.kind, parameter.default, written(parameter.annotation)
            continue
        for name, kind in typing.get_type_hints(getattr(opsq.types, of_record[1])).items():
            yield name, parameter.KEYWORD_ONLY, None, kind


def written(annotation: object) -> str:
    """A type as the blocking client writes it; a packed program is for processes."""
    return str(annotation).replace("new_submission.", "").replace("Async", "").replace(" | Program", "")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_asyncio_client_has_the_names_of_the_blocking_one(pair: tuple[type, type]):
    blocking, awaited = pair
    apart = {f"{blocking.__name__}.{name}" for name in public(blocking) ^ public(awaited)}
    assert apart <= DIFFERENT.keys()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_arguments_are_the_same_where_names_are(pair: tuple[type, type]):
    """Also their defaults and types."""
    blocking, awaited = pair
    for name in public(blocking) & public(awaited):
        ours, theirs = getattr(blocking, name), getattr(awaited, name)
        if not callable(ours) or f"{blocking.__name__}.{name}" in DIFFERENT:
            continue
        wanted = [each for each in arguments(ours) if not (name.startswith("run_each_") and each[0] in FOR_PROCESSES)]
        assert list(arguments(theirs)) == wanted, name


def test_records_of_options_are_the_keywords_that_are_taken():
    """They are written down once more where they have defaults."""
    for record, function in (
        (ConsumerOptions, VerdictSender.__init__),
        (ConsumerOptions, AsyncVerdictSender.__init__),
        (RunOptions, Consumer.run_each_chunk),
        (AsyncRunOptions, AsyncConsumer.run_each_chunk),
    ):
        taken = {name: kind for name, where, _, kind in arguments(function) if where is inspect.Parameter.KEYWORD_ONLY}
        taken.pop("is_polled", None)
        assert taken == {name: kind.__forward_arg__ for name, kind in record.__annotations__.items()}


def test_every_difference_is_one():
    """An entry that is not needed any more would hide the next difference."""
    by_name = {blocking.__name__: (blocking, awaited) for blocking, awaited in PAIRS}
    for entry in DIFFERENT:
        kind, _, name = entry.partition(".")
        blocking, awaited = by_name[kind]
        assert name in public(blocking) | public(awaited), entry
        if name in public(blocking) & public(awaited):
            assert list(arguments(getattr(blocking, name))) != list(arguments(getattr(awaited, name))), entry
