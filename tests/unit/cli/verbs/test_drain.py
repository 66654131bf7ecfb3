"""What is on its way to a daemon: drain says that it is there, and gives it up when that is asked for."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest
from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.output.error_report import Exit
from opsq.cli.verbs.drain import drain
from opsq.errors import Conflict, UsageError
from opsq.wire.messages import ArrivingState, Changed, Counts, DaemonState, GiveUpSource, SourceGivenUp

SOURCE = bytes(15) + b"\1"
NOTHING = Counts(None, 0, 0, 0, 0, 0, 0, 0)
STATE = DaemonState(1, "1.0", 4711, "running", 7200.0, NOTHING, [], {}, [], 0, 2, 0.0, 0, 1, 0, 0, {})


class OfCopies(Caller):
    """A caller whose daemon drops so many copies, and leaves so many."""

    def __init__(self, dropped: int, left: int, **options: Any) -> None:
        super().__init__(options, frozenset())
        arriving = [ArrivingState(SOURCE, left, left, "b:7400")] if left else []
        self.answers = {
            SourceGivenUp: SourceGivenUp(1, dropped, left),
            Changed: Changed(1, 1),
            DaemonState: replace(STATE, arriving_count=left, arriving_from=arriving),
        }
        self.asked: list[Any] = []

    def connect(self, **_: Any) -> Any:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next_id(self) -> int:
        return 1

    def call(self, request: Any, kind: type[Any]) -> Any:
        self.asked.append(request)
        return self.answers[kind]

    def close(self) -> None:
        pass


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
    assert (
        "1 submission from that source is complete here or being written, and may be the only copy, so it was kept."
        in printed.err
    )
    assert caller.asked == [GiveUpSource(1, SOURCE, False)]


def test_loss_that_was_asked_for_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    caller = OfCopies(3, 0)
    give_up(caller, force=True)
    assert caller.asked == [GiveUpSource(1, SOURCE, True)]
    assert "is lost" in capsys.readouterr().err


def test_daemon_that_is_drained_says_what_has_not_arrived_whole(capsys: pytest.CaptureFixture[str]) -> None:
    give_up(OfCopies(0, 2), give_up=None)
    assert "2 submissions from b:7400 are not active here yet" in capsys.readouterr().err
    give_up(OfCopies(0, 0), give_up=None)
    assert capsys.readouterr().err == ""


def test_program_gets_how_many_were_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    give_up(OfCopies(2, 0, json=True))
    assert json.loads(capsys.readouterr().out) == {"count": 2}


@pytest.mark.parametrize("options", [{"undo": True}, {"wait": True}, {"to": "other:7400"}])
def test_giving_up_is_nothing_that_is_drained(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--give-up takes neither"):
        give_up(OfCopies(0, 0), **options)
