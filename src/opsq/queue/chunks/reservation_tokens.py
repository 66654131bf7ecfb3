"""The proof that chunks were handed out: a keyed hash over what was granted to whom.

Must not know whether it still holds.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

import apsw

from opsq.store import meta
from opsq.wire.messages import HeldChunks

_COVERED = Struct(">5Q")
"""What the hash covers: five numbers below 2**64."""


class ReservationTokens:
    """Makes and checks tokens; the key is stored in the file, so they outlive restarts."""

    def __init__(self, reader: apsw.Connection) -> None:
        self._keyed = blake2b(digest_size=8, key=meta.secret(reader))

    def mac(self, submission_id: int, block: int, reservation_id: int, attempt: int, granted: int) -> int:
        """The keyed hash of a token, 64 bits."""
        keyed = self._keyed.copy()
        keyed.update(_COVERED.pack(submission_id, block, reservation_id, attempt, granted))
        return int.from_bytes(keyed.digest(), "big")

    def is_genuine(self, held: HeldChunks) -> bool:
        """Whether the token was made here for these chunks, however long ago."""
        if held.mask & ~held.granted:
            return False
        return held.mac == self.mac(held.submission_id, held.block, held.reservation_id, held.attempt, held.granted)
