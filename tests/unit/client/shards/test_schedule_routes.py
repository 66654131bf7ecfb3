"""Which shard is asked about a schedule."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.client.shards.schedule_routes import ScheduleRoutes
from opsq.client.shards.shard_order import rendezvous
from opsq.wire import messages as m
from unit.client.shards.fake_shards import FakeShards

SCHEDULE = m.Schedule("nightly", "0 3 * * *", m.NewSubmission(b"k" * 16, 1))
STATE = m.ScheduleState(SCHEDULE, 0, None, [], 0, 0, 0, 0, [], None, None, None, None, "", "")
PUT = m.PutSchedule(1, SCHEDULE)
UNKNOWN = m.ErrorReply(0, "not_found", "No.")


class Routes:
    """Three shards that are asked who has the schedule."""

    def __init__(self, request: Any) -> None:
        self.shards = FakeShards(0, 1, 2)
        self.answers: list[Any] = []
        ScheduleRoutes(self.shards).take(request, self.answers.append)  # type: ignore[arg-type]

    def tell(self, *keepers: int, away: int | None = None) -> None:
        for shard in self.shards:
            if shard.number == away:
                shard.lose_patience()
            elif shard.number in keepers:
                shard.answer(m.Schedules(0, [STATE]))
            else:
                shard.answer(UNKNOWN)

    @property
    def asked(self) -> list[int]:
        return [shard.number for shard in self.shards if shard.questions]


@pytest.mark.parametrize(
    "request_",
    [
        PUT,
        m.PutSchedule(1, SCHEDULE, replaces=True),
        m.RemoveSchedule(1, "nightly"),
        m.PauseSchedule(1, "nightly"),
        m.ResumeSchedule(1, "nightly"),
        m.TriggerSchedule(1, "nightly"),
        m.BackfillSchedule(1, "nightly", 0, 1),
    ],
    ids=lambda request: type(request).__name__,
)
def test_shard_that_has_a_schedule_is_asked_though_another_is_away(request_: Any) -> None:
    routes = Routes(request_)
    assert routes.asked == [0, 1, 2]
    routes.tell(2, away=0)
    assert routes.asked == [2]
    routes.shards[2].answer(m.Changed(0, 3))
    assert [reply.count for reply in routes.answers] == [3]


def test_new_schedule_goes_to_the_first_in_the_order_of_its_name() -> None:
    routes = Routes(PUT)
    routes.tell()
    assert routes.asked == rendezvous("nightly", [0, 1, 2])[:1]


def test_new_schedule_is_refused_while_a_shard_that_may_have_it_is_away() -> None:
    routes = Routes(PUT)
    routes.tell(away=1)
    [reply] = routes.answers
    assert (reply.code, reply.cause) == ("unreachable", "schedule_not_known")
    assert "nightly" in reply.error().message


def test_schedule_that_nobody_has_is_not_found() -> None:
    routes = Routes(m.TriggerSchedule(1, "nightly"))
    routes.tell()
    assert [reply.code for reply in routes.answers] == ["not_found"]


def test_refusal_of_all_is_the_answer() -> None:
    """As of a token that does not permit it: nobody says whether there is such a schedule."""
    routes = Routes(PUT)
    for shard in routes.shards:
        shard.answer(m.ErrorReply(0, "not_permitted", "No."))
    assert [reply.code for reply in routes.answers] == ["not_permitted"]
