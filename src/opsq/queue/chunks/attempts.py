"""Counting attempts: how often chunks of a block failed or were lost, how long they waited and were held.

Arithmetic on masks and instants; must not decide what follows.
"""

from __future__ import annotations

from opsq.clock import Now
from opsq.queue.live_submission import BlockWork, LiveSubmission, Reservation
from opsq.store.backlog import AttemptRow


def split_by_attempt(rows: tuple[AttemptRow, ...], mask: int) -> list[tuple[int, int]]:
    """`mask` as parts of equal attempt number (failures and losses so far): (attempt, mask), the untried first."""
    parts = []
    rest = mask
    for row in rows:
        hit = row.mask & rest
        tries = row.attempts + row.lost
        if hit and tries:  # a row without tries only tells since when its chunks may be handed out
            parts.append((tries, hit))
            rest &= ~hit
    if rest:
        parts.insert(0, (0, rest))
    return parts


def tried(
    rows: tuple[AttemptRow, ...], mask: int, *, attempts: int, lost: int, due_at: int, delay_ms: int
) -> tuple[tuple[AttemptRow, ...], list[AttemptRow]]:
    """Count `attempts` failures and `lost` losses more for the chunks in `mask`, next due at `due_at`.

    Returns:
        All rows of the block, rows with equal fields joined; and the new rows of the chunks in `mask`.
    """
    changed: dict[tuple[int, int], int] = {}
    kept: dict[tuple[int, int, int, int], int] = {}
    rest = mask
    for row in rows:
        hit = row.mask & mask
        rest &= ~hit
        if hit:
            counts = (row.attempts + attempts, row.lost + lost)
            changed[counts] = changed.get(counts, 0) | hit
        if row.mask & ~mask:
            fields = row[1:]
            kept[fields] = kept.get(fields, 0) | row.mask & ~mask
    if rest:
        changed[attempts, lost] = changed.get((attempts, lost), 0) | rest
    new = [AttemptRow(hit, *counts, due_at, delay_ms) for counts, hit in changed.items()]
    for row in new:
        kept[row[1:]] = kept.get(row[1:], 0) | row.mask
    return tuple(AttemptRow(hit, *fields) for fields, hit in kept.items()), new


def wait_s(submission: LiveSubmission, work: BlockWork, mask: int, reservation: Reservation | None) -> float:
    """How long chunks that were handed out together waited for that, by the wall clock.

    Of several, the one that waited longest.

    A chunk waits from when it may be handed out: it was submitted, or its submission was not before due (`--at`,
    `--delay`) or was revived; after a failure its back-off is over, after a loss it is free again, after its death it
    is requeued. 0 when nobody knows: the reservation is over, or was reclaimed.
    """
    if reservation is None:
        return 0.0
    row = submission.row
    since = max(row.submitted_at, row.not_before_at or 0, row.revived_at or 0)
    tries = work.attempts
    if tries:
        hits = [(one.mask & mask, one.due_at) for one in tries if one.mask & mask]
        if sum(hit for hit, _ in hits) == mask:
            since = max(since, min(due_at for _, due_at in hits))
    return max(0.0, (reservation.granted_at.wall - since) / 1000)


def held_s(reservation: Reservation, now: Now) -> float:
    """How long a reservation has been held: what is taken for the run time where nobody has measured one."""
    return (now.mono - reservation.granted_at.mono) / 1e9
