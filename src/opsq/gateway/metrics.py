"""What monitoring collects (`/metrics`), in the text of Prometheus or of OpenMetrics, whichever is asked for.

It must not know what the metrics are: `opsq.metrics` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from opsq import metrics
from opsq.gateway.context import Context
from opsq.wire.messages import DaemonState, RulesState

_ANSWER_S = 30.0


class Collected(Collector):
    """Metrics as prometheus-client writes them."""

    def __init__(self, families: Iterable[metrics.Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the classes that prometheus-client has for them."""
        for family in self._families:
            metric = Metric(family.name, family.meaning, family.kind, family.unit)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""

    async def collect(request: Request) -> Response:
        link = (await context.queue(request)).link
        by = context.metrics_by
        asked = metrics.requests(link.next_id(), link.next_id(), by)
        state = await link.call(asked[0], DaemonState, _ANSWER_S)
        rules = await link.call(asked[1], RulesState, _ANSWER_S)
        try:
            encode, media_type = choose_encoder(request.headers.get("accept", ""))
        except TypeError:  # of a version that is none
            encode, media_type = choose_encoder("")
        content = encode(Collected(metrics.families(state, rules, by)))
        return Response(content, headers={"Content-Type": media_type, "Vary": "Accept"})

    return [Route("/metrics", collect)]
