"""Why a submission, or a chunk of it, is not running: one word, one sentence, and the facts behind it.

Reads only. All causes are told; the one that has to go first makes the headline.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from opsq.clock import Now
from opsq.errors import NotFound
from opsq.ids import block_mask
from opsq.queue.chunks.live_submission import LiveSubmission
from opsq.queue.chunks.reservations import Reservation, Reservations
from opsq.queue.dispatch.front import takes
from opsq.queue.dispatch.reserve import TURN_ROWS, ReserveCalls
from opsq.queue.state import EngineState, Peer
from opsq.queue.views.dry_run import DryRun
from opsq.queue.views.explain_strategy import limit_name, pairs_name, rate_name
from opsq.store import backlog, dead
from opsq.store.submissions import FINAL_STATES
from opsq.strategy.arms import SUBMISSION_KEY, Gate
from opsq.strategy.tree import format_value
from opsq.units import format_span
from opsq.wire.messages import ExplainWork, WorkExplained

STRATEGIES_SHOWN = 8
HOLDERS_SHOWN = 10
BLOCKS_LOOKED_AT = 10_000
"""Blocks of the submission in memory, and rows of its attempts, that are looked at for one answer."""


class Cause(NamedTuple):
    """One thing that keeps work from running: a word, what the subject of a sentence does, and facts."""

    verdict: str
    does: str
    facts: list[str]


class Place(NamedTuple):
    """Where a submission stands for one strategy: the chunks and submissions that come before it; `gate`: what holds it back there."""

    verdict: str
    chunks: int = 0
    submissions: int = 0
    gate: str = ""


class WorkExplainer:
    """Says why work is not running."""

    def __init__(self, state: EngineState, reservations: Reservations, reserve_calls: ReserveCalls) -> None:
        self._state = state
        self._reservations = reservations
        self._reserve_calls = reserve_calls

    def explain_work(self, peer: Peer, request: ExplainWork, now: Now) -> None:
        """Answer why a submission, or a chunk of it, is not running.

        Raises:
            NotFound: there is no such submission, or it has no such chunk.
        """
        submission = self._state.submission(request.submission_id)
        if submission is None:
            raise NotFound(
                f"Submission {request.submission_id} is not known.", hint="`opsq list` shows those that are."
            )
        subject = f"Submission {submission.id}"
        if request.index is None:
            causes = self._ended(submission, now) or self._causes(submission, now)
        else:
            if request.index >= submission.total:
                raise NotFound(
                    f"Submission {submission.id} has {submission.total} chunks, counted from 0; there is no chunk {request.index}."
                )
            subject = f"Chunk {submission.id}/{request.index}"
            causes = self._chunk(submission, request.index, now)
        first, *others = causes
        reasons = [f"{subject} {first.does}.", *first.facts]
        for other in others:
            reasons += [f"Also, it {other.does}.", *other.facts]
        self._state.reply(
            peer,
            WorkExplained(request.id, submission.id, request.index, first.verdict, [*reasons, _counts(submission)]),
        )

    # --- a chunk ------------------------------------------------------------------------------------------------------------------

    def _chunk(self, submission: LiveSubmission, index: int, now: Now) -> list[Cause]:
        reader, bit = self._state.reader, 1 << index % 64
        work = submission.blocks.get(index // 64)
        if work is not None:
            unfinished = work.unfinished
        elif index // 64 < submission.frontier:
            unfinished = backlog.pending(reader, submission.id, index // 64)
        else:
            unfinished = block_mask(submission.total, index // 64)
        if not unfinished & bit:
            row = next(iter(backlog.dead(reader, submission.id, (submission.id, index - 1), 1)), None)
            if row is None or row.chunk != index:
                is_dropped = any(
                    mask & bit for _, mask in dead.dropped(reader, submission.id, index // 64, index // 64 + 1)
                )
                return [
                    Cause("skipped", "was dead and was dropped", [])
                    if is_dropped
                    else Cause("completed", "is completed", [])
                ]
            tries = f"{row.attempts} failed attempts and {row.lost} lost consumers"
            return [
                Cause(
                    "dead",
                    f"is dead since {_instant(row.dead_at, now)}, after {tries}",
                    [
                        *([f"Its last reason: {row.reason}"] if row.reason else []),
                        f"`opsq dead requeue {submission.id}/{index}` revives it.",
                    ],
                )
            ]
        if submission.state in FINAL_STATES:
            return [Cause("skipped", f"was skipped: its submission is {submission.state}", [])]
        if work is not None and work.settling & bit:
            return [Cause("reserved", "is being finished: its commit is under way", [])]
        if work is not None and work.reserved & bit:
            holders = [part.reservation for part in work.parts if part.mask & bit]
            started = any(part.started & bit for part in work.parts)
            begun = "work on it has begun" if started else "work on it is not known to have begun"
            return [Cause("reserved", f"is reserved: {begun}", [_holder(holder, 1, now) for holder in holders])]
        due = self._next_retry(submission, now, index)
        if due is not None:
            attempts, lost, due_at = due
            bounds = submission.row
            tries = f"It failed {attempts} times of {bounds.max_attempts}, and lost its consumer {lost} times of {bounds.max_lost}."
            return [Cause("delayed", f"waits for its retry, due {_instant(due_at, now)}", [tries])]
        return self._behind_its_own(submission, index, self._causes(submission, now), now)

    def _behind_its_own(self, submission: LiveSubmission, index: int, causes: list[Cause], now: Now) -> list[Cause]:
        """The causes of a submission as those of a free chunk of it: chunks come in index order."""
        before = 0
        for block, mask in islice(submission.peek(self._state.reader, now), BLOCKS_LOOKED_AT):
            if block >= index // 64:
                before += (mask & (1 << index % 64) - 1).bit_count() if block == index // 64 else 0
                break
            before += mask.bit_count()
        if not before:
            return causes
        first, *others = causes
        fact = f"{_count(before, 'chunk')} of its own submission {'comes' if before == 1 else 'come'} before it."
        if first.verdict == "next":
            return [
                Cause(
                    "behind",
                    f"waits behind {_count(before, 'chunk')} of its own submission",
                    ["The submission is next.", *first.facts],
                )
            ]
        return [first._replace(facts=[*first.facts, fact]), *others]

    # --- a submission -------------------------------------------------------------------------------------------------------------

    def _ended(self, submission: LiveSubmission, now: Now) -> list[Cause]:
        row = submission.row
        if submission.state == "scheduled":
            return [Cause("scheduled", f"is not due until {_instant(row.not_before_at or 0, now)}", [])]
        if submission.state not in FINAL_STATES:
            return []
        at = f" since {_instant(row.finished_at, now)}" if row.finished_at else ""
        facts = [f"The reason: {row.reason}"] if row.reason else []
        if submission.dead:
            facts.append(
                f"`opsq dead list {submission.id}` shows what died, `opsq dead requeue {submission.id}` gives it new attempts."
            )
        return [
            Cause(
                submission.state,
                f"{'has' if submission.state in {'failed', 'expired'} else 'is'} {submission.state}{at}",
                facts,
            )
        ]

    def _causes(self, submission: LiveSubmission, now: Now) -> list[Cause]:
        """What keeps the free chunks of a submission that has not ended; never empty."""
        ended = self._ended(submission, now)
        if ended:
            return ended
        if submission.is_closing:
            return [Cause("ending", "is about to end: the commit is under way", [])]
        state = self._state
        holding = list(self._holding(submission, now))
        causes: list[Cause] = []
        if state.is_full:
            causes.append(Cause("full", "waits for room: the storage is full, and nothing is handed out", []))
        if state.is_draining:
            causes.append(Cause("draining", "waits: the daemon is ending, and hands nothing out", []))
        if state.database.is_read_only:
            causes.append(
                Cause(
                    "stopped",
                    "is not running: no daemon is",
                    ["`opsq start` starts one; what follows is what the file says."],
                )
            )
        causes += [*self._pauses(submission, now), *self._limits(submission)]
        if next(submission.peek(state.reader, now), None) is None:
            busy = self._busy(submission, holding, now)
            return [*causes, *busy] if state.database.is_read_only else [*busy, *causes]
        if holding:
            holding = [f"Reserved {fact[0].lower()}{fact[1:]}" for fact in holding]
        if not state.database.is_read_only:
            causes += self._asked(submission, now, is_held=bool(causes))
        return [causes[0]._replace(facts=[*causes[0].facts, *holding]), *causes[1:]]

    def _busy(self, submission: LiveSubmission, holding: list[str], now: Now) -> list[Cause]:
        """Nothing of a submission is free."""
        found = []
        if holding:
            found.append(
                Cause(
                    "reserved",
                    f"is running: all that is not finished or in back-off is reserved ({submission.reserved_count})",
                    holding,
                )
            )
        due = self._next_retry(submission, now)
        if due is not None:
            _, _, due_at = due
            found.append(Cause("delayed", f"waits for retries, the next one due {_instant(due_at, now)}", []))
        return found or [Cause("reserved", "is running: what is left is being finished", [])]

    def _holding(self, submission: LiveSubmission, now: Now) -> Iterator[str]:
        """Who holds how much of a submission."""
        counts: Counter[Reservation] = Counter()
        for work in islice(submission.blocks.values(), BLOCKS_LOOKED_AT):
            for part in work.parts:
                counts[part.reservation] += part.mask.bit_count()
        holders = [(holder, count) for holder, count in counts.items() if count]
        for holder, count in holders[:HOLDERS_SHOWN]:
            yield _holder(holder, count, now)
        if len(holders) > HOLDERS_SHOWN:
            yield f"By {len(holders) - HOLDERS_SHOWN} reservations more."

    def _next_retry(
        self, submission: LiveSubmission, now: Now, index: int | None = None
    ) -> tuple[int, int, int] | None:
        """Attempts, losses and due time of the chunk in back-off that is due first (of one chunk, if named)."""
        found: tuple[int, int, int] | None = None
        start, end = (0, submission.blocks_count) if index is None else (index // 64, index // 64 + 1)
        wanted = -1 if index is None else 1 << index % 64
        for block, row in islice(backlog.attempts(self._state.reader, submission.id, start, end), BLOCKS_LOOKED_AT):
            work = submission.blocks.get(block)
            is_waiting = row.mask & wanted & (work.delayed if work is not None else -1) and row.due_at > now.wall
            if is_waiting and (found is None or row.due_at < found[2]):
                found = row.attempts, row.lost, row.due_at
        return found

    def _pauses(self, submission: LiveSubmission, now: Now) -> Iterator[Cause]:
        for row in self._state.rules.of(submission)[0]:
            who = f"{'operator ' if row.by_operator else ''}{row.by_name or 'somebody'}"
            option = "--operator " if row.by_operator else ""
            ends = f"`opsq resume {option}{pairs_name(row.pairs) if row.pairs else '--all'}` ends the pause."
            yield Cause(
                "paused", f"is paused by {who} since {_instant(row.paused_at, now)}: {pairs_name(row.pairs)}", [ends]
            )

    def _limits(self, submission: LiveSubmission) -> Iterator[Cause]:
        gates = self._state.gates
        for row, lane_id in self._state.rules.of(submission)[1]:
            if row.concurrency is not None and (count := gates.reserved_under(row.key, submission)) >= row.concurrency:
                yield Cause(
                    "limited",
                    f"is held by a limit: {_slots(row.key, submission, count, row.concurrency)}",
                    [f"It is the {limit_name(row)}."],
                )
            if row.rate_per_s is not None and (wait_s := gates.next_token_s(row, lane_id)) > 0:
                yield Cause(
                    "limited",
                    f"is held by a rate: its next chunk may start in {format_span(wait_s)}",
                    [f"It is the {rate_name(row)}."],
                )

    # --- who asks -----------------------------------------------------------------------------------------------------------------

    def _asked(self, submission: LiveSubmission, now: Now, *, is_held: bool) -> list[Cause]:
        """What the strategies of connected consumers make of free chunks of a submission; if a rule holds it, only whether any takes it."""
        consumers = self._state.consumers
        if not consumers:
            return [
                Cause(
                    "no_consumer",
                    "waits, but no consumer is connected",
                    ["`opsq consume` or `opsq reserve` would take it."],
                )
            ]
        asked = Counter(consumers.values())
        waiting = len(set(self._reserve_calls.waiting()))
        crowd = f"{_count(len(consumers), 'consumer')} {'is' if len(consumers) == 1 else 'are'} connected, {waiting} of them waiting for work."
        rows_left = 2 * TURN_ROWS
        places: list[tuple[str, Place]] = []
        for text, count in asked.most_common(STRATEGIES_SHOWN):
            place, rows = self._place(text, submission, 0 if is_held else min(rows_left, TURN_ROWS), now)
            rows_left -= rows
            places.append((f"{count} × {text}", place))
        facts = [crowd, *(f"{name}: {_tell(place)}." for name, place in places)]
        if len(asked) > STRATEGIES_SHOWN:
            facts.append(f"{len(asked) - STRATEGIES_SHOWN} more strategies were not looked at.")
        verdicts = {place.verdict for _, place in places}
        if is_held and verdicts != {"unmatched"}:
            return []
        if "next" in verdicts:
            return [Cause("next", "is next", facts)]
        if "behind" in verdicts or "unknown" in verdicts:
            best = min(
                (p for _, p in places if p.verdict in {"behind", "unknown"}),
                key=lambda p: (p.verdict != "behind", p.chunks),
            )
            more = "more than " if best.verdict == "unknown" else ""
            does = f"waits behind {more}{_count(best.chunks, 'chunk')} of {_count(best.submissions, 'submission')}"
            return [Cause("behind", does, facts)]
        if "gated" in verdicts:
            gate = next(place.gate for _, place in places if place.verdict == "gated")
            return [Cause("gated", f"is held back by the strategies of the consumers: {gate}", facts)]
        takers = (
            "the connected consumer does not take it"
            if len(consumers) == 1
            else f"none of the {len(consumers)} connected consumers takes it"
        )
        return [Cause("unmatched", f"waits, but {takers}", facts)]

    def _place(self, text: str, submission: LiveSubmission, rows: int, now: Now) -> tuple[Place, int]:
        """Where a submission stands for a strategy, found on trial; and how many rows that took."""
        arms = self._reserve_calls.plan(text).arms
        if not any(takes(arm, submission) for _, arm in arms):
            return Place("unmatched"), 0
        if not rows:
            return Place("unknown"), 0
        seen: set[int] = set()
        chunks = 0
        with DryRun(self._state, arms, rows, now) as trial:
            while (found := trial.next()) is not None and found.submission is not submission:
                other = found.submission
                free = other.unfinished - other.reserved_count - other.delayed_count
                count = max(0, min(free, found.room, 1 if trial.arms[found.arm].gives_single else free))
                trial.take(found, count, has_more=free > count)
                if count:
                    seen.add(other.id)
                    chunks += count
            used = rows - trial.rows_left
            is_cut = trial.is_cut
        if found is not None:
            return Place("behind" if chunks else "next", chunks, len(seen)), used
        if is_cut:
            return Place("unknown", chunks, len(seen)), used
        gates = [gate for _, arm in arms if takes(arm, submission) for gate in arm.gates]
        closed = [text for gate in gates if (text := self._closed(gate, submission))]
        if closed:
            return Place("gated", gate=closed[0]), used
        return Place("behind", chunks, len(seen)) if chunks else Place(
            "gated", gate="what the strategy allows is taken"
        ), used

    def _closed(self, gate: Gate, submission: LiveSubmission) -> str:
        """How a gate of a strategy is closed for a submission; empty: it is not."""
        bound = self._state.gates.max_of(gate.max)
        count = self._state.gates.reserved_under(gate.key, submission)
        return _slots(gate.key, submission, count, bound) if count >= bound else ""


def _tell(place: Place) -> str:
    before = f"{_count(place.chunks, 'chunk')} of {_count(place.submissions, 'submission')}"
    return {
        "next": "it is next",
        "behind": f"{before} first",
        "unknown": f"more than {before} first",
        "gated": f"held back, {place.gate}",
        "unmatched": "never takes it",
    }[place.verdict]


def _slots(key: str, submission: LiveSubmission, count: int, bound: int) -> str:
    if key == SUBMISSION_KEY:
        return f"{count} of its {bound} slots are taken by chunks reserved or in back-off"
    return f"{key}={format_value(submission.metadata[key])} has {count} of {bound} chunks reserved"


def _holder(holder: Reservation, count: int, now: Now) -> str:
    kind = "a lease of " if holder.is_lease else ""
    left_s = (holder.deadline - now.mono) / 1e9
    since = format_span((now.mono - holder.granted_at.mono) / 1e9)
    until = f"for {format_span(left_s)} more" if left_s > 0 else "about to expire"
    return f"By {kind}{holder.consumer}: {_count(count, 'chunk')}, held for {since}, {until}."


def _counts(submission: LiveSubmission) -> str:
    skipped = submission.row.chunks_skipped
    waiting = submission.unfinished - submission.reserved_count - submission.delayed_count
    if submission.state in FINAL_STATES:
        skipped, waiting = skipped + waiting, 0
    parts = [
        (submission.completed, "completed"),
        (submission.reserved_count, "reserved"),
        (submission.delayed_count, "in back-off"),
        (max(waiting, 0), "waiting"),
        (submission.dead, "dead"),
        (skipped, "skipped"),
    ]
    return (
        f"{_count(submission.total, 'chunk')}: " + ", ".join(f"{count} {name}" for count, name in parts if count) + "."
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _instant(wall: int, now: Now) -> str:
    """A wall instant, and how far it is away."""
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall // 1000))
    away_s = (wall - now.wall) / 1000
    if abs(away_s) < 1:
        return f"{text} (now)"
    return f"{text} (in {format_span(away_s)})" if away_s > 0 else f"{text} ({format_span(-away_s)} ago)"
