"""Waits until submissions have ended, over one connection, with progress bars, and words how they ended.

It must not decide an exit status or print a document: that is for the verbs that wait.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Self

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import RECONNECT_S, LastingConnection, is_of_shard
from opsq.cli.output.folding import folded
from opsq.cli.output.progress import new_progress, print_above
from opsq.client.core.transport import expect
from opsq.client.sync.connection import Connection
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.submission_text import ending, named
from opsq.errors import TimedOut, Unreachable, WorkFailed
from opsq.ids import SubmissionId
from opsq.units import counted
from opsq.wire.messages import ErrorReply, Heartbeat, Show, Shown, SubmissionState, Wait

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_POLL_S = 0.5
_LOOK_S = 2.0
"""How often to look off a terminal."""
_SHOWN_COUNT = 10
_ASKED_COUNT = 10_000
"""Waits that are asked for at once; the daemon refuses more than its `PARKED_LIMIT` of one connection."""


def wait_for(caller: Caller, submission_ids: list[SubmissionId], timeout_s: float | None) -> list[SubmissionState]:
    """Wait until all these have ended, over one connection, which is reopened when the daemon restarts.

    Returns:
        Their final states, in the order of `submission_ids`.

    Raises:
        NotFound: one of them does not exist.
        TimedOut: not all ended within `timeout_s` seconds (None: no limit).
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[SubmissionId, SubmissionState] = {}
    daemon = caller.connect()
    with _Bars(caller, submission_ids) as bars:
        while True:
            try:
                with daemon:
                    _wait(daemon, [i for i in dict.fromkeys(submission_ids) if i not in ended], ended, deadline, bars)
                return [ended[i] for i in submission_ids]
            except Unreachable as error:
                if is_of_shard(error):
                    raise
                left_s = RECONNECT_S if deadline is None else min(RECONNECT_S, deadline - time.monotonic())
                daemon = caller.connect(reconnect_s=max(left_s, 0.0))


def remark_unfinished(caller: Caller, submission_ids: list[SubmissionId], output: str | None = None) -> None:
    """Tell a person who ends a wait by Ctrl-C that the work continues, and which commands follow up.

    Args:
        output: the file that the results were meant for.
    """
    if len(submission_ids) > 1:
        caller.remark("Only the wait has ended; the submissions continue. The same command waits again.")
        return
    [number] = submission_ids
    into = "" if output is None else f" -o {shlex.quote(output)}"
    caller.remark(
        f"Only the wait has ended; submission {number} continues. `opsq wait {number}` waits again, "
        f"`opsq results {number}{into}` writes the results once it has ended, and `opsq cancel {number}` ends it."
    )


def failure_of(caller: Caller, states: list[SubmissionState]) -> WorkFailed | None:
    """What it means that submissions ended so: None when all are completed."""
    bad = [state for state in states if state.state != "completed"]
    if not bad:
        return None
    dead = [state.submission_id for state in bad if state.dead_count]
    hint = f"`opsq dead list {dead[0]}` names the dead chunks." if dead else ""
    lines = [f"Submission {_name(state)} {ending(state)}" for state in bad]
    with contextlib.suppress(Unreachable), LastingConnection(caller) as daemon:  # without one, inputs are unknown
        inputs = ChunkInputs(daemon)
        inputs.look_up(dead)
        lines = [f"Submission {_name(state)} {ending(state, partial(inputs.of, state.submission_id))}" for state in bad]
    return WorkFailed("\n".join(lines), hint=hint)


def _name(state: SubmissionState) -> str:
    return named(state.submission_id, state.title)


class _Bars:
    """What is told of the first few submissions: what holds them back, and on a terminal bars, rate and time left."""

    def __init__(self, caller: Caller, submission_ids: list[SubmissionId]) -> None:
        self._caller = caller
        self._shown = [] if caller.is_quiet else submission_ids[:_SHOWN_COUNT]
        self._held: dict[SubmissionId, tuple[str, ...]] = {}
        self._said: set[tuple[SubmissionId, tuple[str, ...]]] = set()
        self.poll_s = _LOOK_S
        self._progress: Progress | None = None
        self._bars: dict[SubmissionId, TaskID] = {}
        self._meters: dict[SubmissionId, ProgressMeter] = {}
        if caller.is_remarking:
            self.poll_s = _POLL_S
            self._progress = new_progress()
            for each in self._shown:
                self._bars[each] = self._progress.add_task(str(each), total=None, rate="", left="")
                self._meters[each] = ProgressMeter()

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def look(self, reply: Shown) -> None:
        """Move the bar of a submission, and say once what holds it back, if the same was found the time before."""
        self.draw(reply.submission)
        submission_id = SubmissionId(reply.submission.submission_id)
        # A loop in a shell that reserves now and then is not connected: that nobody is says little.
        codes = tuple(found.code for found in reply.held_back if found.code not in {"no_consumer", "take"})
        if codes and self._held.get(submission_id) == codes and (submission_id, codes) not in self._said:
            self._said.add((submission_id, codes))
            for sentence in self._caller.held_back(f"Submission {_name(reply.submission)}", reply.held_back):
                self._say(sentence)
        self._held[submission_id] = codes

    def _say(self, sentence: str) -> None:
        if self._progress is None:
            self._caller.warn(sentence)
        else:
            print_above(self._progress, folded(f"opsq: {sentence}", sys.stderr))

    def wanted(self, ended: dict[SubmissionId, SubmissionState]) -> list[SubmissionId]:
        """The submissions of which to ask again how they are."""
        return [i for i in self._shown if i not in ended]

    def draw(self, state: SubmissionState) -> None:
        """Move the bar of a submission."""
        submission_id = SubmissionId(state.submission_id)
        if self._progress is not None and submission_id in self._bars:
            meter = self._meters[submission_id]
            meter.note(state.counts, time.monotonic())
            self._progress.update(
                self._bars[submission_id],
                description=_name(state),
                total=meter.total_count,
                completed=meter.done_count,
                rate=meter.rate_text(),
                left=meter.left_text(),
            )


def _wait(
    daemon: Connection,
    submission_ids: list[SubmissionId],
    ended: dict[SubmissionId, SubmissionState],
    deadline: float | None,
    bars: _Bars,
) -> None:
    unasked = deque(submission_ids)
    asked: dict[int, SubmissionId] = {}
    while asked or unasked:
        free_count = min(len(unasked), _ASKED_COUNT - len(asked))
        waits = [Wait(daemon.next_id(), unasked.popleft()) for _ in range(free_count)]
        asked.update((wait.id, SubmissionId(wait.submission_id)) for wait in waits)
        if waits:
            daemon.send(waits)
        pause_s = daemon.welcome.heartbeat_s
        if bars.wanted(ended):
            pause_s = min(pause_s, bars.poll_s)
        if deadline is not None:
            pause_s = min(pause_s, max(deadline - time.monotonic(), 0.0))
        replies = daemon.receive(pause_s)
        for reply in replies:
            # A shard that is away has longer to answer a wait than a look at how far it is.
            if isinstance(reply, ErrorReply) and (reply.id in asked or not reply.id or reply.code != Unreachable.code):
                expect(reply, Shown)
            if isinstance(reply, Shown):
                bars.look(reply)
                submission_id = asked.pop(reply.id, None)
                if submission_id is not None:
                    ended[submission_id] = reply.submission
        left_count = len(asked) + len(unasked)
        if left_count and deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(f"{counted(left_count, 'submission')} had not ended in time.")
        if not replies:
            daemon.send([Heartbeat(daemon.next_id()), *(Show(daemon.next_id(), i) for i in bars.wanted(ended))])
