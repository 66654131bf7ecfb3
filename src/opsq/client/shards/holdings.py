"""What a client holds of one shard, to be reclaimed when the connection to that shard is made anew.

It does no I/O. Leases are not in it: they outlive connections by themselves, and may end over another one.
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.wire.messages import ChunkMask, HeldChunks, Refusal, Reserved


class _Part:
    """Chunks that were granted together: those that are still held, and those of them that were started."""

    __slots__ = ("held", "started", "token")

    def __init__(self, token: HeldChunks, held: int) -> None:
        self.token = token
        self.held = held
        self.started = 0


class Holdings:
    """The chunks of one shard that were handed to this client."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], dict[int, _Part]] = {}  # by what signs a token

    def granted(self, reply: Reserved) -> None:
        """The client is given these chunks."""
        for grant in reply.grants:
            token = HeldChunks.of_grant(reply.reservation_id, grant)
            self._enter(token, token.granted)

    def reclaimed(self, held: Iterable[HeldChunks], refusals: Iterable[Refusal]) -> None:
        """The client holds these chunks since it had another router, but for what is refused."""
        for token in held:
            if not self.holds(token):
                self._enter(token, token.mask)
        self.ended(ChunkMask(one.submission_id, one.block, one.mask) for one in refusals)

    def holds(self, chunks: HeldChunks) -> bool:
        """Whether the client was given these chunks here, and has not ended with them."""
        part = self._blocks.get((chunks.submission_id, chunks.block), {}).get(chunks.mac)
        return part is not None and bool(part.held & chunks.mask)

    def started(self, chunks: Iterable[ChunkMask]) -> None:
        """The client works on these chunks."""
        for chunk in chunks:
            for part in self._blocks.get((chunk.submission_id, chunk.block), {}).values():
                part.started |= chunk.mask & part.held

    def ended(self, held: Iterable[HeldChunks | ChunkMask]) -> None:
        """The client holds these chunks no more."""
        for chunks in held:
            place = (chunks.submission_id, chunks.block)
            parts = self._blocks.get(place, {})
            macs = list(parts) if isinstance(chunks, ChunkMask) else [chunks.mac] if chunks.mac in parts else []
            for mac in macs:
                part = parts[mac]
                part.held &= ~chunks.mask
                part.started &= ~chunks.mask
                if not part.held:
                    del parts[mac]
            if not parts:
                self._blocks.pop(place, None)

    def told(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        """What to reclaim, and what of it was started."""
        held: list[HeldChunks] = []
        started: list[ChunkMask] = []
        for (submission_id, block), parts in self._blocks.items():
            for part in parts.values():
                token = part.token
                held.append(
                    HeldChunks(
                        submission_id, block, part.held, token.reservation_id, token.attempt, token.granted, token.mac
                    )
                )
                if part.started:
                    started.append(ChunkMask(submission_id, block, part.started))
        return held, started

    def _enter(self, token: HeldChunks, held: int) -> None:
        self._blocks.setdefault((token.submission_id, token.block), {})[token.mac] = _Part(token, held)
