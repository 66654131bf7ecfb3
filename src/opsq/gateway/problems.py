"""Errors as problem documents (RFC 9457): the status of each error, and a body with the code and hint of opsq.

It must not word anything: errors do.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from opsq import errors
from opsq.errors import OpsqError
from opsq.gateway.bodies import TooLong
from opsq.gateway.connections import UnknownToken
from opsq.printable import printable

STATUSES: dict[type[OpsqError], int] = {
    errors.ChunkTooLarge: 413,
    TooLong: 413,
    errors.UsageError: 400,
    errors.NotFound: 404,
    errors.Unreachable: 503,
    errors.Conflict: 409,
    errors.StorageFull: 507,
    errors.TooManyConnections: 503,
    errors.NoRoom: 429,
    errors.Refused: 503,
    errors.NotPermitted: 403,
    UnknownToken: 401,
    errors.VersionMismatch: 502,
    errors.WorkFailed: 422,
    errors.TimedOut: 504,
    OpsqError: 500,
}
"""The status of each class of errors, and of what derives from it and is not named itself."""

_NO_DISK = frozenset({"disk", "disk_for_content"})
"""Why there is no room, if it is not the backlog."""

MEDIA_TYPE = "application/problem+json"
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="opsq"'}
_LATER = {"Retry-After": "5"}
"""In seconds: a daemon that is being restarted is back by then."""


_NEWER = {413: "Content Too Large", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}


def status_of(error: OpsqError) -> int:
    """The status that says what happened."""
    if error.cause in _NO_DISK:
        return 507
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def phrase(status: int) -> str:
    """What a status is called in RFC 9110, whatever Python calls it: before 3.13 some have older names."""
    return _NEWER.get(status) or HTTPStatus(status).phrase


def problem(status: int, code: str, detail: str, hint: str = "", headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem document.

    Args:
        code: as in `--json`; "http" for what HTTP itself has refused.
        detail: what happened, and to what.
        hint: what to do next; may be empty.
    """
    body = {
        "type": "about:blank",
        "title": phrase(status),
        "status": status,
        "detail": printable(detail, "\n"),
        "code": code,
    }
    if hint:
        body["hint"] = printable(hint, "\n")
    headers = {401: _CHALLENGE, 503: _LATER}.get(status, {}) | (headers or {})
    return JSONResponse(body, status, headers, MEDIA_TYPE)


async def opsq_problem(_: Request, error: Exception) -> Response:
    """The answer to a request that opsq refused."""
    error = cast(OpsqError, error)
    status = status_of(error)
    is_full = status == 429 and error.cause != "over_backlog"  # what never fits needs no second try
    return problem(status, error.code, error.message, error.hint, _LATER if is_full else None)


async def http_problem(_: Request, error: Exception) -> Response:
    """The answer to a request that HTTP or the framework refused."""
    error = cast(HTTPException, error)
    return problem(error.status_code, "http", error.detail, headers=dict(error.headers or {}))


async def gone(_: Request, __: Exception) -> Response:
    """The answer to a client that has gone away before the end of its request; nobody hears it."""
    return Response(status_code=400)


async def bug_problem(_: Request, error: Exception) -> Response:
    """The answer to a request that met a bug; the log has its traceback."""
    bug = errors.Bug(
        f"This is a bug in opsq ({type(error).__name__}).",
        hint="Its traceback is on the standard error of the gateway; please report it.",
    )
    return problem(500, bug.code, bug.message, bug.hint)
