"""Calls that come while one is under way are made together as the next."""

import asyncio

from opsq.errors import NoRoom
from opsq.gateway.records.gathering import Gathering


class Performed:
    """Calls as they were made; each is answered when it is let."""

    def __init__(self):
        self.batches = []
        self.began, self.may = asyncio.Event(), asyncio.Event()

    async def __call__(self, items):
        self.batches.append(items)
        self.began.set()
        await self.may.wait()
        return [NoRoom("full") if item < 0 else item * 10 for item in items]


def test_calls_that_come_meanwhile_are_made_as_one():
    async def story():
        performed = Performed()
        calls = Gathering(performed, lambda: 10)
        first = [asyncio.ensure_future(calls.call(1))]
        await performed.began.wait()
        rest = [asyncio.ensure_future(calls.call(item)) for item in (2, -3, 4)]
        await asyncio.sleep(0)
        assert performed.batches == [[1]]
        performed.may.set()
        answers = await asyncio.gather(*first, *rest, return_exceptions=True)
        assert performed.batches == [[1], [2, -3, 4]]
        assert [answers[0], answers[1], answers[3]] == [10, 20, 40]
        assert isinstance(answers[2], NoRoom)
        assert calls.is_idle

    asyncio.run(story())


def test_one_that_gave_up_does_not_keep_the_others_from_their_answers():
    async def story():
        performed = Performed()
        calls = Gathering(performed, lambda: 10)
        tasks = [asyncio.ensure_future(calls.call(item)) for item in (1, 2)]
        await performed.began.wait()
        tasks[0].cancel()
        performed.may.set()
        assert await tasks[1] == 20
        assert await calls.call(3) == 30

    asyncio.run(story())


def test_what_the_call_raises_all_are_told_and_the_next_is_made():
    async def story():
        async def perform(items):
            if "bad" in items:
                raise NoRoom("full")
            return items

        calls = Gathering(perform, lambda: 10)
        answers = await asyncio.gather(calls.call("bad"), calls.call("good"), return_exceptions=True)
        assert [type(each) for each in answers] == [NoRoom, NoRoom]
        assert await calls.call("good") == "good"

    asyncio.run(story())


def test_no_more_are_made_as_one_than_a_request_has_room_for():
    async def story():
        performed = Performed()
        performed.may.set()
        calls = Gathering(performed, lambda: 2)
        assert await asyncio.gather(*map(calls.call, range(5))) == [0, 10, 20, 30, 40]
        assert performed.batches == [[0, 1], [2, 3], [4]]

    asyncio.run(story())
