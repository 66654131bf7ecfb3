"""Each field of each request at the ends of its range and beyond: the engine survives the one and never sees the other.

Embedded, where nothing but the types stands between a caller and the engine; `faults/test_frames.py` asks a daemon.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from opsq.client.embedded import EmbeddedEngine, EmbeddedWire
from opsq.errors import BY_CODE
from opsq.wire import messages as m
from wire_values import Variant, unbounded, variants

REQUESTS: dict[str, type[m.Message]] = {kind.__name__: kind for kind in get_args(m.Request)}

_numbers = itertools.count(1)


class Asker:
    """One connection, and what makes requests meaningful to its engine."""

    def __init__(self, wire: EmbeddedWire) -> None:
        self.wire = wire
        self.known: dict[str, Callable[[], Any]] = {
            "when": lambda: "@daily",
            "id": lambda: next(_numbers),
            "version": lambda: m.VERSION,
            "request_key": lambda: os.urandom(16),
            "metadata": lambda: {"key": 1},
            "strategy": lambda: "OldestFirst",
            "states": lambda: ["open"],
            "events": lambda: ["completed"],
            "submission_id": lambda: self.submit().submission_id,
            "HeldChunks": self.hold,
            "rate_per_s": lambda: 1.0,
            "by_operator": lambda: True,
        }

    def ask(self, request: m.Request) -> list[m.Reply]:
        self.wire.send([request])
        return self._await(getattr(request, "id", 0))

    def _await(self, request_id: int) -> list[m.Reply]:
        """The replies to a request, which may come behind those to later ones."""
        found: list[m.Reply] = []
        while not found:
            found += [reply for reply in self.wire.receive(60) if getattr(reply, "id", None) == request_id]
        return found

    def submit(self) -> m.Created:
        [reply] = self.ask(m.Submit(next(_numbers), [m.NewSubmission(os.urandom(16), 2, metadata={"key": 1})]))
        assert isinstance(reply, m.Submitted)
        return reply.created[0]

    def hold(self) -> list[Any]:
        """A chunk that is held under a token of ours, as an array."""
        number = self.submit().submission_id
        [reply] = self.ask(m.Reserve(next(_numbers), 1, f"SelectOnly(submission={number})"))
        assert isinstance(reply, m.Reserved)
        [grant] = reply.grants
        return [number, grant.block, grant.mask, reply.reservation_id, grant.attempt, grant.mask, grant.mac]

    def answers(self, kind: type[m.Message], variant: Variant) -> list[m.Reply]:
        """What the engine says; a call that waits is called back."""
        self.wire.send([msgspec.Raw(variant.content)])  # type: ignore[list-item]  # only so it may be what no type allows
        request_id = 0
        if "id" in kind.__struct_fields__:
            request_id = msgspec.msgpack.decode(variant.content)[1]
            self.wire.send([m.CancelWait(request_id)])
        else:
            self.wire.send([m.Heartbeat(0)])
        return [reply for reply in self._await(request_id) if reply != m.Alive(0)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tmp_path, None, is_durable=False)
    yield engine
    engine.close()


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_field_of_a_request_has_bounds(name: str) -> None:
    """Integers, floats, texts, bytes, arrays and maps, at any depth."""
    assert list(unbounded(inspect.type_info(REQUESTS[name]), name)) == []


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_extremes_of_every_field_are_served_and_what_is_beyond_is_refused_by_name(
    engine: EmbeddedEngine, name: str
) -> None:
    """Served or refused: never a bug, never the end of the engine."""
    kind = REQUESTS[name]
    with_ids = "id" in kind.__struct_fields__
    asker = Asker(engine.open_wire())
    for variant in variants(kind, asker.known):
        replies = [reply for reply in asker.answers(kind, variant) if not isinstance(reply, m.Revoked)]
        codes = [reply.code for reply in replies if isinstance(reply, m.ErrorReply)]
        assert "bug" not in codes, (variant, replies)
        assert set(codes) <= set(BY_CODE)
        assert bool(replies) == with_ids, (variant, replies)
        if with_ids and not variant.is_possible:
            [refusal] = replies
            assert isinstance(refusal, m.ErrorReply), (variant, refusal)
            assert refusal.code == "usage"
            assert variant.field in refusal.error().message
        else:
            causes = [reply.cause for reply in replies if isinstance(reply, m.ErrorReply)]
            assert "impossible_field" not in causes, (variant, replies)
    asker.submit()
    asker.wire.close()
    [checked] = Asker(engine.open_wire()).ask(m.Check(7))
    assert checked == m.Checked(7, [])
