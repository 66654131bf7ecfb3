"""One shard of a router, at an address where nobody listens."""

from __future__ import annotations

import asyncio
from pathlib import Path

from opsq.client.shards.shard import Shard
from opsq.wire import messages as m


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
