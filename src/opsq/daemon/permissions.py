"""What a connection may ask: by its roles, and by what has to be looked at before the engine gets it.

This file must not know tokens; the roles of each request stand in `wire.roles`.
"""

from __future__ import annotations

from functools import cache

from opsq.daemon.audit import AUDITED
from opsq.daemon.tokens_file import TokenEntry
from opsq.errors import NotPermitted
from opsq.wire.messages import Hello, Message, Request, Submit
from opsq.wire.roles import FOLLOWED, OPERATOR, PERMITTED, permitting, role_names

LOCAL = TokenEntry("local", frozenset((OPERATOR,)), b"")
"""Over the Unix socket, file modes decide who may connect, and everybody may do everything."""

_ASIDE = AUDITED | {Hello}
"""Requests that the engine does not handle, that need a look at what is in them, or that are written down."""


@cache
def straight(roles: frozenset[str]) -> frozenset[type[Message]]:
    """The requests that need nothing but roles, and that these roles permit: they go to the engine at once."""
    permitted = frozenset(kind for kind, needed in PERMITTED.items() if needed & roles and kind not in _ASIDE)
    return permitted if Submit in permitted else permitted.difference(FOLLOWED)


def check_permitted(request: Request, access: TokenEntry) -> None:
    """Refuse a request that a token does not permit.

    Raises:
        NotPermitted: as it says.
    """
    for needed in permitting(request):
        if not needed & access.roles:
            raise NotPermitted(
                cause="role_needed",
                request=type(request).__name__,
                needed=role_names(needed),
                token=access.name,
                roles=role_names(access.roles),
            )
