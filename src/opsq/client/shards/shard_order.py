"""In which order shards are asked for a place: the same for everybody who knows the same shards.

Rendezvous hashing (Thaler and Ravishankar, 1996): each shard draws a number for a value, and the highest comes first.
A shard that is added takes values only for itself; one that is removed leaves the order of the others as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def rendezvous(value: int | str | bytes, shards: Iterable[int]) -> list[int]:
    """The numbers of shards in the order for a value; 1 and "1" are two values."""
    if isinstance(value, bytes):
        seed = b"b" + value
    else:
        seed = (b"i%d" % value) if isinstance(value, int) else b"s" + value.encode()

    def draw(number: int) -> tuple[bytes, int]:
        return blake2b(seed, digest_size=8, salt=number.to_bytes(2, "big")).digest(), number

    return sorted(shards, key=draw, reverse=True)
