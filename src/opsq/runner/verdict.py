"""What the end of a program means for its chunk: completed with its result, failed, or given back.

This file must not start or stop programs; what it cannot judge, because nothing here can go on, it raises.
"""

from __future__ import annotations

from typing import Literal

from opsq.client.sync.chunk import Chunk
from opsq.content.manifest import input_note, known_input
from opsq.errors import (
    READER_ERRORS,
    CommandNotExecutable,
    CommandNotFound,
    ContentChanged,
    ContentMissing,
    NotFound,
    OpsqError,
    Refused,
    UsageError,
    WorkFailed,
)
from opsq.runner.deadlines import Why
from opsq.runner.feeding.programs import Finished
from opsq.runner.pending_failures import PendingFailures
from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.progress import ChunkEnd, ProgressViewer
from opsq.runner.stderr_logs import ShownStderr, StderrLog
from opsq.runner.stop_signals import StopSignals
from opsq.runner.tally import Tally
from opsq.units import format_duration

_COMMAND_ERRORS: dict[int | None, type[OpsqError]] = {126: CommandNotExecutable, 127: CommandNotFound}
_FAILED_STATUS = 1
"""What stands for the status of a program that was not run, or not to its end."""


class VerdictGiver:
    """Gives verdicts.

    Args:
        consumer: holds the chunks.
        tally: where verdicts are counted.
        options: what ends mean.
        viewer: is given each.
        signals: an end by one of those that we got ourselves is no fault of the program.
    """

    def __init__(
        self,
        consumer: PolledConsumer,
        tally: Tally,
        options: ConsumeOptions,
        viewer: ProgressViewer,
        signals: StopSignals,
    ) -> None:
        self.failures = PendingFailures(consumer, tally, viewer)
        self.judged_count = 0
        """Chunks that were completed or failed here."""
        self._consumer = consumer
        self._tally = tally
        self._options = options
        self._viewer = viewer
        self._signals = signals
        # The reason that a server gives is in its answer, which nobody has seen.
        self._is_stderr_told = options.logs is None and viewer.tells_stderr and not options.feeding.server

    def give_verdict(
        self, finished: Finished, chunk: Chunk, stderr: StderrLog | ShownStderr, why: Why, lost_code: str
    ) -> bool:
        """Give a chunk the verdict that the end of its program means.

        Args:
            why: why the program was asked to end, if it was.
            lost_code: why its reservation was lost; "": it was not.

        Returns:
            Whether it is completed.

        Raises:
            CommandNotFound, CommandNotExecutable: the command cannot be run; the chunk was given back.
            Refused: there is no room for the result; likewise.
            StoreNotVisible, ContentNotPermitted: this machine or user cannot read content; likewise.
        """
        is_completed = False
        try:
            if why == "lost" or lost_code not in {"", "reservation_lost"}:
                chunk.release()
            elif why == "stop":
                # Whatever its exit status: a program may exit 0 on SIGTERM, with half a result.
                self.release(chunk)
            else:
                is_completed = self._judge_own_end(finished, chunk, has_run_too_long=why == "runtime")
        finally:
            finished.stdout.close()
            if finished.then is not None:
                finished.then.close()
            stderr.close(is_completed=is_completed)
        return is_completed

    def fail_unreadable(self, chunk: Chunk, error: OpsqError, *, run_s: float = 0.0) -> None:
        """Fail a chunk that cannot be read: for good if its file, submitted in place, is gone or is not what it was."""
        is_final = isinstance(error, ContentChanged) or self._consumer.is_in_place(chunk.submission_id)
        how = "for good (reported once per submission)" if is_final else ""
        self._fail(chunk, str(error), how, told=str(error), is_final=is_final, is_shared=is_final, run_s=run_s)

    def release(self, chunk: Chunk) -> None:
        """Give a chunk back, no attempt counted."""
        self._tally.released_count += 1
        chunk.release()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _judge_own_end(self, finished: Finished, chunk: Chunk, *, has_run_too_long: bool) -> bool:
        """Judge a program that was not asked to end, or only because its time was over.

        Returns:
            Whether the chunk is completed.
        """
        error, status, number = finished.error, finished.exit_status, finished.signal
        if has_run_too_long:
            limit = f"ran longer than {format_duration(self._options.max_runtime_s or 0.0)}"
            self._fail_by(finished, chunk, limit)
        elif isinstance(error, ContentMissing | ContentChanged):
            self.fail_unreadable(chunk, error, run_s=finished.run_s)
        elif isinstance(error, (Refused, CommandNotFound, CommandNotExecutable, *READER_ERRORS)):
            self.release(chunk)
            raise error
        elif error is not None:
            self._fail_by(finished, chunk)
        elif number is not None and number in self._signals.numbers:
            # The signal was sent to our process group while this child, just made, still belonged to it.
            self.release(chunk)
        elif status in _COMMAND_ERRORS and not (
            self._tally.completed_count or self._options.exit_policy.names(status, number)
        ):
            # Nothing has worked yet: it is the command that cannot be run, not this chunk that it cannot work on.
            self.release(chunk)
            raise _COMMAND_ERRORS[status](
                f"The command ended with {status} on chunk {name_of(chunk)}, as if it cannot be run: {finished.reason}"
            )
        else:
            verdict = self._options.exit_policy.of(status, number)
            if verdict == "complete":
                return self._complete(finished, chunk)
            self._fail_by(finished, chunk, is_final=verdict == "bury")
        return False

    def _complete(self, finished: Finished, chunk: Chunk) -> bool:
        """Complete a chunk, with what its program has written of follow-ups; false if that cannot be made."""
        output, then = finished.stdout, []
        status = finished.exit_status or 0
        if finished.then is not None:
            from opsq.client.core.follow_up_lines import follow_ups_of

            try:
                then = chunk.prepare(follow_ups_of(finished.then, "OPSQ_THEN"))
            except (UsageError, NotFound) as error:
                why = WorkFailed(f"its follow-ups cannot be made: {error}")
                self._fail_by(finished._replace(error=why), chunk)
                return False
        if output.fd >= 0 and output.length:
            self._consumer.complete_by_file(chunk, output.fd, then, run_s=finished.run_s, exit_status=status)
        else:
            chunk.complete(output.memory, then=then, run_s=finished.run_s, exit_status=status)
        self.judged_count += 1
        self._tally.completed(status)
        self._viewer.ended(_end_of(chunk, "completed", "", finished.run_s, status))
        return True

    def _fail_by(self, finished: Finished, chunk: Chunk, how: str = "", *, is_final: bool = False) -> None:
        """Fail a chunk whose program ended badly; `how` replaces what its end itself says."""
        said = finished.stderr_tail.decode("utf-8", "replace").strip()
        bare = how or finished._replace(stderr_tail=b"").reason
        reason = f"{bare}: {said}" if said else bare
        is_own = finished.error is None
        self._fail(
            chunk,
            reason,
            "for good" if is_final else "",
            told=bare if self._is_stderr_told else reason,
            is_final=is_final,
            run_s=finished.run_s,
            status=finished.exit_status if is_own else None,
            number=finished.signal if is_own else None,
        )

    def _fail(
        self,
        chunk: Chunk,
        reason: str,
        how: str,
        *,
        told: str,
        is_final: bool,
        is_shared: bool = False,
        run_s: float = 0.0,
        status: int | None = None,
        number: int | None = None,
    ) -> None:
        if chunk.is_revoked:
            chunk.release()
            return
        end = _end_of(chunk, "failed", reason, run_s, status, number)
        text = f"Chunk {name_of(chunk)}{input_note(end.input)} failed {how}".rstrip()
        self.failures.enter(chunk, end, text, told, is_shared=is_shared)
        self._tally.ended_with(
            (status or 128 + (number or 0)) if status is not None or number is not None else _FAILED_STATUS
        )
        self.judged_count += 1
        chunk.fail(reason, retry=not is_final, run_s=run_s, exit_status=status, signal=number)


def name_of(chunk: Chunk) -> str:
    """A chunk as people name it."""
    return f"{chunk.submission_id}/{chunk.index}"


def _end_of(
    chunk: Chunk,
    outcome: Literal["completed", "failed"],
    reason: str,
    run_s: float,
    status: int | None,
    number: int | None = None,
) -> ChunkEnd:
    return ChunkEnd(
        chunk.submission_id,
        chunk.index,
        chunk.attempt,
        outcome,
        status,
        number,
        run_s,
        reason,
        known_input(lambda: chunk.input),
    )
