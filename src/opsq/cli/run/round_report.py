"""Reports how a round ended: what died and why, what is kept, how to continue; and forgets what nobody will look for.

It must not run anything.
"""

from __future__ import annotations

import os

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.output.error_report import Exit
from opsq.cli.run.round_run import Ended, RunPlan
from opsq.cli.run.rounds import Round
from opsq.content.manifest import input_note
from opsq.documents.readable import brief
from opsq.documents.shape import ErrorShape
from opsq.documents.submissions import RunDocument
from opsq.errors import CommandNotExecutable, CommandNotFound, OpsqError, Unreachable, UsageError, WorkFailed
from opsq.units import counted
from opsq.wire.messages import DeadChunk

_NAMED_DEAD_COUNT = 3
_NAMED_CHANGES_COUNT = 3
_STATUS_1_IS_AN_ANSWER = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep", "rg"), "no match"),
    **dict.fromkeys(("diff", "cmp"), "a difference"),
}
"""Programs whose exit status 1 says what they have found."""


class RoundReport:
    """The end of a round, in words and as JSON.

    Args:
        changes: what became of inputs that changed during the round, as `log.txt changed`.
        is_temporary: the daemon stops with this command.
    """

    def __init__(
        self, caller: Caller, round_: Round, plan: RunPlan, ended: Ended, changes: list[str], *, is_temporary: bool
    ) -> None:
        self._caller = caller
        self._round = round_
        self._plan = plan
        self._ended = ended
        self._changes = changes
        self._is_temporary = is_temporary
        self._has_daemon = not isinstance(ended.failure, Unreachable)
        self._states = round_.states() if self._has_daemon else []

    def conclude(self) -> None:
        """Report the end, and forget the round if it need not be found again.

        Raises:
            Exit: not all results were written; it was reported.
            BrokenPipeError: nobody reads stdout any more.
        """
        ended, failure = self._ended, self._ended.failure
        if ended.is_delivered and failure is None and any(state.dead_count for state in self._states):
            failure = WorkFailed()
        is_done = ended.is_delivered and failure is None
        self._forget(failure, is_done=is_done)
        if isinstance(failure, WorkFailed):
            failure = self._explained(failure)
        if not is_done and failure is None and not ended.is_reader_gone and self._caller.is_remarking:
            self._remark_interrupted()
        if ended.is_reader_gone:
            raise BrokenPipeError
        document = self._document(failure, is_done=is_done)
        if ended.json_sink is not None:
            ended.json_sink.end(document)
        else:
            self._caller.document(document)
        if failure is not None:
            raise self._caller.report_error(failure)
        if not is_done:
            raise Exit(128 + ended.signal)

    def _forget(self, failure: OpsqError | None, *, is_done: bool) -> None:
        """Remove what the same command line would not continue with."""
        if isinstance(failure, WorkFailed):
            if not self._plan.is_resumable:
                for state in self._states:
                    if not state.dead_count:
                        self._round.forget(state.submission_id)
        elif is_done:
            self._round.end(self._plan.output)
        elif self._has_daemon and (not self._plan.is_resumable or self._is_useless(failure)):
            self._round.forget_all()

    def _is_useless(self, failure: OpsqError | None) -> bool:
        """Whether the same command line has nothing to continue with."""
        if isinstance(failure, CommandNotFound | CommandNotExecutable):
            return not any(state.completed_count for state in self._states)
        return isinstance(failure, UsageError) and not self._round.is_continued

    def _document(self, failure: OpsqError | None, *, is_done: bool) -> RunDocument:
        outcome, output = self._ended.outcome, self._plan.output
        return RunDocument(
            state="completed" if is_done else "interrupted" if failure is None else "failed",
            submissions=[str(state.submission_id) for state in self._states],
            completed=outcome.completed_count,
            failed=outcome.failed_count,
            released=outcome.released_count,
            dead=sum(state.dead_count for state in self._states),
            bytes=self._ended.written_bytes,
            output=msgspec.UNSET if output is None else output,
            error=msgspec.UNSET if failure is None else ErrorShape.of(failure),
            finished_at=self._round.finished_at,
        )

    def _explained(self, failure: WorkFailed) -> WorkFailed:
        """What died, why, and how to continue."""
        dead = [state for state in self._states if state.dead_count]
        if not dead:
            return failure
        submission_id = dead[0].submission_id
        dead_count = sum(state.dead_count for state in dead)
        lines = [f"{dead_count} of {self._chunks_text} died."]
        if self._changes:
            lines[0] += (
                f" During the run {self._changes_text}, and the rest of the old content cannot be read any more."
            )
        named = self._round.dead(submission_id, _NAMED_DEAD_COUNT)
        lines += [
            f"Chunk {submission_id}/{chunk.index}{input_note(found)}: {brief(chunk.reason.strip())}"
            for chunk, found in named
        ]
        first = "After `opsq start`, " if self._is_temporary else ""
        if self._changes:
            hint = (
                "The same command starts over with the files as they are: run it when nothing writes to them, or on a "
                f"copy. Finished work is kept. {first}`opsq rm {self._submissions_text}` removes it."
            )
        else:
            hint = f"{first}`opsq dead list {submission_id}` shows what died, and "
            hint += f"`opsq dead requeue {submission_id}` gives it new attempts"
            hint += "; so does the same command, which continues with the rest." if self._plan.is_resumable else "."
            hint += self._status_hint([chunk for chunk, _ in named])
        return WorkFailed("\n".join(lines), hint=hint)

    def _status_hint(self, dead: list[DeadChunk]) -> str:
        """How to say that a program means no failure by the status 1."""
        name = os.path.basename(self._plan.command[0])
        if name not in _STATUS_1_IS_AN_ANSWER or not all(chunk.exit_status == 1 for chunk in dead):
            return ""
        return f"\n{name} exits 1 for {_STATUS_1_IS_AN_ANSWER[name]}: if that is no failure, add --complete-on 0,1."

    def _remark_interrupted(self) -> None:
        done = f"{sum(state.completed_count for state in self._states)} of {self._chunks_text} are done"
        if not self._plan.is_resumable:
            self._caller.remark(
                "What was read from the stream is forgotten; with --resume KEY the same command could continue."
            )
        elif self._changes:
            self._caller.remark(f"{done}, and kept as submission {self._submissions_text}.")
            self._caller.remark(f"But {self._changes_text} during the run, so the same command starts over.")
        else:
            self._caller.remark(f"{done}; the same command continues from there.")

    @property
    def _chunks_text(self) -> str:
        return counted(sum(state.chunks_count for state in self._states), "chunk")

    @property
    def _submissions_text(self) -> str:
        return " ".join(str(state.submission_id) for state in self._states)

    @property
    def _changes_text(self) -> str:
        more_count = len(self._changes) - _NAMED_CHANGES_COUNT
        more = f", and {more_count} more" if more_count > 0 else ""
        return ", ".join(self._changes[:_NAMED_CHANGES_COUNT]) + more
