"""Names that only one connection may hold at a time (`Claim` in the protocol).

Kept in memory, and freed with the connection.

This file must not know what a connection is.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from opsq.errors import NameTaken
from opsq.wire.messages import Claim


class _Owner(NamedTuple):
    key: bytes
    holder: Hashable


class Claims:
    """The claimed names and their holders."""

    def __init__(self) -> None:
        self._held: dict[str, _Owner] = {}
        self._names: dict[Hashable, str] = {}

    def take(self, claim: Claim, holder: Hashable) -> None:
        """Assign a name to a connection, taking it over from one that claimed it with the same key.

        Raises:
            NameTaken: it is claimed with another key.
        """
        held = self._held.get(claim.name)
        if held is not None and held.key != claim.key:
            raise NameTaken(f"Another consumer is running under the name {claim.name!r}.")
        if held is not None:
            del self._names[held.holder]
        self._held[claim.name] = _Owner(claim.key, holder)
        self._names[holder] = claim.name

    def leave(self, holder: Hashable) -> None:
        """Free the name of a closed connection, if it has one."""
        name = self._names.pop(holder, None)
        if name is not None:
            del self._held[name]
