"""Says which shards of a queue have no part in an answer: each once, to who uses a connection.

It must not decide which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class MissingShards:
    """Told of shards as people know them: `3 (b:7400)`.

    Args:
        say: is given a sentence; None: it is logged.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        self._say = say or _log
        self._named: set[str] = set()

    def __call__(self, shards: Sequence[str]) -> None:
        """Say it of those of which it was not said before."""
        for shard in shards:
            if shard not in self._named:
                self._named.add(shard)
                self._say(f"shard {shard} did not answer: what it has is missing.")


def _log(text: str) -> None:
    import logging

    logging.getLogger("opsq").warning(text)
