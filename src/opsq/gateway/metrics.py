"""What monitoring collects (`/metrics`): the metrics of the daemon, those that Opsqueue names, and those of doors.

It must not know what `opsq metrics` prints as well: `opsq.metrics` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from opsq import metrics
from opsq.gateway.context import Context
from opsq.gateway.exposition import exposed
from opsq.metrics import Family
from opsq.wire.messages import DaemonState, RulesState

_ANSWER_S = 30.0


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""

    async def collect(request: Request) -> Response:
        queue = await context.queue(request)
        link = queue.link
        by = context.metrics_by
        asked = metrics.requests(link.next_id(), link.next_id(), by)
        state = await link.call(asked[0], DaemonState, _ANSWER_S)
        rules = await link.call(asked[1], RulesState, _ANSWER_S)
        families = [*metrics.families(state, rules, by), *_of_opsqueue(state)]
        for collector in context.collectors:
            families += await collector(queue)
        return exposed(request, families)

    return [Route("/metrics", collect)]


def _of_opsqueue(state: DaemonState) -> Iterator[Family]:
    """Those metrics of Opsqueue that the state of the daemon tells, for dashboards and autoscalers made for it."""
    measures = state.measures
    if measures is None:
        return
    events = measures.events
    for name, number, meaning in (
        ("chunks_in_backlog_count", state.total.backlog_count, "opsq_backlog_chunks, as Opsqueue names it."),
        ("reserver_chunks_reserved_count", state.total.reserved_count, "Reserved chunks, as Opsqueue names them."),
        ("consumers_connected_count", measures.consumers_count, "opsq_consumers, as Opsqueue names it."),
        ("chunks_completed_count", events["completed"], "Chunks that were completed since the daemon started."),
        ("chunks_failed_count", events["dead"], "Chunks that died since the daemon started."),
    ):
        yield Family(name, "unknown", meaning, prefix="").add(number)
