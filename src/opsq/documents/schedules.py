"""The JSON documents about schedules.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opsq.documents.shape import Shape, instant

if TYPE_CHECKING:
    from opsq.wire.messages import ScheduleState


class ScheduleShape(Shape):
    """`opsq schedule show`, and a schedule of `opsq schedule list`. `upcoming`: the next planned instants.

    `fired`, `skipped` and `missed` count planned instants; `open` its submissions that have not ended.
    """

    name: str
    when: str
    zone: str
    upcoming: list[str | None]
    overlap: str
    catch_up: str
    catch_up_s: float | None
    jitter_s: float
    from_at: str | None
    until_at: str | None
    on_failure: str
    metadata: dict[str, int | str]
    title: str | None
    fired: int
    skipped: int
    missed: int
    open: int
    waiting: list[str | None]
    last_planned_at: str | None
    last_submission_id: str | None
    last_state: str | None
    paused_at: str | None
    paused_by: str
    note: str
    created_at: str
    created_by: str | None

    @classmethod
    def from_state(cls, state: ScheduleState) -> Self:
        """A schedule as the daemon describes it."""
        schedule = state.schedule
        return cls.from_message(
            state,
            name=schedule.name,
            when=schedule.when,
            zone=schedule.zone,
            upcoming=[instant(planned) for planned in state.upcoming],
            overlap=schedule.overlap,
            catch_up=schedule.catch_up,
            catch_up_s=schedule.catch_up_s,
            jitter_s=schedule.jitter_s,
            from_at=instant(schedule.from_at),
            until_at=instant(schedule.until_at),
            on_failure="pause" if schedule.pauses_on_failure else "continue",
            metadata=schedule.template.metadata,
            title=schedule.template.title,
            waiting=[instant(planned) for planned in state.waiting],
            last_submission_id=None if state.last_submission_id is None else str(state.last_submission_id),
        )


class SchedulesDocument(Shape):
    """`opsq schedule list`. `next` is the `after` of the next page of `GET /api/v1/schedules`; null at the end."""

    schedules: list[ScheduleShape]
    next: str | None = None


class FiredDocument(Shape):
    """`opsq schedule trigger`, `opsq schedule backfill`: the submissions that were made, oldest instant first."""

    submission_ids: list[str]
