"""The application: all doors behind one way in. Each door is a module with `routes`, and knows no other door."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from opsq.errors import OpsqError
from opsq.gateway import health, metrics, opsqueue, problems
from opsq.gateway.access import Access
from opsq.gateway.api import door as api
from opsq.gateway.bodies import Bodies
from opsq.gateway.context import Context
from opsq.gateway.cross_origin import CrossOrigin
from opsq.gateway.lending import Lending
from opsq.gateway.page import door as page
from opsq.gateway.records.door import Door, Records
from opsq.gateway.traced import Traced

DOORS: tuple[Callable[[Context], list[BaseRoute]], ...] = (
    api.routes,
    page.routes,
    health.routes,
    metrics.routes,
    opsqueue.routes,
)


def make_app(context: Context) -> Starlette:
    """The application of a gateway. Its connections are closed when it ends."""
    records = Records(context)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await context.connections.close()

    return Starlette(
        routes=[*records.routes, *(route for door in DOORS for route in door(context))],
        middleware=[
            *([Middleware(CrossOrigin, origins=context.allow_origins)] if context.allow_origins else []),
            Middleware(Access, exposure=context.exposure, asks_itself=page.owns),
            Middleware(Lending),
            Middleware(Bodies),
            Middleware(Traced),
            Middleware(Door, records=records),
        ],
        exception_handlers={
            OpsqError: problems.opsq_problem,
            HTTPException: problems.http_problem,
            ClientDisconnect: problems.gone,
            Exception: problems.bug_problem,
        },
        lifespan=lifespan,
    )
