"""`explain` of a strategy: its arms, their statements and plans, the state of their fronts, and an optional dry run.

Reads only. Dry runs are in `dry_run`; why a submission is not running is in `explain_work`.
"""

from __future__ import annotations

from collections import Counter

from opsq.clock import Now
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.dispatch.filters import takes
from opsq.queue.dispatch.gates import Blocker
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.views.dry_run import PARTS, TRIAL_ROWS, DryArm, DryRun
from opsq.store import backlog
from opsq.store.rules import LimitRow, PauseRow
from opsq.strategy import arms, explain
from opsq.strategy.arms import SUBMISSION_KEY, Gate
from opsq.strategy.text import parse
from opsq.strategy.tree import format_value
from opsq.units import format_rate
from opsq.wire.messages import Arm, Explain, Explained, Offer, PlanStep, Statement

TRIED_COUNT = 100
"""A dry reservation asks for this many chunks, one by one."""
OFFERS_SHOWN = 10
GATES_SHOWN = 20

Analysis = dict[str, int | float | str | bool | dict[str, int]]


class StrategyExplainer:
    """Explains strategies."""

    def __init__(self, state: EngineState, reserve_calls: ReserveCalls) -> None:
        self._state = state
        self._reserve_calls = reserve_calls

    def explain(self, peer: Peer, request: Explain, now: Now) -> None:
        """Answer with the arms of a strategy.

        With `analyze` also with what `TRIED_COUNT` calls for one chunk each would get.
        """
        plan = self._reserve_calls.plan(request.strategy)
        analyses: list[Analysis] = [{} for _ in plan.arms]
        offers: list[Offer] = []
        if request.analyze:
            analyses, offers = self._analyze(plan.arms, now)
        found = [self._arm(arm, name, analysis) for (name, arm), analysis in zip(plan.arms, analyses, strict=True)]
        self._state.reply(peer, Explained(request.id, plan.text, found, explain.notes(parse(plan.text)), offers))

    def _arm(self, arm: arms.Arm, name: str, analysis: Analysis) -> Arm:
        """One arm for people; `name` finds its front, if there is one."""
        state = self._state
        front = state.fronts.front_in_use(name)
        statements = explain.statements(arm) + ([] if arm.fair_key else [("supply", backlog.SUPPLY_SQL)])
        return Arm(
            order=f"Fair({arm.fair_key})" if arm.fair_key else arm.order.name,
            why=arm.order.why,
            filters=[str(entry) for entry in arm.filters],
            gates=[str(gate) for gate in arm.gates],
            statements=[
                Statement(purpose, sql, [PlanStep(*step) for step in explain.plan(state.reader, sql)])
                for purpose, sql in statements
            ],
            front=front.describe() if front is not None else {},
            inner=[self._arm(inner, "", {}) for inner in arm.inner],
            analysis=analysis,
        )

    # --- the dry reservation ---

    def _analyze(self, named: list[tuple[str, arms.Arm]], now: Now) -> tuple[list[Analysis], list[Offer]]:
        offers: list[Offer] = []
        offered_count = 0
        with DryRun(self._state, named, TRIAL_ROWS) as trial:
            while offered_count < TRIED_COUNT and (found := trial.next()) is not None:
                peeked = trial.chunk(found)
                if peeked is None:
                    trial.take(found, 0, has_more=False)
                    continue
                offered_count += 1
                trial.take(found, 1, has_more=trial.has_more(found.submission))
                if len(offers) < OFFERS_SHOWN:
                    submission = found.submission
                    offers.append(
                        Offer(submission.id, peeked.chunk, peeked.attempt, dict(submission.metadata), found.arm + 1)
                    )
            trial.probe()
            analyses = [self._analysis(one, offered_count, is_cut=trial.is_cut) for one in trial.arms]
            set_aside = [list(trial.set_aside(number)) for number in range(len(named))]
        for (_, arm), analysis, aside in zip(named, analyses, set_aside, strict=True):
            reserved, delayed = self._busy(arm)
            analysis |= {"set_aside": self._by_gate(aside), "reserved": reserved, "in_back_off": delayed}
        return analyses, offers

    def _analysis(self, trial: DryArm, served_count: int, *, is_cut: bool) -> Analysis:
        offered = sum(trial.offered.values())
        found: Analysis = {
            "offered": offered,
            "submissions": len([count for count in trial.offered.values() if count]),
            "calls": TRIED_COUNT,
            "served": served_count,
            "is_dry": not trial.has_work and not is_cut,
            "is_cut": is_cut,
            "rows_visited": trial.rows_visited,
        }
        if trial.front is not None:
            found["read_level"] = str(trial.front.describe().get("read_level", ""))
        return found | {f"{part}_us": round(trial.used_ns[part] / 1000, 1) for part in PARTS}

    def _by_gate(self, aside: list[tuple[tuple[Gate, ...], Blocker, int]]) -> dict[str, int]:
        """Submissions that wait at each gate, those that only the trial has closed left out.

        Only the gates at which most wait.
        """
        found: Counter[str] = Counter()
        for gates, blocker, count in aside:
            if self._state.gates.is_closed(gates, blocker):
                found[self.gate_name(gates, blocker)] += count
        return dict(found.most_common(GATES_SHOWN))

    def gate_name(self, gates: tuple[Gate, ...], blocker: Blocker) -> str:
        """What a closed gate is called, whichever of its values is meant."""
        rules = self._state.rules
        if blocker.kind == "pause":
            return next(
                (_pause_name(row) for row in rules.pauses if row.id == blocker.number), "a pause that has ended"
            )
        if blocker.kind == "rate":
            return next((_rate_name(row) for row in rules.limits if row.id == blocker.number), "a rate that was lifted")
        count = self._state.gates.count_at(blocker)
        key, value = (SUBMISSION_KEY, None) if blocker.number < 0 else rules.pair_of_lane(blocker.number)
        names = [str(gate) for gate in gates if gate.key == key and count >= self._state.gates.max_of(gate.max)]
        names += [
            _limit_name(row)
            for row in rules.limits_of_key(key)
            if row.concurrency is not None and count >= row.concurrency and row.value in {None, value}
        ]
        return " and ".join(names) or f"a limit of {key} that was lifted"

    def _busy(self, arm: arms.Arm) -> tuple[int, int]:
        """Chunks reserved, and in back-off, of the submissions that an arm may serve.

        Cost: the submissions in memory.
        """
        reserved = delayed = 0
        for submission in self._state.live.values():
            if (
                (submission.reserved_count or submission.delayed_count)
                and submission.is_offered
                and takes(arm, submission)
            ):
                reserved += submission.reserved_count
                delayed += submission.delayed_count
        return reserved, delayed


def _pause_name(row: PauseRow) -> str:
    pairs = " ".join(f"{key}={format_value(value)}" for key, value in row.pairs)
    return f"pause of {pairs or 'everything'}"


def _limit_name(row: LimitRow) -> str:
    return f"limit of {_bounded(row)} ≤ {row.concurrency}"


def _rate_name(row: LimitRow) -> str:
    return f"rate of {_bounded(row)} ≤ {format_rate(row.rate_per_s or 0.0, row.rate_span_s)}"


def _bounded(row: LimitRow) -> str:
    return f"each {row.key}" if row.value is None else f"{row.key}={format_value(row.value)}"
