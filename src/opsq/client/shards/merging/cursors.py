"""Where a listing over shards goes on: the place at each shard, behind the one number that a client is given for it.

It must not know what a place at a shard is.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from opsq.errors import UsageError
from opsq.wire import messages as m

HANDLES_KEPT = 1_000

Places = dict[int, Any]
"""By shard that has more, where it goes on; None: at its start."""

_LEAST = 1 << 62
"""Above all that a daemon counts."""


class Cursors:
    """The places that clients of one router may still ask for: the newest ones.

    Args:
        first: the first number; no other router should give the same ones, as a client may have outlived it.
    """

    def __init__(self, first: int | None = None) -> None:
        self._numbers = itertools.count(_LEAST + secrets.randbits(60) if first is None else first)
        self._known: dict[int, tuple[type[m.Message], Places]] = {}

    def number(self, kind: type[m.Message], places: Places) -> int | None:
        """The number under which a request of this kind goes on there; None: no shard has more."""
        if not places:
            return None
        number = next(self._numbers)
        self._known[number] = (kind, places)
        if len(self._known) > HANDLES_KEPT:
            del self._known[next(iter(self._known))]
        return number

    def places(self, kind: type[m.Message], number: int) -> Places:
        """Where the shards go on.

        Raises:
            UsageError: that number was not given out for such requests, or too long ago.
        """
        known_kind, places = self._known.get(number, (None, {}))
        if known_kind is not kind:
            raise UsageError(
                f"A list over several shards cannot go on after {number}: each shard counts for itself.",
                hint="Start the list again, or ask one shard alone: --address with its own address.",
            )
        return places
