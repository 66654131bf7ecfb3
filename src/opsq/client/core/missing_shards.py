"""Says which shards of a queue have no part in an answer: each once, to who uses a connection.

It must not decide which they are.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.wire.messages import ShardsMissing

_EFFECTS = {
    "missing": "what it has is not shown",
    "unchanged": "nothing was changed there",
    "rules": "it gets the rules when it is back",
    "waiting": "it is waited for",
}


class MissingShards:
    """Told of shards as people know them: `3 (b:7400)`.

    Args:
        say: is given a sentence; None: it is logged.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        self._say = say or _log
        self._named: set[tuple[str, str]] = set()

    def __call__(self, push: ShardsMissing) -> None:
        """Say it of those of which it was not said before."""
        for shard in push.shards:
            if (shard, push.effect) not in self._named:
                self._named.add((shard, push.effect))
                self._say(f"shard {shard} did not answer: {_EFFECTS[push.effect]}.")


def _log(text: str) -> None:
    import logging

    logging.getLogger("opsq").warning(text)
