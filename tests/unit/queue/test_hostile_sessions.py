"""Sessions of arbitrary well-formed requests: the engine lives, and what always holds does.

Nobody says what they should come to; `test_state_machine.py` does that for requests that make sense.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from opsq.errors import OpsqError
from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig, tickets_of
from wire_values import values

KINDS = [
    kind for kind in get_args(m.Request) if kind not in {m.Hello, m.Stop, m.Backup, m.Vacuum, m.Check, m.CancelWait}
]
HELD = st.tuples(st.integers(0, 50), st.integers(1, (1 << 64) - 1))
"""Which of the tickets, and which of its chunks."""


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The fields of a message with their types, which take long to find out."""
    return inspect.type_info(kind).fields  # type: ignore[attr-defined,no-any-return]  # a struct


@st.composite
def new_submissions(draw: st.DrawFn, ids: list[int]) -> m.NewSubmission:
    """Submissions with any values, of few chunks."""
    rare = {"delay_s", "not_before_at", "expires_s", "expires_at", "weights"}
    fields = [field for field in fields_of(m.NewSubmission) if field.name not in rare or draw(st.booleans())]
    drawn = {field.name: draw(values(field.type, ids)) for field in fields if field.name != "chunks_count"}
    return m.NewSubmission(chunks_count=draw(st.integers(0, 200) | st.just(1 << 40)), **drawn)


class _Session:
    """What a number of peers do to one engine."""

    def __init__(self, folder: Path, data: st.DataObject) -> None:
        self.rig = Rig(folder, Policy(heartbeat_s=2.0))
        self.data = data
        self.peers = [self.rig.connect(), self.rig.connect()]
        self.submissions = [self.rig.submit(count, metadata={"key": count}) for count in (1, 70, 130)]
        self.tickets = [ticket for peer in self.peers for ticket in self.rig.reserve(peer, 40)]
        self.known = {"HeldChunks": HELD.map(self.held), "NewSubmission": new_submissions(self.submissions)}

    def request(self) -> None:
        """Have any request handled; one in eight holds what SQLite cannot take."""
        peer = self.data.draw(st.sampled_from(self.peers))
        if self.data.draw(st.integers(0, 7)) == 0:
            self.send(peer, m.Submit(self.id(), [m.NewSubmission(self.rig.request_key(), 1, not_before_at=1 << 63)]))
            return
        kind = self.data.draw(st.sampled_from(KINDS))
        drawn = {
            field.name: self.data.draw(values(field.type, self.submissions, self.known))
            for field in fields_of(kind)
            if field.name != "id"
        }
        self.send(peer, kind(id=self.id(), **drawn) if "id" in kind.__struct_fields__ else kind(**drawn))

    def id(self) -> int:
        return next(self.rig.ids)

    def held(self, drawn: tuple[int, int]) -> m.HeldChunks:
        """Some chunks of a ticket, mostly under its own token."""
        number, mask = drawn
        ticket = self.tickets[number % len(self.tickets)]
        return ticket.held(mask=(mask & ticket.granted) or ticket.granted)

    def send(self, peer: Peer, request: m.Request) -> None:
        try:
            self.rig.send(peer, request)
        except OpsqError as error:
            if error.code == "bug":
                raise

    def step(self) -> None:
        """Anything that can happen."""
        what = self.data.draw(st.sampled_from([*["request"] * 8, "commit", "settle", "time", "peer", "full", "crash"]))
        rig = self.rig
        if what == "request":
            self.request()
        elif what == "commit" and rig.engine.has_batch(rig.now):
            rig.commit()
        elif what == "settle":
            rig.settle()
        elif what == "time":
            rig.advance(self.data.draw(st.sampled_from([0.5, 3.0, 20.0])))
        elif what == "full" and rig.engine.has_batch(rig.now):
            rig.fail_commit()
        elif what == "peer":
            rig.disconnect(self.peers.pop(0))
            self.peers.append(rig.connect())
        elif what == "crash":
            rig.crash()
            self.peers = [rig.connect(), rig.connect()]
        self.gather()

    def gather(self) -> None:
        """Keep what was handed out, and drop all other replies."""
        for _, reply in self.rig.told:
            if isinstance(reply, m.Reserved):
                self.tickets += tickets_of(reply)
            if isinstance(reply, m.ErrorReply) and reply.code == "bug":
                assert "OverflowError" in reply.message, reply
        self.rig.told.clear()

    def end(self) -> None:
        """All that always holds, holds, also for who opens the file next; and work goes on."""
        rig = self.rig
        rig.advance(3)
        rig.fold()
        assert rig.broken_rules() == []
        rig.crash()
        rig.advance(3)
        rig.fold()
        assert rig.broken_rules() == []
        peer = rig.connect()
        rig.only(peer, m.Drain(self.id(), True), m.Changed)
        for pause in rig.only(peer, m.ShowRules(self.id()), m.RulesState).pauses:
            rig.only(peer, m.Resume(self.id(), pause.metadata, True), m.Changed)
        for limit in rig.only(peer, m.ShowRules(self.id()), m.RulesState).limits:
            rig.only(peer, m.Unlimit(self.id(), limit.key, limit.value), m.Changed)
        made_id = rig.submit(1)
        [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={made_id})")
        assert rig.complete(peer, ticket.held()) == []
        assert rig.show(made_id).state == "completed"
        rig.close()


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.data())
def test_no_session_of_well_formed_requests_ends_the_engine_or_breaks_what_always_holds(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        session = _Session(Path(folder), data)
        for _ in range(data.draw(st.integers(5, 40))):
            session.step()
        session.end()
