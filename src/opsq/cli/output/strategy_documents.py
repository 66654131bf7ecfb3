"""Fills the JSON documents about strategies and rules from what the daemon says; their shapes stand in `json_shapes`."""

from __future__ import annotations

from opsq.cli.output.json_documents import instant
from opsq.cli.output.strategy_shapes import (
    ArmShape,
    ExplainDocument,
    LimitShape,
    NodeShape,
    OfferShape,
    PauseShape,
    RulesDocument,
    StatementShape,
    StepShape,
    WeightShape,
    WorkDocument,
)
from opsq.wire.messages import Arm, Explained, RulesState, WorkExplained


def explain_document(reply: Explained, tree: list[NodeShape], *, is_running: bool) -> ExplainDocument:
    """An explanation as JSON."""
    offers = [OfferShape(str(one.submission_id), one.index, one.attempt, one.metadata, one.arm) for one in reply.offers]
    return ExplainDocument(reply.strategy, tree, [_arm(arm) for arm in reply.arms], offers, reply.notes, is_running)


def work_document(reply: WorkExplained, *, is_running: bool) -> WorkDocument:
    """Why work is not running, as JSON."""
    return WorkDocument(str(reply.submission_id), reply.index, reply.verdict, reply.reasons, is_running)


def rules_document(state: RulesState) -> RulesDocument:
    """All rules as JSON."""
    return RulesDocument(
        [PauseShape(one.metadata, one.by_operator, one.by_name, instant(one.paused_at) or "") for one in state.pauses],
        [
            LimitShape(
                one.key,
                one.value,
                one.concurrency,
                one.rate_per_s,
                one.burst,
                one.reserved_count,
                one.busiest,
                one.by_name,
                instant(one.limited_at) or "",
                one.rate_span_s,
            )
            for one in state.limits
        ],
        [WeightShape(one.key, one.value, one.weight) for one in state.weights],
    )


def _arm(arm: Arm) -> ArmShape:
    statements = [
        StatementShape(each.purpose, each.sql, [StepShape(step.depth, step.detail, step.verdict) for step in each.plan])
        for each in arm.statements
    ]
    inner = [_arm(one) for one in arm.inner]
    return ArmShape(arm.order, arm.why, arm.filters, arm.gates, statements, arm.front, inner, arm.analysis)
