"""What is said of a submission but its content.

The options, declared once for the verb that submits and for HTTP, and the fields of a message that they make. It must
not ask the daemon.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from opsq.errors import UsageError
from opsq.options import values
from opsq.options.option import Whole, duration, option, option_set
from opsq.options.rule_options import weights_of
from opsq.wire.messages import Backoff

_PRIORITY = Whole(-(1 << 62), 1 << 62)
_TRIES = Whole(1, 1 << 31)


@option_set
class Rules(NamedTuple):
    """How a submission is handed out and ends; each field is an option."""

    metadata: list[str] = option("-m, --metadata KEY=VALUE...", "Strategic metadata; repeatable.")
    title: str | None = option("--title TEXT", "A line for people, which lists and progress show.", values.title)
    priority: int | None = option("--priority N", "Higher comes first under CustomPriority.", _PRIORITY, shown="0")
    max_attempts: int | None = option(
        "--max-attempts N", "Failures until a chunk is dead.", _TRIES, shown="the setting max_attempts"
    )
    max_lost: int | None = option(
        "--max-lost N", "Lost consumers until a chunk is dead.", _TRIES, shown="the setting max_lost"
    )
    on_dead: Literal["fail", "keep"] | None = option(
        "--on-dead fail|keep", "A dead chunk fails the submission, or the rest continues.", shown="fail"
    )
    backoff: Backoff | None = option(
        "--backoff BASE,FACTOR,MAX",
        "Delays between attempts, such as 1s,2,5m.",
        values.backoff,
        shown="the settings backoff_…",
    )
    weight: list[str] = option(
        "--weight KEY=N...", "Set the weight in Fair of the value that this submission has of a key."
    )
    delay_s: float | None = option("--delay D", "Delay the first chunk by this long.", duration)
    not_before_at: int | None = option(
        "--at INSTANT", "Start at 2025-01-31T08:00, local time, or …Z, or @SECONDS.", values.instant
    )
    after: list[str] = option(
        "--after ID|KEY=VALUE...",
        "Wait until this submission is completed (ID:ended: has ended), or all with this metadata have ended.",
    )
    on_failed: Literal["cancel", "run", "keep"] | None = option(
        "--on-failed-dependency cancel|run|keep",
        "If one of --after ends otherwise: be cancelled, run nevertheless, or wait until it is requeued.",
        shown="cancel",
    )
    expires: str | None = option("--expires D|INSTANT", "Expire if unfinished by then.")
    unique: str | None = option(
        "--unique KEY", "If an unfinished submission has this key, print its id instead.", values.user_key
    )
    unique_until: Literal["start", "done"] | None = option(
        "--unique-until start|done",
        "How long the key is held: until the first chunk is handed out, or until the submission ends.",
        shown="done",
    )
    idempotency_key: str | None = option(
        "--idempotency-key KEY",
        "If a submission has this key, finished or not, print its id instead.",
        values.user_key,
    )
    keep_s: float | None = option(
        "--keep D",
        "With --idempotency-key: only a submission that has not ended longer ago than this; else any that is known.",
        duration,
    )
    reservation_s: float | None = option(
        "--reservation D",
        "How long a consumer may keep a chunk without a heartbeat, at least 0.1s.",
        values.reservation,
        shown="the setting reservation_s",
    )

    def as_fields(self) -> dict[str, Any]:
        """The fields of a `NewSubmission` that they give; what is not said is left out.

        Raises:
            UsageError: two cannot be combined, or it would expire before it starts.
        """
        values.exclude(delay=self.delay_s, at=self.not_before_at)
        if self.unique_until is not None and self.unique is None:
            raise UsageError("--unique-until needs --unique.")
        values.exclude(unique=self.unique, idempotency_key=self.idempotency_key)
        if self.keep_s is not None and self.idempotency_key is None:
            raise UsageError("--keep needs --idempotency-key.")
        if self.on_failed is not None and not self.after:
            raise UsageError("--on-failed-dependency needs --after.")
        expires_s, expires_at = values.duration_or_instant("--expires", self.expires)
        self._check_expiry(expires_s, expires_at)
        given = {
            "metadata": values.metadata(self.metadata),
            "title": self.title,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "max_lost": self.max_lost,
            "keep_on_dead": None if self.on_dead is None else self.on_dead == "keep",
            "backoff": self.backoff,
            "weights": weights_of(self.weight),
            "delay_s": self.delay_s,
            "not_before_at": self.not_before_at,
            "after": values.dependencies(self.after) or None,
            "on_failed_dependency": self.on_failed,
            "expires_s": expires_s,
            "expires_at": expires_at,
            "unique_key": self.unique,
            "unique_until_start": self.unique_until == "start",
            "idempotency_key": self.idempotency_key,
            "idempotency_keep_s": self.keep_s,
            "reservation_s": self.reservation_s,
        }
        return {name: field for name, field in given.items() if field is not None}

    def as_keywords(self) -> dict[str, Any]:
        """The same as keyword arguments of `Producer.submit`.

        Raises:
            UsageError: as `as_fields`.
        """
        found = {
            name: field
            for name, field in self.as_fields().items()
            if name not in ("keep_on_dead", "unique_until_start")
        }
        words = {"on_dead": self.on_dead, "unique_until": self.unique_until}
        return found | {name: word for name, word in words.items() if word is not None}

    def _check_expiry(self, expires_s: float | None, expires_at: int | None) -> None:
        """Refuse a submission that expires before its first chunk may be handed out."""
        now = values.now_ms()
        end = expires_at if expires_s is None else now + int(expires_s * 1000)
        if end is None:
            return
        if end <= now:
            raise UsageError(f"--expires {self.expires}: that is in the past.", hint="Give a time in the future.")
        start = self.not_before_at if self.delay_s is None else now + int(self.delay_s * 1000)
        if start is not None and end <= start:
            name = "--at" if self.delay_s is None else "--delay"
            raise UsageError(
                f"--expires {self.expires}: no chunk is reserved before {name}, so it must be later than that."
            )
