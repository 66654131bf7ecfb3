"""What becomes of rows that the daemon answers with an error, and of what was written for them."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opsq import outbox
from opsq.content import manifest, result_objects
from opsq.content.store_kinds import open_store
from opsq.errors import Conflict, Moved, NotFound, OpsqError, StorageFull, Unreachable, UsageError
from opsq.outbox.hand_over import HandOver
from opsq.outbox.waiting_rows import Completion, Submission
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Backoff,
    Complete,
    Completed,
    Created,
    Dependency,
    Describe,
    Described,
    Find,
    Found,
    Show,
    Shown,
    SubmissionContent,
    SubmissionState,
    Submit,
    Submitted,
)
from scripted import welcome

NOTHING, ITSELF = Found(1, None, False), Found(1, 7, False)
"""What a row has made."""


class Daemon:
    """A connection to a daemon that answers each kind of request as a story says."""

    address = "/nowhere"

    def __init__(self, folder: Path) -> None:
        path = str(folder / "content")
        self.store = open_store(path)
        self.welcome = replace(welcome(), store=path, store_marker=self.store.mark())
        self.answers: dict[type, Callable[[Any], Any]] = {Find: lambda _: NOTHING}
        self.asked: list[Any] = []

    def next_id(self) -> int:
        return 1

    def call(self, request: Any, kind: type[Any]) -> Any:
        self.asked.append(request)
        answer = self.answers[type(request)](request)
        if isinstance(answer, OpsqError):
            raise answer
        assert isinstance(answer, kind)
        return answer

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


@pytest.fixture
def hand_over(daemon: Daemon) -> Iterator[HandOver]:
    with contextlib.closing(HandOver(lambda: daemon)) as made:  # type: ignore[arg-type]  # what is used of it
        yield made


@pytest.fixture
def row() -> Submission:
    """A submission whose chunks are put into the store, and which waits for submission 3."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(outbox.ddl("sqlite"))
        outbox.submit(connection, [b"large" * 2000], after=[Dependency(3)], unique_key="u")
        [found] = connection.execute("SELECT seq, submission, chunks FROM opsq_outbox").fetchall()
    return Submission(*found)


def has_content(daemon: Daemon) -> bool:
    return bool(list(daemon.store.folders()))


def moved(submission_id: int) -> Moved:
    return Moved(cause="moved", submission_id=submission_id, shard=1, address="/other")


def test_row_whose_submission_has_moved_is_done_and_its_content_stays(
    daemon: Daemon, hand_over: HandOver, row: Submission
) -> None:
    daemon.answers |= {Submit: lambda _: moved(7), Find: lambda _: moved(7)}
    assert hand_over.submit([row]).done == [row.seq]
    assert has_content(daemon)


def test_row_that_waits_for_what_has_moved_is_set_aside(daemon: Daemon, hand_over: HandOver, row: Submission) -> None:
    daemon.answers[Submit] = lambda _: moved(3)
    assert list(hand_over.submit([row]).refused) == [row.seq]
    assert not has_content(daemon)


@pytest.mark.parametrize("cause", ["moving_here", "clearing"])
def test_row_whose_submission_is_on_its_way_here_waits_and_its_content_stays(
    daemon: Daemon, hand_over: HandOver, row: Submission, cause: str
) -> None:
    daemon.answers[Submit] = lambda _: Conflict(cause=cause, submission_id=7)
    outcome = hand_over.submit([row])
    assert (outcome.done, outcome.refused, outcome.held_back is not None) == ([], {}, True)
    assert has_content(daemon)


@pytest.mark.parametrize("found", [ITSELF, moved(7)])
def test_row_that_has_arrived_before_is_done_though_it_would_be_refused_now(
    daemon: Daemon, hand_over: HandOver, row: Submission, found: Found | OpsqError
) -> None:
    """The settings of the daemon are others since."""
    daemon.answers |= {Submit: lambda _: UsageError(cause="no_replica"), Find: lambda _: found}
    assert hand_over.submit([row]).done == [row.seq]
    assert has_content(daemon)


@pytest.mark.parametrize(
    ("found", "is_kept"),
    [(ITSELF, True), (Unreachable(), True), (NOTHING, False)],
)
def test_content_is_deleted_only_if_the_row_is_known_to_have_made_nothing(
    daemon: Daemon, hand_over: HandOver, row: Submission, found: Found | OpsqError, is_kept: bool
) -> None:
    """Of what existed, some may be left out of an answer, and a shard may be away."""
    daemon.answers |= {
        Submit: lambda _: Submitted(1, [Created(7, False)]),
        Find: lambda _: found,
        Describe: lambda _: Described(1, []),
    }
    assert hand_over.submit([row]).done == [row.seq]
    assert has_content(daemon) is is_kept


RESULT = b"r" * (RESULT_INLINE_BYTES + 1)


def completions(count: int) -> list[Completion]:
    """Large results of as many submissions, 1, 2 and so on."""
    return [Completion(number, f"{number}/0@1.1.0.1", RESULT) for number in range(1, count + 1)]


def shown() -> Shown:
    counts = (1, 0, 0, 0, 0, 0)
    limits = (0, 1, 1, Backoff(1.0, 2.0, 3.0), False, 60.0)
    return Shown(1, SubmissionState(1, "open", *counts, {}, *limits, 0, None, None, None, None, False, ""))


def described(number: int) -> SubmissionContent:
    return SubmissionContent(number, 1, manifest.encode(manifest.Content(f"{number:032x}", 1, 9)), {}, False)


def test_large_results_arrive_though_not_all_submissions_fit_an_answer(daemon: Daemon, hand_over: HandOver) -> None:
    daemon.answers |= {
        Describe: lambda request: Described(1, [described(one) for one in request.submission_ids[:2]]),
        Complete: lambda _: Completed(1),
    }
    rows = completions(5)
    assert hand_over.complete(rows).done == [1, 2, 3, 4, 5]
    [sent] = [request for request in daemon.asked if isinstance(request, Complete)]
    for number, completion in enumerate(sent.completions, 1):
        [(name, offset, length)] = msgspec.msgpack.decode(completion.results)
        assert daemon.store.read_range(f"{number:032x}/{name}", offset, length) == RESULT


def test_result_of_a_submission_that_may_be_at_a_shard_that_is_away_waits(daemon: Daemon, hand_over: HandOver) -> None:
    """The others describe what they have, and leave it out."""
    daemon.answers |= {
        Describe: lambda _: Described(1, []),
        Show: lambda _: Unreachable(cause="shard_away", shard="1", why=""),
    }
    with pytest.raises(Unreachable):
        hand_over.complete(completions(1))
    assert not [request for request in daemon.asked if isinstance(request, Complete)]


def test_result_of_a_submission_that_nobody_describes_waits(daemon: Daemon, hand_over: HandOver) -> None:
    daemon.answers |= {Describe: lambda _: Described(1, []), Show: lambda _: shown()}
    with pytest.raises(Unreachable, match="is not known now"):
        hand_over.complete(completions(1))


@pytest.mark.parametrize("error", [NotFound("No submission 1."), moved(1)])
def test_result_of_a_submission_that_is_gone_is_set_aside_and_the_others_arrive(
    daemon: Daemon, hand_over: HandOver, error: OpsqError
) -> None:
    daemon.answers |= {
        Describe: lambda request: Described(1, [described(one) for one in request.submission_ids if one != 1]),
        Show: lambda _: error,
        Complete: lambda _: Completed(1),
    }
    outcome = hand_over.complete(completions(2))
    assert (outcome.done, outcome.refused) == ([2], {1: str(error)})


def test_full_store_leaves_no_open_file_behind_however_often_it_is_tried(
    daemon: Daemon, hand_over: HandOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(result_objects, "write_all", full)
    daemon.answers[Describe] = lambda request: Described(1, [described(one) for one in request.submission_ids])
    open_count: list[int] = []
    for _ in range(20):
        assert isinstance(hand_over.complete(completions(1)).held_back, StorageFull)
        open_count.append(len(os.listdir("/dev/fd")))
    assert open_count[-1] == open_count[0]
    assert list(daemon.store.objects(f"{1:032x}/results")) == []
