"""Finds why a submission, or a chunk of it, is not running: a verdict, and codes with the numbers and names behind it.

Reads only, and words nothing: `opsq.findings` does. It finds all causes; the one that has to go first comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from opsq.clock import Now
from opsq.errors import NotFound
from opsq.ids import block_mask
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.dispatch.filters import takes
from opsq.queue.live_submission import LiveSubmission, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.views.dry_run import TRIAL_ROWS, DryRun, free_chunks
from opsq.queue.views.held_back import STRATEGIES_SHOWN, Cause, HeldBack, finding, no_consumer, slots
from opsq.store import backlog, dead
from opsq.store.submissions import FINAL_STATES
from opsq.strategy.arms import Gate
from opsq.wire.messages import Detail, ExplainWork, Finding, WorkExplained

HOLDERS_SHOWN = 10
BLOCKS_LOOKED_AT = 10_000
"""Blocks of the submission in memory, and rows of its attempts, that are looked at for one answer."""


class Place(NamedTuple):
    """Where a submission stands for one strategy: what comes before it, or (`slots`) which gate of it is closed."""

    verdict: str
    chunks: int = 0
    submissions: int = 0
    slots: dict[str, Detail] = {}  # noqa: RUF012  # never written to


class WorkExplainer:
    """Finds why work is not running."""

    def __init__(
        self, state: EngineState, reservations: Reservations, reserve_calls: ReserveCalls, held_back: HeldBack
    ) -> None:
        self._state = state
        self._held_back = held_back
        self._reservations = reservations
        self._reserve_calls = reserve_calls

    def explain_work(self, peer: Peer, request: ExplainWork, now: Now) -> None:
        """Answer why a submission, or a chunk of it, is not running.

        Raises:
            NotFound: there is no such submission, or it has no such chunk.
        """
        submission = self._state.submission(request.submission_id)
        if submission is None:
            raise self._state.missing(request.submission_id)
        if request.index is None:
            causes = self._ended(submission) or self._causes(submission, now)
        else:
            if request.index >= submission.total:
                raise NotFound(
                    cause="unknown_chunk", submission_id=submission.id, chunks=submission.total, index=request.index
                )
            causes = self._chunk(submission, request.index, now)
        findings = [found for cause in causes for found in cause.findings]
        findings.append(_counts(submission))
        self._state.reply(
            peer, WorkExplained(request.id, submission.id, request.index, causes[0].verdict, findings, now.wall)
        )

    # --- a chunk ---

    def _chunk(self, submission: LiveSubmission, index: int, now: Now) -> list[Cause]:
        bit = 1 << index % 64
        work = submission.blocks.get(index // 64)
        if work is not None:
            unfinished = work.unfinished
        elif index // 64 < submission.frontier:
            unfinished = backlog.pending(self._state.reader, submission.id, index // 64)
        else:
            unfinished = block_mask(submission.total, index // 64)
        if not unfinished & bit:
            return [self._finished_chunk(submission, index)]
        if submission.state in FINAL_STATES:
            return [Cause("skipped", finding("skipped", state=submission.state), [])]
        is_settling = work is not None and bool(work.settling & bit)
        if work is not None and work.reserved & bit:
            holders = [_holder(part.reservation, 1, now) for part in work.parts if part.mask & bit]
            is_started = any(part.started & bit for part in work.parts)
            code = "settling" if is_settling else "started" if is_started else "not_started"
            return [Cause("reserved", finding(code), holders)]
        if work is not None and work.delayed & bit:
            attempts, lost, due_at = self._next_retry(submission, index) or (0, 0, now.wall)
            row = submission.row
            tries = finding("tries", attempts=attempts, max_attempts=row.max_attempts, lost=lost, max_lost=row.max_lost)
            return [Cause("delayed", finding("retry", due_at=due_at), [tries])]
        if is_settling:
            return [Cause("ending", finding("settling"), [])]
        return self._behind_its_own(submission, index, self._causes(submission, now), now)

    def _finished_chunk(self, submission: LiveSubmission, index: int) -> Cause:
        reader, block = self._state.reader, index // 64
        row = next(iter(backlog.dead(reader, submission.id, (submission.id, index - 1), 1)), None)
        if row is None or row.chunk != index:
            dropped = dead.dropped(reader, submission.id, block, block + 1)
            if any(mask & 1 << index % 64 for _, mask in dropped):
                return Cause("skipped", finding("dropped"), [])
            return Cause("completed", finding("completed"), [])
        facts = [finding("last_reason", reason=row.reason)] if row.reason else []
        facts.append(finding("requeue_chunk", submission_id=submission.id, index=index))
        return Cause("dead", finding("dead", dead_at=row.dead_at, attempts=row.attempts, lost=row.lost), facts)

    def _behind_its_own(self, submission: LiveSubmission, index: int, causes: list[Cause], now: Now) -> list[Cause]:
        """The causes of a submission as those of a free chunk of it: chunks come in index order."""
        before = 0
        for block, mask in islice(free_chunks(submission, self._state.reader), BLOCKS_LOOKED_AT):
            if block >= index // 64:
                before += (mask & (1 << index % 64) - 1).bit_count() if block == index // 64 else 0
                break
            before += mask.bit_count()
        if not before:
            return causes
        first, *others = causes
        if first.verdict == "next":
            return [Cause("behind", finding("behind_own", chunks=before), [finding("submission_next"), *first.facts])]
        return [first._replace(facts=[*first.facts, finding("own_before", chunks=before)]), *others]

    # --- a submission ---

    def _ended(self, submission: LiveSubmission) -> list[Cause]:
        row = submission.row
        not_open = self._held_back.not_open(submission)
        if not_open is not None:
            return [not_open]
        if submission.state not in FINAL_STATES:
            return []
        facts = [finding("reason", reason=row.reason)] if row.reason else []
        if submission.dead:
            facts.append(finding("requeue_dead", submission_id=submission.id))
        return [
            Cause(submission.state, finding("ended", state=submission.state, finished_at=row.finished_at or 0), facts)
        ]

    def _causes(self, submission: LiveSubmission, now: Now) -> list[Cause]:
        """What keeps the free chunks of a submission that has not ended; never empty."""
        ended = self._ended(submission)
        if ended:
            return ended
        if submission.is_held:
            return [Cause("moving", finding("moving"), [])]
        if submission.is_closing:
            return [Cause("ending", finding("settling"), [])]
        state = self._state
        holding = list(self._holding(submission, now))
        causes = self._held_back.engine()
        if state.database.is_read_only:
            causes.append(Cause("stopped", finding("stopped"), [finding("start")]))
        causes += self._held_back.rules(submission)
        if next(free_chunks(submission, state.reader), None) is None:
            busy = self._busy(submission, holding, now)
            return [*causes, *busy] if state.database.is_read_only else [*busy, *causes]
        if not state.database.is_read_only:
            causes = self._with_asked(submission, causes)
        return [causes[0]._replace(facts=[*causes[0].facts, *holding]), *causes[1:]]

    def _busy(self, submission: LiveSubmission, holding: list[Finding], now: Now) -> list[Cause]:
        """Nothing of a submission is free."""
        found = []
        if holding:
            found.append(Cause("reserved", finding("reserved", chunks=submission.reserved_count), holding))
        due = self._next_retry(submission) if submission.delayed_count else None
        if due is not None:
            _, _, due_at = due
            found.append(Cause("delayed", finding("retries", due_at=due_at), []))
        return found or [Cause("reserved", finding("finishing"), [])]

    def _holding(self, submission: LiveSubmission, now: Now) -> Iterator[Finding]:
        """Who holds how much of a submission."""
        counts: Counter[Reservation] = Counter()
        for work in islice(submission.blocks.values(), BLOCKS_LOOKED_AT):
            for part in work.parts:
                counts[part.reservation] += part.mask.bit_count()
        holders = [(holder, count) for holder, count in counts.items() if count]
        for holder, count in holders[:HOLDERS_SHOWN]:
            yield _holder(holder, count, now)
        if len(holders) > HOLDERS_SHOWN:
            yield finding("more_holders", count=len(holders) - HOLDERS_SHOWN)

    def _next_retry(self, submission: LiveSubmission, index: int | None = None) -> tuple[int, int, int] | None:
        """Attempts, losses and due time of the chunk in back-off that is due first (of one chunk, if named)."""
        found: tuple[int, int, int] | None = None
        start, end = (0, submission.blocks_count) if index is None else (index // 64, index // 64 + 1)
        wanted = -1 if index is None else 1 << index % 64
        for block, row in islice(backlog.attempts(self._state.reader, submission.id, start, end), BLOCKS_LOOKED_AT):
            work = submission.blocks.get(block)
            is_waiting = work is not None and row.mask & work.delayed & wanted
            if is_waiting and (found is None or row.due_at < found[2]):
                found = row.attempts, row.lost, row.due_at
        return found

    # --- who asks ---

    def _with_asked(self, submission: LiveSubmission, causes: list[Cause]) -> list[Cause]:
        """The causes, and what strategies make of free chunks; under a rate, what comes first is let through first."""
        if [cause.finding.code for cause in causes] != ["rate_limited"]:
            return causes + self._asked(submission, is_held=bool(causes))
        [rate] = causes
        asked = self._asked(submission, minds_rates=False)
        if asked[0].verdict == "next":
            return [rate]
        if asked[0].verdict != "behind":
            return [rate, *asked]
        first = asked[0].finding
        code = "rate_behind_more" if first.code == "behind_more" else "rate_behind"
        behind = finding(code, **rate.finding.details, **first.details)
        return [rate._replace(finding=behind, facts=[*rate.facts, *asked[0].facts])]

    def _asked(self, submission: LiveSubmission, *, is_held: bool = False, minds_rates: bool = True) -> list[Cause]:
        """What strategies of connected consumers make of free chunks.

        If a rule holds them, only whether any takes them.
        """
        consumers = self._state.consumers
        if not consumers:
            return [no_consumer()]
        asked = Counter(consumers.values())
        waiting = len(set(self._reserve_calls.waiting()))
        facts = [finding("consumers", consumers=len(consumers), waiting=waiting)]
        rows_left = 2 * TRIAL_ROWS
        places: dict[str, list[Place]] = {}
        for text, count in asked.most_common(STRATEGIES_SHOWN):
            place, rows = self._place(text, submission, 0 if is_held else min(rows_left, TRIAL_ROWS), minds_rates)
            rows_left -= rows
            places.setdefault(place.verdict, []).append(place)
            before = {"chunks": place.chunks, "submissions": place.submissions}
            facts.append(finding(f"place_{place.verdict}", consumers=count, strategy=text, **before, **place.slots))
        if len(asked) > STRATEGIES_SHOWN:
            facts.append(finding("more_strategies", count=len(asked) - STRATEGIES_SHOWN))
        if is_held and set(places) != {"unmatched"}:
            return []
        if "next" in places:
            return [Cause("next", finding("next"), facts)]
        for verdict, code in (("behind", "behind"), ("unknown", "behind_more")):
            if verdict in places:
                best = min(places[verdict], key=lambda place: place.chunks)
                found = finding(code, chunks=best.chunks, submissions=best.submissions)
                return [Cause("behind", found, facts)]
        if "gated" in places:
            return [Cause("gated", finding("gated", **places["gated"][0].slots), facts)]
        code = "unmatched" if len(consumers) == 1 else "unmatched_by_all"
        facts += self._same_but_for_type(asked, submission)
        return [Cause("unmatched", finding(code, consumers=len(consumers)), facts)]

    def _same_but_for_type(self, texts: Iterable[str], submission: LiveSubmission) -> list[Finding]:
        """Pairs that strategies select and the submission has, but as text instead of a number, or the reverse."""
        return [
            finding("text_for_number" if isinstance(has, str) else "number_for_text", key=entry.key, value=str(has))
            for text in islice(texts, STRATEGIES_SHOWN)
            for _, arm in self._reserve_calls.plan(text).arms
            for entry in arm.filters
            if (has := submission.metadata.get(entry.key)) is not None
            and has != entry.value
            and str(has) == str(entry.value)
        ]

    def _place(self, text: str, submission: LiveSubmission, rows: int, minds_rates: bool) -> tuple[Place, int]:
        """Where a submission stands for a strategy, found on trial; and how many rows that took."""
        arms = self._reserve_calls.plan(text).arms
        if not any(takes(arm, submission) for _, arm in arms):
            return Place("unmatched"), 0
        if not rows:
            return Place("unknown"), 0
        seen: set[int] = set()
        chunks = 0
        with DryRun(self._state, arms, rows, minds_rates=minds_rates) as trial:
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
        closed = [full for gate in gates if (full := self._closed(gate, submission))]
        if closed:
            return Place("gated", slots=closed[0]), used
        return Place("behind", chunks, len(seen)) if chunks else Place("gated"), used

    def _closed(self, gate: Gate, submission: LiveSubmission) -> dict[str, Detail]:
        """How a gate of a strategy is closed for a submission; empty: it is not."""
        bound = self._state.gates.max_of(gate.max)
        count = self._state.gates.reserved_under(gate.key, submission)
        return slots(gate.key, submission, count, bound) if count >= bound else {}


def _holder(holder: Reservation, count: int, now: Now) -> Finding:
    return finding(
        "lease" if holder.is_lease else "holder",
        consumer=holder.consumer,
        chunks=count,
        held_s=(now.mono - holder.granted_at.mono) / 1e9,
        left_s=(holder.deadline - now.mono) / 1e9,
    )


def _counts(submission: LiveSubmission) -> Finding:
    counts = submission.counts
    shown: dict[str, Detail] = {
        "completed": counts.completed,
        "reserved": counts.reserved,
        "in_back_off": counts.delayed,
        "waiting": counts.waiting,
        "dead": counts.dead,
        "skipped": counts.skipped,
    }
    return finding("counts", total=submission.total, **{name: count for name, count in shown.items() if count})
