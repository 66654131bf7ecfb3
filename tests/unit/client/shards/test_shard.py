"""One shard of a router: where nobody listens, and where somebody does, but is silent, slow or lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from opsq.client.shards import shard as shard_module
from opsq.client.shards.shard import Shard
from opsq.wire import messages as m
from opsq.wire.frames import encode, request_reader
from unit.client.shards.fake_shards import WELCOME, granted
from waiting import wait_until


def test_shard_that_is_closed_answers_nothing_and_is_asked_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        answers: list[m.Reply] = []

        def ask_again(reply: m.Reply) -> None:
            answers.append(reply)
            shard.ask(m.Heartbeat(0), ask_again)

        shard = Shard(
            str(tmp_path / "none.sock"),
            m.Hello(1, m.VERSION, "test", ""),
            on_change=lambda _: None,
            on_push=lambda *_: None,
        )
        shard.ask(m.Heartbeat(0), ask_again)
        await shard.close()
        shard.ask(m.Heartbeat(0), ask_again)
        assert answers == []
        assert shard.is_idle

    asyncio.run(work())


# --- a shard that listens, and answers what the test says ---


class Daemon:
    """Listens, greets, and notes what it is asked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.got: list[Any] = []
        self.changes: list[bool] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Daemon:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        self.shard = Shard(
            self.path,
            m.Hello(1, m.VERSION, "test", ""),
            on_change=lambda shard: self.changes.append(shard.is_away),
            on_push=lambda *_: None,
        )
        await self.until(lambda: not self.shard.is_away)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shard.close()
        self.vanish()

    async def until(self, is_so: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_until, is_so)

    def asked(self, kind: type) -> list[Any]:
        return [request for request in self.got if isinstance(request, kind)]

    def say(self, *replies: Any) -> None:
        self._writers[-1].write(encode(replies))

    def vanish(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def come_back(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        frames = request_reader(1 << 20)
        while received := await reader.read(1 << 16):
            for request in frames.feed(received):
                if isinstance(request, m.Hello):
                    self.say(replace(WELCOME, id=request.id, shard=7))
                self.got.append(request)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr("opsq.client.shards.shard.SILENCE_S", 0.3)


def test_shard_that_says_nothing_is_away_until_it_says_something(tmp_path: Path, quick: None) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            daemon.shard.ask(m.Status(0), answers.append, 0.2)
            await daemon.until(lambda: daemon.shard.is_silent)
            await daemon.until(lambda: answers)
            assert [answer.code for answer in answers] == ["unreachable"]
            assert "has said nothing" in answers[0].error().hint
            daemon.say(m.Alive(99))
            await daemon.until(lambda: not daemon.shard.is_away)
            assert daemon.changes[-2:] == [True, False]

    asyncio.run(work())


def test_shard_that_takes_long_but_lives_is_not_away(tmp_path: Path, quick: None) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            daemon.shard.ask(m.Check(0), answers.append, 0.0)
            for count in range(1, 6):
                await daemon.until(lambda count=count: len(daemon.asked(m.Heartbeat)) >= count)
                daemon.say(m.Alive(daemon.asked(m.Heartbeat)[-1].id))
            daemon.say(m.Checked(daemon.asked(m.Check)[0].id, []))
            await daemon.until(lambda: answers)
            assert isinstance(answers[0], m.Checked)
            assert True not in daemon.changes

    asyncio.run(work())


def test_call_that_waits_says_nothing_of_silence(tmp_path: Path, quick: None) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            daemon.shard.ask(m.Reserve(0, 1, wait_s=None), lambda _: None)
            daemon.shard.ask(m.Wait(0, 5), lambda _: None)
            await asyncio.sleep(1.0)
            assert not daemon.shard.is_away
            assert daemon.asked(m.Heartbeat) == []

    asyncio.run(work())


def test_chunks_that_a_silent_shard_grants_too_late_are_given_back(tmp_path: Path, quick: None) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            daemon.shard.ask(m.Reserve(0, 1), answers.append, 0.1)
            await daemon.until(lambda: answers)
            [asked] = daemon.asked(m.Reserve)
            await daemon.until(lambda: [one.request_id for one in daemon.asked(m.CancelWait)] == [asked.id])
            daemon.say(replace(granted(7), id=asked.id))
            await daemon.until(lambda: daemon.asked(m.Release))
            assert len(answers) == 1

    asyncio.run(work())


def test_call_that_is_cancelled_while_the_shard_is_lost_does_not_wait_there_when_it_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            number = daemon.shard.ask(m.Reserve(0, 1, wait_s=None), answers.append, 60.0)
            await daemon.until(lambda: daemon.asked(m.Reserve))
            daemon.got.clear()
            daemon.vanish()
            await daemon.until(lambda: daemon.shard.is_away)
            daemon.shard.cancel(number)
            await daemon.until(lambda: answers)
            await daemon.come_back()
            await daemon.until(lambda: not daemon.shard.is_away)
            daemon.shard.ask(m.Status(0), answers.append)
            await daemon.until(lambda: daemon.asked(m.Status))
            assert daemon.asked(m.Reserve) == []

    asyncio.run(work())


def test_shard_that_will_never_be_back_answers_all_that_it_was_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            daemon.shard.ask(m.Complete(0, []), answers.append, math.inf)
            daemon.shard.ask(m.Wait(0, 5), answers.append)
            daemon.shard.give_up()
            assert [answer.code for answer in answers] == ["unreachable", "unreachable"]
            assert daemon.shard.is_idle

    asyncio.run(work())


def test_shard_of_which_a_lease_may_last_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now_s, now_s=1000.0)

    async def work() -> None:
        shard = Shard(
            str(tmp_path / "none.sock"), m.Hello(1, m.VERSION), on_change=lambda _: None, on_push=lambda *_: None
        )
        assert shard.is_idle
        shard.leased(60.0)
        clock.now_s += 50.0
        assert not shard.is_idle
        shard.leased(0.0)  # of the same length
        clock.now_s += 59.0
        assert not shard.is_idle
        clock.now_s += 2.0
        assert shard.is_idle
        await shard.close()

    monkeypatch.setattr(shard_module, "time", clock)

    asyncio.run(work())


COMPLETE_AND_RESERVE = m.CompleteAndReserve(0, [], 1)


def test_completions_and_a_reserve_in_one_request_have_two_answers(tmp_path: Path) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            daemon.shard.ask(COMPLETE_AND_RESERVE, answers.append, math.inf)
            await daemon.until(lambda: daemon.asked(m.CompleteAndReserve))
            [asked] = daemon.asked(m.CompleteAndReserve)
            daemon.say(m.Completed(asked.id))
            await daemon.until(lambda: answers)
            assert not daemon.shard.is_idle
            daemon.say(replace(granted(7), id=asked.id))
            await daemon.until(lambda: len(answers) == 2)
            assert daemon.shard.is_idle

    asyncio.run(work())


def test_what_is_to_be_completed_is_sent_again_though_the_call_was_cancelled(tmp_path: Path) -> None:
    async def work() -> None:
        async with Daemon(str(tmp_path / "s")) as daemon:
            answers: list[Any] = []
            number = daemon.shard.ask(COMPLETE_AND_RESERVE, answers.append, math.inf)
            await daemon.until(lambda: daemon.asked(m.CompleteAndReserve))
            daemon.got.clear()
            daemon.vanish()
            await daemon.until(lambda: daemon.shard.is_away)
            daemon.shard.cancel(number)
            await daemon.come_back()
            await daemon.until(lambda: daemon.asked(m.CompleteAndReserve))
            assert answers == []

    asyncio.run(work())
