"""The model of who waits for whom: sets and loops. All happens when a batch settles, in the order of its changes."""

from __future__ import annotations

from collections.abc import Callable

from opsq.clock import Now
from opsq.queue.submissions import dependencies
from unit.model.things import FINAL, Submission, Target


class WaitingOnes:
    """Submissions that wait, and what has ended of which not all were told."""

    def __init__(self, submissions: dict[int, Submission]) -> None:
        self._submissions = submissions
        self._due: dict[Target, tuple[str, int]] = {}
        self._left = 0
        self._last_come = 0
        """Those of a batch come one after the other, though all of them are visible once it is committed."""
        self._later: list[Callable[[Now], None]] = []

    def has_any(self) -> bool:
        return any(submission.waits for submission in self._submissions.values())

    def has_due(self) -> bool:
        """Whether somebody is still to be told of an end."""
        return bool(self._due)

    def begin(self, *, is_full: bool) -> None:
        """A batch is written: as many may be told as it may."""
        self._left = max(dependencies.SLICE_WAITING // 20, 1) if is_full else dependencies.SLICE_WAITING

    def settled(self, now: Now) -> None:
        """All of a batch has settled: what instants it has moved is known."""
        for action in self._later:
            action(now)
        self._later.clear()

    def come(self, submission: Submission, wall: int) -> None:
        """A submission is there."""
        new, failed = submission.new, False
        before, self._last_come = self._last_come, submission.id
        for one in new.after:
            target: Target = one.submission_id or "k"
            needs = "ended" if one.submission_id is None else one.needs
            outcome = self._outcome(target, before)
            if outcome is None or (new.on_failed_dependency == "keep" and not _is_met(submission, needs, outcome)):
                submission.waits[target] = needs if submission.waits.get(target) != "completed" else "completed"
            elif not _is_met(submission, needs, outcome):
                failed = True
        if failed:
            submission.state = "cancelled"
            submission.skip_all()
        elif submission.waits:
            submission.state = "blocked"
        if submission.state in FINAL:
            self.end(submission, wall)

    def _outcome(self, target: Target, last: int) -> str | None:
        if isinstance(target, int):
            state = self._submissions[target].state
            return state if state in FINAL else None
        members = self._members(target, last)
        return "ended" if members and all(one.state in FINAL for one in members) else None

    def _members(self, key: str, last: int) -> list[Submission]:
        return [one for one in self._submissions.values() if one.new.metadata.get(key) == 1 and one.id <= last]

    def end(self, submission: Submission, wall: int) -> None:
        """A submission has ended."""
        self._note_end(submission)
        self.tell(wall)

    def _note_end(self, submission: Submission) -> None:
        submission.waits.clear()
        targets: list[Target] = [submission.id]
        members = self._members("k", self._last_come)
        if submission.new.metadata.get("k") == 1 and all(one.state in FINAL for one in members):
            targets.append("k")
        for target in targets:
            if any(target in one.waits for one in self._submissions.values()):
                self._due[target] = (submission.state if target != "k" else "ended", 0)

    def tell(self, wall: int) -> None:
        """Tell as many as this batch may."""
        while self._left > 0 and self._due:
            target = min(self._due, key=lambda target: target if isinstance(target, int) else -1)
            outcome, after = self._due.pop(target)
            ids = sorted(one.id for one in self._submissions.values() if target in one.waits and one.id > after)
            if len(ids) >= self._left:
                ids = ids[: self._left]
                self._due[target] = (outcome, ids[-1])
            self._left -= max(len(ids), 1)
            for submission_id in ids:
                self._decide(self._submissions[submission_id], target, outcome, wall)

    def _decide(self, submission: Submission, target: Target, outcome: str, wall: int) -> None:
        is_met = _is_met(submission, submission.waits[target], outcome)
        if not is_met and submission.new.on_failed_dependency == "keep":
            return
        del submission.waits[target]
        if not is_met:
            submission.state = "cancelled"
            submission.skip_all()
            self._note_end(submission)
        elif not submission.waits and not submission.chunks:
            submission.state = "completed"
            self._note_end(submission)
        elif not submission.waits and (submission.not_before_at or 0) > wall:
            submission.state = "scheduled"
            self._later.append(lambda now: _wait_for_date(submission, now))
        elif not submission.waits:
            submission.state = "open"


def _is_met(submission: Submission, needs: str, outcome: str) -> bool:
    return needs == "ended" or outcome == "completed" or submission.new.on_failed_dependency == "run"


def _wait_for_date(submission: Submission, now: Now) -> None:
    delay_s, at = submission.new.delay_s, submission.not_before_at
    if delay_s is not None and at is not None:
        submission.opens = now.mono + min(max(at - now.wall, 0), int(delay_s * 1000)) * 1_000_000
