"""The verb run: the whole round for one command line, with whatever daemon there is, or one for as long as it takes.

This file reads the options, gives the round its identity and tells how it ended; the work itself is done in `round_run`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_remote
from opsq.cli.options import values
from opsq.cli.options.chunk_options import Cutting
from opsq.cli.options.option import COUNT, argument, option, options
from opsq.cli.options.program_options import Consuming
from opsq.cli.output.failure import Exit
from opsq.cli.output.json_output import ErrorShape
from opsq.cli.output.readable import brief
from opsq.cli.output.submission_documents import RunDocument
from opsq.cli.run.feed import is_plain
from opsq.cli.run.round_run import RECONNECT_S, Ended, RoundRun, RunPlan
from opsq.cli.run.rounds import Round, key_of, new_key
from opsq.cli.upload import STDIN, expand, read_whole
from opsq.client.sync.producer import Producer
from opsq.daemon.temporary_daemon import DaemonUse, run_conflict
from opsq.errors import (
    CommandNotExecutable,
    CommandNotFound,
    InputUnreadable,
    NameTaken,
    OpsqError,
    Unreachable,
    UsageError,
    WorkFailed,
)
from opsq.runner.pool import Connect
from opsq.wire.messages import Backoff, Claim, SubmissionState

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection

_TOLD_DEAD_COUNT = 3
_TOLD_CHANGES_COUNT = 3


class _Stamp(NamedTuple):
    """An input, and by what a plain file is known again."""

    path: str
    size_bytes: int | None
    time_ns: int | None


def run(
    caller: Caller,
    words: list[str] = argument(
        "INPUT -- CMD...", "Files, quoted globs or - for stdin; behind -- the program and its arguments."
    ),
    cutting: Cutting = options(Cutting),
    programs: Consuming = options(Consuming),
    metadata: list[str] = option(
        "-m, --metadata KEY=VALUE...", "Strategic metadata; programs see it as OPSQ_META_KEY."
    ),
    attach: str | None = option("--attach FILE", "A file that the programs find by OPSQ_ATTACHMENT."),
    max_attempts: int | None = option("--max-attempts N", "Failures until a chunk is dead.", COUNT),
    backoff: Backoff | None = option(
        "--backoff BASE,FACTOR,MAX", "Delays between attempts, such as 1s,2,5m.", values.backoff
    ),
    on_dead: Literal["fail", "keep"] = option(
        "--on-dead fail|keep", "A dead chunk ends the round, or the rest is still processed.", default="fail"
    ),
    skip_dead: bool = option("--skip-dead", "With --on-dead keep: write the results after a dead chunk too."),
    output: str | None = option("-o, --output FILE", "Write the results to this file: beside it first, then renamed."),
    resume: str | None = option(
        "--resume KEY", "Name the round, so that it can continue later even if its input is a stream."
    ),
    fresh: bool = option("--fresh", "Discard what the same command has done before, and start over."),
) -> None:
    """Run a program on each chunk of the inputs, and write the results to stdout in input order: the whole round in one line.

    The same command, run again, continues with what is left of a round that did not complete. Without a daemon, one is
    started, and stopped at the end.
    """
    inputs, command = _split(words)
    paths = expand(inputs)
    for path in paths:
        _check(path)
    if skip_dead and on_dead != "keep":
        raise UsageError("--skip-dead leaves out what is dead, so it needs --on-dead keep.")
    splitting = cutting.as_splitting()
    how = programs.as_options(caller, splitting.delimiter)
    is_resumable = resume is not None or all(map(is_plain, paths))
    options: dict[str, Any] = {
        "metadata": values.metadata(metadata),
        "attachment": None if attach is None else read_whole(attach),
        "max_attempts": max_attempts,
        "backoff": backoff,
        "on_dead": on_dead,
    }
    found = _stamps(paths)
    key = (
        _key(resume, found, [splitting, how.feeding, [os.fsencode(word) for word in command]], options)
        if is_resumable
        else new_key()
    )
    plan = RunPlan(
        command=command,
        options=how,
        paths=paths,
        splitting=splitting,
        output=output,
        is_resumable=is_resumable,
        is_fresh=fresh,
        is_skipping=skip_dead,
        is_keeping=on_dead == "keep",
        is_reporting=programs.progress,
    )
    with _daemon(caller, key) as daemon_use:
        connect = _connect(caller, daemon_use)
        producer = _claiming(connect, key if is_resumable else None)
        try:
            round_ = Round(producer, key, options, is_resumable=is_resumable)
            ended = RoundRun(caller, connect, round_, plan).run()
            is_temporary = daemon_use is not None and daemon_use.is_temporary
            _conclude(caller, round_, plan, ended, changes=_changes(found), is_temporary=is_temporary)
        finally:
            producer.close()


# --- before -----------------------------------------------------------------------------------------------------------------------


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Inputs and command line."""
    if "--" not in words:
        raise UsageError(
            "opsq run needs -- in front of the program.", hint="For example: opsq run access.log -- grep -c 500"
        )
    at = words.index("--")
    inputs, command = words[:at], words[at + 1 :]
    if not inputs:
        raise UsageError(
            "opsq run needs an INPUT in front of --, or - for stdin.", hint="`opsq run --help` explains it."
        )
    if not command:
        raise UsageError("opsq run needs a program behind --.", hint="`opsq run --help` explains it.")
    return inputs, command


def _check(path: str) -> None:
    """See to it that an input is there, before anything is begun."""
    if path == STDIN:
        return
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InputUnreadable(f"{path} cannot be read: Is a directory.")
        if stat.S_ISREG(mode) and not os.access(path, os.R_OK):
            raise InputUnreadable(f"{path} cannot be read: Permission denied.")
    except OSError as error:
        raise InputUnreadable(f"{path} cannot be read: {error.strerror}.") from error


def _stamps(paths: list[str]) -> list[_Stamp]:
    """The inputs as they are now."""
    return [_Stamp(path, *_size_and_time(path)) for path in paths]


def _size_and_time(path: str) -> tuple[int, int] | tuple[None, None]:
    """Of a plain file, in bytes and nanoseconds; None twice for everything else."""
    if not is_plain(path):
        return None, None
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _changes(stamps: list[_Stamp]) -> list[str]:
    """The plain files among the inputs that are not what they were, each with what became of it: `log.txt changed`."""
    changed = dict.fromkeys(
        stamp.path for stamp in stamps if stamp.size_bytes is not None and stamp[1:] != _size_and_time(stamp.path)
    )
    return [f"{path} {'changed' if os.path.exists(path) else 'went away'}" for path in changed]


def _key(resume: str | None, stamps: list[_Stamp], line: list[object], options: dict[str, Any]) -> bytes:
    """What makes a line the same line: inputs and their sizes and times, how they are cut, and what is run on them where."""
    inputs: list[list[object]] = []
    for path, size_bytes, time_ns in stamps:
        if size_bytes is None:
            inputs.append([os.fsencode(path)])
        else:
            inputs.append([os.fsencode(os.path.abspath(path)), size_bytes, time_ns])
    rest = {name: option for name, option in options.items() if option is not None}
    try:
        folder = os.fsencode(os.getcwd())
    except FileNotFoundError:  # it was removed: there is no name by which it could be another one
        folder = b""
    return key_of([resume, folder, inputs, line, rest])


@contextlib.contextmanager
def _daemon(caller: Caller, key: bytes) -> Iterator[DaemonUse | None]:
    """A daemon to work with, and the round for us alone; None: it is not ours to start and stop."""
    settings = caller.settings
    if is_remote(settings) or settings.source("socket") == "--socket":
        yield None
        return
    daemon_use = DaemonUse(settings)
    try:
        daemon_use.claim(key)
        yield daemon_use.enter()
    finally:
        with contextlib.suppress(OpsqError):  # it ends by itself when nobody uses it
            daemon_use.leave()


def _connect(caller: Caller, daemon_use: DaemonUse | None) -> Connect:
    """What connects to the daemon; one that is there for us is started again if somebody has killed it."""

    def connect(*, name: str = "", claim: Claim | None = None) -> Connection:
        try:
            return caller.connect(name=name, claim=claim)
        except Unreachable:
            if daemon_use is None or not daemon_use.revive():
                raise
        return caller.connect(name=name, claim=claim)

    return connect


def _claiming(connect: Connect, key: bytes | None) -> Producer:
    """What asks the daemon of the round, and holds it for us alone, whatever way and from whatever machine others come to the daemon."""
    claim = None if key is None else Claim(f"run {key.hex()}", os.urandom(16))
    try:
        return Producer(lambda: connect(name="", claim=claim), reconnect_s=RECONNECT_S)
    except NameTaken as error:
        raise run_conflict() from error


# --- after ------------------------------------------------------------------------------------------------------------------------


def _conclude(
    caller: Caller, round_: Round, plan: RunPlan, ended: Ended, *, changes: list[str], is_temporary: bool
) -> None:
    """Tell how the round ended, and forget it if it need not be found again.

    Args:
        changes: what became of inputs that changed meanwhile; see `_changes`.
        is_temporary: the daemon ends with this line.
    """
    failure = ended.failure
    has_daemon = not isinstance(failure, Unreachable)
    states = round_.states() if has_daemon else []
    if ended.is_delivered and failure is None and any(state.dead_count for state in states):
        failure = WorkFailed()
    is_done = ended.is_delivered and failure is None
    if isinstance(failure, WorkFailed):
        failure = _explained(failure, round_, states, plan, changes=changes, is_temporary=is_temporary)
        if not plan.is_resumable:
            for state in states:
                if not state.dead_count:
                    round_.forget(state.submission_id)
    elif has_daemon and (is_done or not plan.is_resumable or _is_in_vain(failure, states)):
        round_.forget_all()
    if not is_done and failure is None:
        _tell_interrupted(caller, states, plan, ended, changes)
    if ended.is_reader_gone:
        raise BrokenPipeError
    outcome = ended.outcome
    document = RunDocument(
        state="completed" if is_done else "interrupted" if failure is None else "failed",
        submissions=[str(state.submission_id) for state in states],
        completed=outcome.completed_count,
        failed=outcome.failed_count,
        released=outcome.released_count,
        dead=sum(state.dead_count for state in states),
        bytes=ended.written_bytes,
        output=msgspec.UNSET if plan.output is None else plan.output,
        error=msgspec.UNSET if failure is None else ErrorShape.of(failure),
    )
    if ended.json_sink is not None:
        ended.json_sink.end(document)
    else:
        caller.document(document)
    if failure is not None:
        raise caller.report_error(failure)
    if not is_done:
        raise Exit(128 + ended.signal)


def _is_in_vain(failure: OpsqError | None, states: list[SubmissionState]) -> bool:
    """Whether the same line has nothing to go on with."""
    if isinstance(failure, CommandNotFound | CommandNotExecutable):
        return not any(state.completed_count for state in states)
    return isinstance(failure, UsageError)


def _explained(
    failure: WorkFailed,
    round_: Round,
    states: list[SubmissionState],
    plan: RunPlan,
    *,
    changes: list[str],
    is_temporary: bool,
) -> WorkFailed:
    """What died, why, and how to go on."""
    dead = [state for state in states if state.dead_count]
    if not dead:
        return failure
    dead_count, chunks_count = sum(state.dead_count for state in dead), sum(state.chunks_count for state in states)
    submission_id = dead[0].submission_id
    lines = [f"{dead_count} of {values.counted(chunks_count, 'chunk')} died."]
    if changes:
        lines[0] += f" Meanwhile {_listed(changes)}, and what was not read before cannot be read any more."
    lines += [
        f"Chunk {submission_id}/{chunk.index}: {brief(chunk.reason.strip())}"
        for chunk in round_.dead(submission_id, _TOLD_DEAD_COUNT)
    ]
    first = "after `opsq start`, " if is_temporary else ""
    if changes:
        left = " ".join(str(state.submission_id) for state in states)
        hint = (
            "The same line begins anew with the files as they are: run it when nothing writes to them, or on a copy. "
        )
        hint += f"What was done is kept, {first}`opsq rm {left}` forgets it."
        return WorkFailed("\n".join(lines), hint=hint)
    hint = (
        f"To look, {first}`opsq dead list {submission_id}`; `opsq dead requeue {submission_id}` gives them new attempts"
    )
    hint += ", and so does the same line, which goes on with what is left." if plan.is_resumable else "."
    return WorkFailed("\n".join(lines), hint=hint)


def _listed(changes: list[str]) -> str:
    more_count = len(changes) - _TOLD_CHANGES_COUNT
    return ", ".join(changes[:_TOLD_CHANGES_COUNT]) + (f", and {more_count} more" if more_count > 0 else "")


def _tell_interrupted(
    caller: Caller, states: list[SubmissionState], plan: RunPlan, ended: Ended, changes: list[str]
) -> None:
    if ended.is_reader_gone or not caller.is_remarking:
        return
    done_count, chunks_count = (
        sum(state.completed_count for state in states),
        sum(state.chunks_count for state in states),
    )
    if plan.is_resumable and changes:
        left = " ".join(str(state.submission_id) for state in states)
        caller.remark(
            f"{done_count} of {values.counted(chunks_count, 'chunk')} are done, and kept as submission {left}."
        )
        caller.remark(f"But meanwhile {_listed(changes)}, so the same line begins anew.")
    elif plan.is_resumable:
        caller.remark(
            f"{done_count} of {values.counted(chunks_count, 'chunk')} are done; the same line goes on from there."
        )
    else:
        caller.remark("What was read from the stream is forgotten; with --resume KEY the same line could go on.")
