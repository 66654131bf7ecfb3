"""Metrics as an answer: the text of Prometheus or of OpenMetrics, whichever is asked for.

It must not know what the metrics are.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from opsq.metrics import Family


class Collected(Collector):
    """Metrics as prometheus-client writes them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the classes that prometheus-client has for them."""
        for family in self._families:
            metric = Metric(family.name, family.meaning, family.kind, family.unit)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric


def exposed(request: Request, families: Iterable[Family]) -> Response:
    """The answer to a request for metrics."""
    try:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
    except TypeError:  # of a version that is none
        encode, media_type = choose_encoder("")
    return Response(encode(Collected(families)), headers={"Content-Type": media_type, "Vary": "Accept"})
