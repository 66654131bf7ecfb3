"""Names that one connection has for itself; see `Claim` of the protocol. They live in memory: with the connection they end.

This file must not know what a connection is.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from opsq.errors import NameTaken
from opsq.wire.messages import Claim


class _Held(NamedTuple):
    key: bytes
    holder: Hashable


class Claims:
    """Who has which name."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._names: dict[Hashable, str] = {}

    def take(self, claim: Claim, holder: Hashable) -> None:
        """Give a name to a connection, also away from another one that took it under the same key.

        Raises:
            NameTaken: another has it.
        """
        held = self._held.get(claim.name)
        if held is not None and held.key != claim.key:
            raise NameTaken(f"Another consumer runs under the name {claim.name!r}.")
        if held is not None:
            del self._names[held.holder]
        self._held[claim.name] = _Held(claim.key, holder)
        self._names[holder] = claim.name

    def leave(self, holder: Hashable) -> None:
        """Free the name of a connection that has ended, if it has one."""
        name = self._names.pop(holder, None)
        if name is not None:
            del self._held[name]
