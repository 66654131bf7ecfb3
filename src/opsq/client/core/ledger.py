"""What a consumer holds: chunks that were granted, which of them are being worked on, and what was taken away.

This file does no I/O, starts no thread and takes no lock: blocking and asyncio consumers drive the same ledger, one
call at a time. Everything is counted in blocks and masks; a chunk has no object of its own here. Verdicts are collected
in verdict_batch.py.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

from opsq.client.core.held_block import HeldBlock, Lost
from opsq.ids import SubmissionId, mask_indexes
from opsq.wire.messages import ChunkMask, Completed, HeldChunks, Refusal, Reply, Reserved, Revoked, SubmissionContent

_KNOWN_LIMIT = 20_000


class Ledger:
    """The grants of one consumer."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], list[HeldBlock]] = {}
        self._ready: deque[HeldBlock] = deque()
        self._unreported: list[HeldBlock] = []
        self._known: dict[int, SubmissionContent] = {}
        self._lengths: Counter[float] = Counter()
        self.ready_count = 0
        self.shortest_s = math.inf
        """The shortest of the reservations of which anything is held, in seconds."""
        self.expired: dict[tuple[int, int], int] = {}
        """By submission and block, the mask of chunks whose reservation ended by itself: that may have been the death
        of them."""
        self.lost: deque[Lost] = deque()
        """What the owner has not reported to its caller yet."""

    def add_grants(self, reply: Reserved) -> list[HeldBlock]:
        """Enter what was reserved; returns a block per grant, none of whose chunks is taken yet."""
        for described in reply.submissions:
            self.learn(described)
        blocks = [HeldBlock(grant, reply.reservation_id, reply.deadline_s) for grant in reply.grants]
        if blocks:
            self._lengths[reply.deadline_s] += len(blocks)
            self.shortest_s = min(self.shortest_s, reply.deadline_s)
        for block in blocks:
            self._blocks.setdefault((block.submission_id, block.number), []).append(block)
        return blocks

    def offer(self, blocks: Sequence[HeldBlock]) -> None:
        """Have `take_chunk` hand out the chunks of these blocks, one by one."""
        for block in blocks:
            block.is_offered = True
            self.ready_count += block.ready.bit_count()
        self._ready.extend(blocks)

    def take_chunk(self) -> tuple[HeldBlock, int] | None:
        """Start work on the next chunk; returns its block and bit, or None if none is ready."""
        ready = self._ready
        while ready:
            block = ready[0]
            mask = block.ready
            if not mask:
                ready.popleft()
                continue
            low = mask & -mask
            block.ready = mask ^ low
            block.open |= low
            self.ready_count -= 1
            if not block.is_reported:
                self._unreported.append(block)
                block.is_reported = True
            return block, low.bit_length() - 1
        return None

    def upcoming(self, limit_count: int) -> list[tuple[int, int]]:
        """Submission and index of up to `limit_count` chunks that `take_chunk` hands out next, in that order."""
        found: list[tuple[int, int]] = []
        for block in self._ready:
            found.extend((block.submission_id, index) for index in mask_indexes(block.number, block.ready))
            if len(found) >= limit_count:
                break
        return found[:limit_count]

    def start_all(self, blocks: Sequence[HeldBlock]) -> None:
        """Start work on all chunks of these blocks."""
        for block in blocks:
            block.open |= block.ready
            block.ready = 0
            block.is_reported = True
        self._unreported.extend(blocks)

    def take_started(self) -> list[ChunkMask]:
        """Chunks on which work has started since the last call and that have no verdict yet."""
        started = [ChunkMask(block.submission_id, block.number, block.open) for block in self._unreported if block.open]
        for block in self._unreported:
            block.is_reported = False
        self._unreported.clear()
        return started

    def learn(self, described: SubmissionContent) -> None:
        """Remember what a submission is."""
        self._known[described.submission_id] = described
        if len(self._known) > _KNOWN_LIMIT:
            del self._known[next(iter(self._known))]

    def known(self, submission_id: int) -> SubmissionContent | None:
        """What is remembered of a submission."""
        return self._known.get(submission_id)

    @property
    def open_count(self) -> int:
        """Chunks that are being worked on."""
        return sum(block.open.bit_count() for block in self.blocks())

    def blocks(self) -> list[HeldBlock]:
        """All blocks of which anything is held."""
        return [block for blocks in self._blocks.values() for block in blocks]

    def holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        """What is to be reclaimed on a new connection, and on what of it work has started."""
        blocks = self.blocks()
        held = [block.name(mask) for block in blocks if (mask := block.held & ~block.revoked)]
        return held, [ChunkMask(block.submission_id, block.number, block.open) for block in blocks if block.open]

    def reclaimed(self, reply: Reply) -> None:
        """Enter the answer to a reclaim: what was refused is lost."""
        if isinstance(reply, Completed):
            for refusal in reply.refusals:
                self._revoke(refusal, refusal.code)

    def revoked(self, push: Revoked) -> None:
        """Enter that chunks were taken away."""
        for chunks in push.chunks:
            self._revoke(chunks, push.code)

    def withdraw(self, block: HeldBlock, mask: int) -> int:
        """Stop work on these chunks, or hand them out no more; returns the mask of those without a verdict."""
        live = mask & (block.open | block.ready)
        self._unready(block, live)
        block.open &= ~live
        return live

    def report_lost(self, chunks: ChunkMask | Refusal, mask: int, code: str) -> None:
        """Have the caller learn that some of these chunks were lost, or their verdict refused."""
        for index in mask_indexes(chunks.block, mask):
            message = chunks.message_of(index) if isinstance(chunks, Refusal) else f"The chunk was taken away ({code})."
            self.lost.append(Lost(SubmissionId(chunks.submission_id), index, code, message))

    def forget(self, block: HeldBlock, mask: int) -> None:
        """Hold these chunks no longer."""
        block.held &= ~mask
        if not block.held:
            key = (block.submission_id, block.number)
            blocks = self._blocks.get(key)
            if blocks is not None and block in blocks:
                blocks.remove(block)
                self._forget_length(block)
                if not blocks:
                    del self._blocks[key]

    def extended(self, block: HeldBlock, length_s: float) -> None:
        """Enter that a reservation was extended, and is of another length from now on, with all blocks of it.

        Of its other blocks only a shorter length is believed: at another shard its number may be that of another one.
        """
        for other in self.blocks():
            is_like = other.token.reservation_id == block.token.reservation_id and length_s < other.length_s
            if other is block or is_like:
                self._forget_length(other)
                other.length_s = length_s
                self._lengths[length_s] += 1
                self.shortest_s = min(self.shortest_s, length_s)

    def _forget_length(self, block: HeldBlock) -> None:
        left_count = self._lengths[block.length_s] - 1
        if left_count:
            self._lengths[block.length_s] = left_count
        else:
            del self._lengths[block.length_s]
            self.shortest_s = min(self._lengths, default=math.inf)

    def _revoke(self, chunks: ChunkMask | Refusal, code: str) -> None:
        """Forget what was not started; started chunks may still be completed unless finished elsewhere or cancelled."""
        place = chunks.submission_id, chunks.block
        for block in list(self._blocks.get(place, ())):
            ready = block.ready & chunks.mask
            expired = (ready | block.open & chunks.mask) if code == "reservation_lost" else 0
            if expired:
                self.expired[place] = self.expired.get(place, 0) | expired
            self._unready(block, ready)
            started = block.open & chunks.mask & ~block.revoked
            block.revoked |= started
            gone = ready
            if code != "reservation_lost":
                block.open &= ~started
                gone |= started
            if started:
                self.report_lost(chunks, started, code)
            self.forget(block, gone)

    def _unready(self, block: HeldBlock, mask: int) -> None:
        ready = block.ready & mask
        block.ready ^= ready
        if block.is_offered:
            self.ready_count -= ready.bit_count()
