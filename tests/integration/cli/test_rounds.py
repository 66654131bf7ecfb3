"""A round of opsq run against a real daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import opsq
from daemons import running
from opsq.cli.run.rounds import Round, new_key
from opsq.content.manifest import Content
from opsq.errors import Conflict, Unreachable
from opsq.settings import Settings
from opsq.wire.messages import NewSubmission


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir) as settings:
        yield settings


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_segment_without_an_answer_is_forgotten_whenever_it_arrives(
    daemon: Settings, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    """The feeder of a round that fails is cut off in the middle of a hand-over."""
    sent: list[NewSubmission] = []

    def lose(submissions: Sequence[NewSubmission], *, wait_for_room: bool) -> NoReturn:
        sent.extend(submissions)
        raise Unreachable("The connection was lost.")

    with opsq.connect(daemon.socket) as queue, opsq.connect(daemon.socket) as handing:
        monkeypatch.setattr(handing, "submit_many", lose)
        round_ = Round(queue, new_key(), {}, is_resumable=False)
        with pytest.raises(Unreachable):
            round_.submit(handing, Content("0" * 32, 1, 1, inline=[b"x"]), 0, is_last=True)
        if arrives == "before":
            queue.submit_many(sent)
        round_.forget_all()
        if arrives == "after":
            with pytest.raises(Conflict):
                queue.submit_many(sent)
        assert list(queue.submissions()) == []
