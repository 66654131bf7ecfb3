"""Who may come in: the token of a request, and requests that pages of other sites have a browser make.

Without a token only this machine is served. What a token permits, the daemon decides.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from opsq.gateway.problems import problem

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Served to everybody: they say only whether there is a daemon."""
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""What a browser says of requests that a page of the gateway, or a person, has it make; another port is another page.

It names no origin where a page only embeds or links to something, as an image.
"""


class Exposure(Enum):
    """Who can reach a gateway, by what it listens on."""

    UNIX = "unix"
    """The mode of the socket says who may use it."""
    LOOPBACK = "loopback"
    """Everybody on this machine may use it, but no page of another site that a browser shows here."""
    NETWORK = "network"
    """Each request needs a token."""


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a host, as in a URL, is this machine by name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_of(connection: HTTPConnection) -> str | None:
    """The token that a request has shown; None: it needs none, and may do what the gateway may."""
    token: str | None = connection.scope["opsq.token"]
    return token


class Access:
    """Middleware that lets requests in.

    Args:
        exposure: who can reach the gateway, which decides whether a token is needed.
        asks_itself: which paths are of a door that asks for a token by itself.
    """

    def __init__(self, app: ASGIApp, exposure: Exposure, asks_itself: Callable[[str], bool]) -> None:
        self._app = app
        self._asks_itself = asks_itself
        self._exposure = exposure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        host, authorization, origins, sites = _shown(scope)
        scope["opsq.token"] = token = _bearer(authorization)
        refusal = None
        if origins and not (all(_is_page_of(each, host or "") for each in origins) or _is_let_in(scope)):
            refusal = problem(403, "http", f"Pages of {origins[0]} may not use this gateway.")
        elif not (sites <= _OWN_SITES or _is_let_in(scope) or self._is_link(scope)):
            refusal = problem(403, "http", "Pages of other sites may not use this gateway.")
        elif token is None and self._exposure is Exposure.LOOPBACK and not _is_own_name(host):
            refusal = problem(403, "http", f"Without a token this gateway does not answer as {host}.", "Use localhost.")
        elif token is None and self._exposure is Exposure.NETWORK and not self._is_open(scope["path"]):
            hint = "Send a token of the daemon: `Authorization: Bearer TOKEN`."
            refusal = problem(401, "not_permitted", "A token is needed.", hint)
        await (refusal or self._app)(scope, receive, send)

    def _is_link(self, scope: Scope) -> bool:
        """Whether a browser goes to a page of the gateway itself, which shows nothing to the page that links to it."""
        is_page = scope["type"] == "http" and self._asks_itself(scope["path"])
        return is_page and (b"sec-fetch-dest", b"document") in scope["headers"]

    def _is_open(self, path: str) -> bool:
        return path in _OPEN_PATHS or self._asks_itself(path)


def _shown(scope: Scope) -> tuple[str | None, str, list[str], set[bytes]]:
    """What a request names: the host, its authorization, and the origins and sites of pages that have it made."""
    host, authorization = None, ""
    origins: list[str] = []
    sites: set[bytes] = set()
    for name, value in scope["headers"]:
        if name == b"host" and host is None:
            host = value.decode("latin-1")
        elif name == b"authorization" and not authorization:
            authorization = value.decode("latin-1")
        elif name == b"origin":
            origins.append(value.decode("latin-1"))
        elif name == b"sec-fetch-site":
            sites.add(value)
    return host, authorization, origins, sites


def _is_let_in(scope: Scope) -> bool:
    return bool(scope.get("opsq.is_origin_allowed"))


@lru_cache(maxsize=64)
def _is_own_name(host: str | None) -> bool:
    """Whether a request names this machine: a name of another site may have been made to point here."""
    try:
        return is_loopback(urlsplit(f"//{'localhost' if host is None else host}").hostname or "")
    except ValueError:
        return False


def _is_page_of(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _bearer(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
