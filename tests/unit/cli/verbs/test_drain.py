"""Giving up what was moving here: what is asked of the daemon, and what people and programs are told of the answer."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from opsq.cli.caller import Caller
from opsq.cli.output.error_report import Exit
from opsq.cli.verbs.drain import drain
from opsq.errors import Conflict, UsageError
from opsq.wire.messages import GiveUpSource, SourceGivenUp

SOURCE = bytes(15) + b"\1"


class OfCopies(Caller):
    """A caller whose daemon drops so many copies, and leaves so many."""

    def __init__(self, dropped: int, left: int, **options: Any) -> None:
        super().__init__(options, frozenset())
        self.answer = SourceGivenUp(1, dropped, left)
        self.asked: list[GiveUpSource] = []

    def connect(self, **_: Any) -> Any:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next_id(self) -> int:
        return 1

    def call(self, request: GiveUpSource, kind: type[Any]) -> Any:
        self.asked.append(request)
        return self.answer


def give_up(caller: OfCopies, **options: Any) -> None:
    given = {"undo": False, "to": None, "every": False, "to_token_file": None, "wait": False, "timeout_s": None}
    drain(caller, **{**given, "give_up": SOURCE, "force": False, **options})


def test_complete_copies_that_are_left_are_a_conflict_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    caller = OfCopies(2, 1, json=True)
    with pytest.raises(Exit) as ended:
        give_up(caller)
    assert ended.value.status == Conflict.exit_status
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["count"], document["error"]["code"]) == (2, "conflict")
    for said in (printed.err, document["error"]["hint"]):
        assert "--force" in said
    assert "1 submission from that source arrived whole" in printed.err
    assert caller.asked == [GiveUpSource(1, SOURCE, False)]


def test_loss_that_was_asked_for_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    caller = OfCopies(3, 0)
    give_up(caller, force=True)
    assert caller.asked == [GiveUpSource(1, SOURCE, True)]
    assert "is lost" in capsys.readouterr().err


def test_program_gets_how_many_were_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    give_up(OfCopies(2, 0, json=True))
    assert json.loads(capsys.readouterr().out) == {"count": 2}


@pytest.mark.parametrize("options", [{"undo": True}, {"wait": True}, {"to": "other:7400"}])
def test_giving_up_is_nothing_that_is_drained(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--give-up takes neither"):
        give_up(OfCopies(0, 0), **options)
