"""The JSON documents about strategies, rules, and why work is not running.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from opsq.documents.shape import Shape
from opsq.strategy import explain as strategies
from opsq.strategy.text import parse

if TYPE_CHECKING:
    from opsq.wire.messages import Explained, RulesState


class StepShape(Shape):
    """One step of a query plan, nested `depth` deep; `verdict` says what it means."""

    depth: int
    detail: str
    verdict: str


class StatementShape(Shape):
    """A statement that an arm runs, and its plan."""

    purpose: str
    sql: str
    plan: list[StepShape]


class ArmShape(Shape):
    """One arm of a strategy; `inner` are the arms within one value of the key of `Fair`; `analysis` needs --analyze."""

    order: str
    why: str
    filters: list[str]
    gates: list[str]
    statements: list[StatementShape]
    front: dict[str, int | float | str | bool | None]
    inner: list[ArmShape]
    analysis: dict[str, int | float | str | bool | dict[str, int]]


class NodeShape(Shape):
    """One node of the tree of a strategy, `depth` deep, and its rule in words."""

    depth: int
    node: str
    rule: str


class OfferShape(Shape):
    """A chunk that would be handed out, and the number of the arm (from 1) that gives it."""

    submission_id: str
    index: int
    attempt: int
    metadata: dict[str, int | str]
    arm: int


class ExplainDocument(Shape):
    """`opsq explain STRATEGY`. `strategy` is canonical; `offers` need --analyze; `is_running`: a daemon answered."""

    strategy: str
    tree: list[NodeShape]
    arms: list[ArmShape]
    offers: list[OfferShape]
    notes: list[str]
    is_running: bool

    @classmethod
    def from_reply(cls, reply: Explained, *, is_running: bool) -> Self:
        """An explained strategy; the tree is made here, of its text."""
        return cls.from_message(
            reply,
            tree=[NodeShape(*node) for node in strategies.outline(parse(reply.strategy))],
            arms=msgspec.convert(reply.arms, list[ArmShape], from_attributes=True),
            offers=[OfferShape.from_message(offer) for offer in reply.offers],
            is_running=is_running,
        )


class WorkDocument(Shape):
    """`opsq explain ID`. `verdict` is one word, `reasons` are sentences, the first of which is the headline."""

    submission_id: str
    index: int | None
    verdict: str
    reasons: list[str]
    is_running: bool


class PauseShape(Shape):
    """A pause of all submissions that have every pair; no pairs: of everything."""

    metadata: dict[str, int | str]
    by_operator: bool
    by: str
    paused_at: str


class LimitShape(Shape):
    """A limit on one pair, or (`value` null) each value of the key; `reserved`: of the busiest, null: not counted."""

    key: str
    value: int | str | None
    concurrency: int | None
    rate_per_s: float | None
    burst: int | None
    reserved: int | None
    busiest: int | str | None
    by: str
    limited_at: str
    rate_span_s: float


class WeightShape(Shape):
    """The weight of a value in `Fair`."""

    key: str
    value: int | str
    weight: float


class RulesDocument(Shape):
    """`opsq limits`."""

    pauses: list[PauseShape]
    limits: list[LimitShape]
    weights: list[WeightShape]

    @classmethod
    def from_state(cls, state: RulesState) -> Self:
        """All rules as the daemon lists them."""
        return cls(
            [PauseShape.from_message(pause) for pause in state.pauses],
            [LimitShape.from_message(limit) for limit in state.limits],
            [WeightShape.from_message(weight) for weight in state.weights],
        )
