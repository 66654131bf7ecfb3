"""The sentences for what the engine finds about work: what keeps it from running, and what else there is to say.

It must not decide anything: the engine gives codes and details, in the order in which they are to be said. `wording`
fills the templates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from opsq.wording import Details, fill

CAUSES: dict[str, str] = {
    # What keeps work from running, as what a submission or chunk does. The code may be finer than the verdict.
    "completed": "is completed",
    "dropped": "was dead and has been dropped",
    "dead": "has been dead since {dead_at:instant}, after {attempts:failed attempt} and {lost:lost consumer}",
    "skipped": "was skipped, because its submission {state:past}",
    "moving": "is being moved to another daemon, and nothing of it is handed out until it is there",
    "settling": "is being finalized: its commit is in progress",
    "started": "is reserved, and work on it has started",
    "not_started": "is reserved, but work on it is not known to have started",
    "retry": "waits for its retry, due {due_at:instant}",
    "behind_own": "waits behind {chunks:chunk} of its own submission",
    "scheduled": "is not due until {due_at:instant}",
    "blocked": "is blocked by {conditions:condition}",
    "ended": "{state:past} at {finished_at:instant}",
    "full": "waits for disk space: the storage is full, and nothing is handed out",
    "draining": "waits: the daemon is stopping and hands nothing out",
    "stopped": "is not running: the daemon is stopped",
    "reserved": "is running: every chunk that is neither finished nor in back-off is reserved ({chunks})",
    "retries": "waits for retries, the next due {due_at:instant}",
    "finishing": "is running: its last chunks are being finalized",
    "paused": "has been paused by {by:name} since {paused_at:instant}: {pairs:pairs}",
    "paused_by_operator": "has been paused by operator {by:name} since {paused_at:instant}: {pairs:pairs}",
    "limited": "is blocked by a limit: {slots}",
    "rate_limited": "is throttled by a limit: its next chunk may start in {wait_s:span}",
    "rate_behind": (
        "waits behind {chunks:chunk} of {submissions:submission} that a limit throttles too: the next chunk may start "
        "in {wait_s:span}"
    ),
    "rate_behind_more": (
        "waits behind more than {chunks:chunk} of {submissions:submission} that a limit throttles too: the next chunk "
        "may start in {wait_s:span}"
    ),
    "no_consumer": "waits, but no consumer is connected",
    "next": "is next",
    "behind": "waits behind {chunks:chunk} of {submissions:submission}",
    "behind_more": "waits behind more than {chunks:chunk} of {submissions:submission}",
    "gated": "is blocked by the strategies of the consumers: {slots}",
    "unmatched": "waits, but the connected consumer does not take it",
    "unmatched_by_all": "waits, but none of the {consumers} connected consumers takes it",
}

FACTS: dict[str, str] = {
    # Sentences that follow a cause.
    "last_reason": "Last reason: {reason}",
    "reason": "Reason: {reason}",
    "requeue_chunk": "`opsq dead requeue {submission_id}/{index}` gives it new attempts.",
    "requeue_dead": (
        "`opsq dead list {submission_id}` lists its dead chunks; "
        "`opsq dead requeue {submission_id}` gives them new attempts."
    ),
    "holder": "Reserved by {consumer}: {chunks:chunk}, held for {held_s:span}, {left_s:left}.",
    "lease": "Reserved by a lease of {consumer}: {chunks:chunk}, held for {held_s:span}, {left_s:left}.",
    "more_holders": "Other reservations that hold chunks of it: {count}.",
    "tries": "Failed attempts: {attempts} of {max_attempts}; lost consumers: {lost} of {max_lost}.",
    "own_before": "Before it: {chunks:chunk} of its own submission.",
    "submission_next": "The submission is next.",
    "start": "`opsq start` starts it; this is from its database file.",
    "resume": "`opsq resume {pairs:selection}` ends the pause.",
    "resume_operator": "`opsq resume --operator {pairs:selection}` ends the pause.",
    "limit": "It is the limit of {bounded:each} ≤ {concurrency}.",
    "rate": "It is the rate of {bounded:each} ≤ {rate}.",
    "unmatched_strategy": "Chunks are waiting, but none for the strategy {strategy}: `opsq explain ID` says why.",
    "some_scheduled": "{submissions:submission} not due yet; the next {due_at:instant}.",
    "some_blocked": "{submissions:submission} blocked, waiting for others: `opsq list --state blocked`.",
    "waits_completed": "It waits until submission {submission_id} is completed; that is {state}.",
    "waits_ended": "It waits until submission {submission_id} has ended; that is {state}.",
    "waits_kept": (
        "It waits until submission {submission_id} is completed, but that {state:past}. "
        "`opsq dead requeue {submission_id}` gives it new attempts; `opsq cancel {waiting_id}` ends the wait."
    ),
    "waits_pair": "It waits for the end of {unfinished:submission} with {pair}.",
    "waits_many": "It waits for the end of more than {unfinished:submission} with {pair}.",
    "waits_first": "It waits for submissions with {pair}; there has been none yet.",
    "more_waits": "Other conditions: {count}.",
    "room": "{submissions:submission} not accepted yet: waiting for room in the queue.",
    "take": "`opsq consume` or `opsq reserve` would take it.",
    "consumers": "{consumers:consumer} connected, {waiting} waiting for work.",
    "place_next": "{consumers} × {strategy}: it is next.",
    "place_behind": "{consumers} × {strategy}: {chunks:chunk} of {submissions:submission} first.",
    "place_unknown": "{consumers} × {strategy}: more than {chunks:chunk} of {submissions:submission} first.",
    "place_gated": "{consumers} × {strategy}: blocked, {slots}.",
    "place_unmatched": "{consumers} × {strategy}: never takes it.",
    "text_for_number": 'Its {key} is the text "{value}", and a strategy selects the number: they are never equal.',
    "number_for_text": "Its {key} is the number {value}, and a strategy selects the text: they are never equal.",
    "more_strategies": "Strategies that were not examined: {count}.",
    "counts": "{total:chunk}: {counts}.",
}


def explanation(subject: str, findings: Sequence[tuple[str, Details]], now: int) -> list[str]:
    """Why work is not running: sentences, the main one first.

    Args:
        subject: what they are about, such as "Submission 12".
        findings: code and details of each, as the engine has put them in order.
        now: when it was found, in milliseconds since 1970; instants are written with their distance from it.
    """
    sentences: list[str] = []
    for code, details in findings:
        values = {**details, "now": now}
        if code in CAUSES:
            start = "Also, it" if sentences else subject
            sentences.append(f"{start} {fill(CAUSES[code], values)}.")
        else:
            sentences.append(fill(FACTS.get(code, code), values))
    return sentences


class Found(Protocol):
    """One thing that was found: a code and its details."""

    @property
    def code(self) -> str:
        """Names the sentence."""

    @property
    def details(self) -> Details:
        """What the sentence needs."""


def held_back(subject: str, findings: Sequence[Found]) -> list[str]:
    """What holds work back, found just now: sentences, the main one first."""
    now = time.time_ns() // 1_000_000
    return explanation(subject, [(found.code, found.details) for found in findings], now)
